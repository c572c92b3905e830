"""The tables of the page as HTML; everything that came from a file is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from dissensus.experiments.claim_rows import ClaimRow
from dissensus.experiments.comparison import MANY, Finding, counted
from dissensus.experiments.curves import Curve, plus_minus
from dissensus.experiments.figures.style import PALETTE
from dissensus.experiments.quantities import QUANTITIES
from dissensus.experiments.results import Results
from dissensus.experiments.selection import in_colour
from dissensus.experiments.tables import VERDICT_HEADER, arms_rows, configuration_rows, verdict_row

_CLASSES = {"supported": "supported", "not supported": "against", "inconclusive": "inconclusive"}


def arms(results: Results) -> str:
    """The arms with the marks of their colours."""
    header, rows = arms_rows(results)
    units = ["", *(f"<br><small>{q.which}</small>" for q in QUANTITIES)]
    head = "".join(f"<th>{escape(h)}{unit}</th>" for h, unit in zip(header, units, strict=True))
    colours = dict(zip(in_colour(results), PALETTE, strict=False))
    body = ""
    for arm, row in zip(results.order, rows, strict=True):
        mark = f'<span class="mark" style="background:{colours.get(arm, "none")}"></span>'
        cells = "".join(f"<td>{escape(value)}</td>" for value in row[1:])
        body += f"<tr><td>{mark}{escape(row[0])}</td>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def verdicts(findings: Sequence[Finding]) -> str:
    """All statements; where the controls are many, how often each holds, and the statements folded away below it."""
    if not findings:
        return "<p>No statement can be tested: that takes a treatment, a control and at least two seeds.</p>"
    if len({f.arms for f in findings}) < MANY:
        return _statements(findings)
    whole = f"<details><summary>All {len(findings)} statements</summary>{_statements(findings)}</details>"
    return _counts(findings) + whole


def _statements(findings: Sequence[Finding]) -> str:
    head = "<th>statement</th>" + "".join(
        f"<th{' class=text' if at == 0 else ''}>{escape(h)}</th>" for at, h in enumerate(VERDICT_HEADER)
    )
    body, control = "", None
    for finding in findings:
        if finding.arms[1] != control:
            control = finding.arms[1]
            words = f"{escape(finding.treatment)} against {escape(finding.control)}"
            body += f'<tr class="group"><th colspan="{len(VERDICT_HEADER) + 1}">{words}</th></tr>'
        word, *numbers = verdict_row(finding)
        cells = "".join(f"<td>{escape(value)}</td>" for value in numbers)
        body += (
            f"<tr><td>has a {escape(finding.question.words + finding.question.beyond)}</td>"
            f"<td {_verdict_class(word)}>{word}</td>{cells}</tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _verdict_class(word: str) -> str:
    return f'class="text verdict {_CLASSES.get(word, "inconclusive")}"'


def _counts(findings: Sequence[Finding]) -> str:
    total = len({f.arms for f in findings})
    head = f"<th>{escape(findings[0].treatment)}, against {total} arms</th>"
    head += "".join(f"<th>{word}</th>" for word in _CLASSES)
    body = ""
    for question, count in counted(findings).items():
        cells = "".join(f'<td class="verdict {_CLASSES[word]}">{times}</td>' for word, times in count.items())
        body += f"<tr><td>has a {escape(question.words + question.beyond)}</td>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def claims(rows: Sequence[ClaimRow]) -> str:
    """The section of the claims; nothing where there are none."""
    if not rows:
        return ""
    head = "".join(f'<th class="text">{name}</th>' for name in ("claim", "verdict", "because"))
    body = ""
    for row in rows:
        source = f"<br><small>{escape(row.source)}</small>" if row.source else ""
        parts = "<br>".join(escape(part) for part in row.parts)
        body += (
            f'<tr><td class="flowing"><b>{escape(row.title)}</b><br>{escape(row.statement)}{source}</td>'
            f'<td {_verdict_class(row.verdict)}>{escape(row.verdict)}</td><td class="text flowing">{parts}</td></tr>'
        )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    lead = (
        '<p class="soft">Claims of the literature that a study with these arms can be asked, each by the rule that '
        "stands with it (<code>dissensus verify NAME --show</code>); a claim is supported if all of its parts are.</p>"
    )
    return f'<h2 id="claims">Claims</h2>\n{lead}\n<div class="wide">{table}</div>'


def differences(results: Results) -> str:
    """The keys in which the arms differ."""
    header, rows = configuration_rows(results)
    if not rows or len(header) == 1:
        return "<p>none</p>"
    many = len(results.order) > MANY
    head = "".join(f"<th class='text'>{_code(h) if many and at else escape(h)}</th>" for at, h in enumerate(header))
    body = "".join(
        f"<tr><td>{escape(row[0]) if many else _code(row[0])}</td>"
        + "".join(f"<td class='text'>{escape(value)}</td>" for value in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def environment(results: Results) -> str:
    """On what it ran, and how long."""
    meta = results.first.meta
    seconds = np.array([[run.summary.get("wall_s", np.nan) for run in runs] for runs in results.by_arm.values()])
    probes = np.array([[run.summary.get("probe_s", np.nan) for run in runs] for runs in results.by_arm.values()])
    facts = {
        "packages": ", ".join(f"{name} {version}" for name, version in meta.get("versions", {}).items()),
        "Python": f"{meta.get('python')} on {meta.get('platform')}",
        "threads per run": str(results.first.study.train.threads),
        "wall time of one run": f"{plus_minus(*_spread(seconds))} s, of which probes {plus_minus(*_spread(probes))} s",
        "hashes": f"data {meta.get('data_hash')}, topology {meta.get('topology_hash')}",
    }
    rows = "".join(f"<tr><td>{escape(k)}</td><td class='text'>{escape(v)}</td></tr>" for k, v in facts.items())
    return f"<table><tbody>{rows}</tbody></table>"


def _spread(values: np.ndarray) -> tuple[float, float]:
    low, high = Curve(np.zeros(1), values.reshape(-1, 1)).band()
    return float(values.mean()), float(high[0] - low[0]) / 2


def runs(results: Results) -> str:
    """Every run with its hashes."""
    head = "<tr><th>run directory</th><th>start</th><th>order</th><th>final parameters</th><th>wall time</th></tr>"
    body = "".join(
        f"<tr><td><code>{escape(run.path.name)}</code></td><td><code>{run.meta.get('start_hash')}</code></td>"
        f"<td><code>{run.meta.get('order_hash')}</code></td><td><code>{run.summary.get('parameters_hash')}</code></td>"
        f"<td>{run.summary.get('wall_s', 0):.1f} s</td></tr>"
        for of in results.by_arm.values()
        for run in of
    )
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f"<details><summary>All runs with their hashes</summary>{table}</details>"
