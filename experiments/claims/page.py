"""The verdicts as a page of the documentation, made from what was saved of them and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.verifying import Verified
from dissensus.experiments.tables import probability

HEAD = (
    "claim",
    "verdict",
    "parts",
    "seeds or instances",
    "scale",
    "date",
)


def page(verdicts: Sequence[Verified], command: str) -> str:
    """The whole page; `command` is how it was made."""
    lines = [
        "# Claims",
        "",
        f"*Made by `{command}`, not edited by hand.*",
        "",
        "What the literature says of disagreement, put to the test by this toolkit: each claim in our words, what was",
        "measured, the rule that was fixed beforehand, and what came out. A claim is *supported* if every part of it",
        "is, *not supported* if at least one came out against it, else *inconclusive*; parts in brackets only inform.",
        "These are verdicts at the scale that is named: at *tiny* scale on small networks and small data they say what",
        "was seen there, not whether a paper is right at its own scale. [How to run them](verify.md).",
        "",
        f"| {' | '.join(HEAD)} |",
        "|---|---|---|---:|---|---|",
    ]
    for one in verdicts:
        counted = [part for part in one.parts if part.counts]
        of = sorted({_count(part) for part in counted if part.n is not None})
        held = sum(part.verdict == "supported" for part in counted)
        lines.append(
            f"| [{one.claim.title}](#{one.claim.name}) | {_verdict(one)} | {held} of {len(counted)} | "
            f"{'; '.join(of) or '–'} | {one.scale} | {one.made.get('date', '–')} |"
        )
    for one in verdicts:
        lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def rows(one: Verified) -> list[list[str]]:
    """The parts of a claim as rows: statement, verdict, effect, interval, p, n."""
    return [
        [
            part.statement if part.counts else f"({part.statement})",
            part.verdict if part.counts else f"({part.verdict})",
            number(part),
            _interval(part),
            probability(part.pvalue),
            _count(part) if part.n is not None else "–",
        ]
        for part in one.parts
    ]


def _section(one: Verified) -> list[str]:
    c = one.claim
    lines = [
        f"## {c.name}",
        "",
        f"*{c.title}*: **{_verdict(one)}** at scale {one.scale}.",
        "",
        c.statement,
        "",
        f"- *Source:* {c.source}.",
        f"- *Measured:* {c.measured}.",
        f"- *Rule:* {c.rule}.",
    ]
    if one.made.get("studies"):
        lines.append(f"- *Studies:* {'; '.join(_study(name, s) for name, s in one.made['studies'].items())}.")
    lines.append(f"- *Run:* {_run(one)}.")
    if one.error:
        lines += ["", f"Incomplete: {one.error}"]
    if one.parts:
        lines += ["", "| part | verdict | effect | 95 % interval | p | n |", "|---|---|---:|---:|---:|---:|"]
        lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows(one)]
    notes = list(dict.fromkeys(f"{part.statement}: {part.note}" for part in one.parts if part.note))
    if notes:
        lines += ["", *(f"- {_cell(note)}" for note in notes)]
    return lines


def _verdict(one: Verified) -> str:
    return one.verdict or "not judged"


def _study(name: str, facts: dict[str, Any]) -> str:
    seeds = facts["seeds"]
    return (
        f"`{name}` ({facts['model']} on {facts['data']}, {facts['workers']} workers, {facts['steps']} steps, "
        f"{len(seeds)} seeds)"
    )


def _run(one: Verified) -> str:
    versions = one.made.get("versions", {})
    kept = ", ".join(f"{name} {versions[name]}" for name in ("dissensus", "torch", "numpy") if name in versions)
    return f"{one.made.get('date', '–')}, {one.seconds:.0f} s, Python {one.made.get('python', '–')}, {kept}"


def number(part: Part) -> str:
    """The number that a verdict goes by, with its unit."""
    if part.effect is None:
        return "–"
    sign = "+" if part.interval is not None and part.effect > 0 else ""  # what has an interval is a difference
    return f"{sign}{_number(part.effect)} {part.unit}".strip()


def _interval(part: Part) -> str:
    if part.interval is None:
        return "–"
    low, high = part.interval
    return f"{_number(low)} to {_number(high)}"


def _count(part: Part) -> str:
    return f"{part.n:,} {part.of}"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−") if math.isfinite(value) else "–"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
