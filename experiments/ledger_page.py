"""The ledger of tightness as a page of the documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dissensus.theory import bounds
from dissensus.theory.ledger import Row

HEADINGS = {
    "published": "constants read in the paper's text or code",
    "classical": "textbook, proven again here",
    "recalled": "stated from memory of the paper; tested, wording not re-read",
    "ours": "derived for this project, with proof",
}


def page(rows: Sequence[Row], *, instances: int, searches: int, seed: int) -> str:
    """The whole page, as it stands in the documentation."""
    broken = sum(row.violations for row in rows)
    total = sum(row.instances for row in rows)
    lines = [
        "# Tightness ledger",
        "",
        f"*Made by `dissensus theory ledger --instances {instances} --searches {searches} --seed {seed} --write FILE`,",
        "not edited by hand.*",
        "",
        f"{len({row.bound for row in rows})} bounds, {total:,} random instances, **{broken} violations**.",
        "*Slack* is bound over measured (for lower bounds measured over bound): 1 where the bound is attained, below 1",
        "where it would be broken. *Searched* is the smallest slack that a hill climb over the numbers of an instance",
        "found. In the families called *certificate* the instance is the worst there is: a setting is drawn at",
        "random, the exact worst case over all functions and mixing matrices is computed and its instance is run. *Of",
        "the certificate* is the smallest ratio of the bound to the certified value (below 1 by no more than the",
        "accuracy of a certificate, where the bound is attained). A test cannot see an error of a constant by less",
        "than the smallest slack: that column says how much each line is worth.",
        "",
        "| bound | provenance | family | instances | violations | smallest | median | searched | of the certificate |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        numbers = [row.smallest, row.median, row.searched]
        lines.append(
            f"| [{row.bound}](#{row.bound}) | {row.provenance} | {row.family} | {row.instances} | {row.violations} | "
            f"{' | '.join(map(_short, numbers))} | {'' if row.certificate is None else _short(row.certificate)} |"
        )
    lines += ["", "## Statements", ""]
    for name in dict.fromkeys(row.bound for row in rows):
        bound = bounds.find(name)
        lines += [f"### `{name}`", "", f"{bound.title}.", "", f"$$ {bound.statement} $$", ""]
        if bound.assumptions:
            lines += ["Assumptions: " + "; ".join(f"{a.name}, ${a.statement}$" for a in bound.assumptions) + ".", ""]
        lines += [f"*{bound.provenance}* ({HEADINGS[bound.provenance]}): {bound.reference}"]
        lines += [f"Attained: {bound.tight}", ""] if bound.tight else [""]
    return "\n".join(lines).rstrip() + "\n"


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "–"
