"""One study as one self-contained HTML page: tables, verdicts under a rule stated before them, figures, configuration.

Nothing is loaded from anywhere: figures are embedded as SVG images, the style is in the page. Every sentence with a
number in it is computed from the run directories; a result that goes against a claim reads exactly as large as one
that goes with it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from dissensus.experiments.comparison import Finding, compare, rule
from dissensus.experiments.config import Study, resolved
from dissensus.experiments.curves import Curve, plus_minus
from dissensus.experiments.figures.style import PALETTE, svg
from dissensus.experiments.pictures import Picture, pictures
from dissensus.experiments.records import STUDY_FILE
from dissensus.experiments.results import Results
from dissensus.experiments.statistics import paired
from dissensus.experiments.tables import QUANTITIES, VERDICT_HEADER, arms_rows, probability, signed, verdict_row
from dissensus.experiments.toml import write_toml


@dataclass(frozen=True)
class Report:
    """A written report and what it says."""

    path: Path
    results: Results
    findings: list[Finding]


def write_report(folder: Path | str, path: Path | str | None = None) -> Report:
    """Reads the runs of a study and writes its page, `report.html` in the folder unless told otherwise."""
    results = Results.read(folder)
    _ = results.first
    findings = compare(results)
    target = Path(path) if path is not None else Path(folder) / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(results, findings, pictures(results)), encoding="utf-8")
    return Report(target, results, findings)


def page(results: Results, findings: list[Finding], shown: list[Picture]) -> str:
    """The page as text."""
    example = results.first
    template = Template(resources.files("dissensus.experiments").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_title(results)),
        what=_what(results),
        unfinished=_unfinished(results),
        arms_note=_arms_note(results),
        arms=_arms(results),
        rule=escape(rule(results, len(findings))),
        verdicts=_verdicts(findings),
        notes=_notes(results),
        figures="\n".join(_figure(at, picture) for at, picture in enumerate(shown, start=1)),
        differences=_differences(results),
        example=escape(example.path.name),
        configuration=escape(write_toml(resolved(example.study))),
        environment=_environment(results),
        reproduce=escape(_reproduce(results)),
        runs=_runs(results),
    )


def _title(results: Results) -> str:
    labels = [results.label(arm) for arm in results.order]
    return (
        f"{results.name}: {', '.join(labels[:-1])} and {labels[-1]}"
        if len(labels) > 1
        else f"{results.name}: {labels[0]}"
    )


def _what(results: Results) -> str:
    run = results.first
    study, meta = run.study, run.meta
    data = study.data.parameters
    noisy = f", {100 * data['noise']:g} % of the training labels replaced by wrong ones" if data.get("noise") else ""
    arms = ", ".join(f"<b>{escape(results.label(arm))}</b>" for arm in results.order)
    return (
        f"{study.train.workers} workers trained one {escape(study.model.name)} of {meta.get('parameters', 0):,} "
        f"parameters on {escape(study.data.name)} ({meta.get('train_samples')} training and {meta.get('test_samples')} "
        f"test samples{noisy}) for {study.train.steps} steps of {study.train.batch} samples per worker, with "
        f"{_optimizer(study)}, as {arms}. All arms of a seed share the start, the data and their order and differ in "
        f"nothing but the keys listed under Configuration. {_seeds(results)}"
    )


def _seeds(results: Results) -> str:
    n = len(results.seeds)
    return f"Every arm ran with {n} seed{'s' if n > 1 else ''} ({', '.join(map(str, results.seeds))})."


def _optimizer(study: Study) -> str:
    extra = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in study.optimizer.parameters.items())
    shape = "a constant rate" if study.lr.schedule == "constant" else "a cosine schedule"
    warm = f" after {study.lr.warmup} steps of warm-up" if study.lr.warmup else ""
    return escape(
        f"{study.optimizer.name.upper()}{' (' + extra + ')' if extra else ''} and {shape} from {study.lr.peak:g}{warm}"
    )


def _unfinished(results: Results) -> str:
    if not results.unfinished:
        return ""
    items = "".join(
        f"<li>{escape(r.arm)}, seed {r.seed}: {r.status}. {escape(str(r.summary.get('error', '')))}</li>"
        for r in results.unfinished
    )
    words = "<b>Runs that did not finish</b> (their seeds are left out of every number, for all arms):"
    return f"<p>{words}</p><ul>{items}</ul>"


def _arms_note(results: Results) -> str:
    n = len(results.seeds)
    spread = f"Mean ± half-width of the 95 % t-interval over {n} seeds" if n > 1 else "One seed: no intervals"
    return (
        f"{spread}. Accuracy, losses and curvature are those of the consensus model; distance, envelope and alignment "
        "are those of the workers around it. Losses and envelope in nats; tr H and λ max over the training samples."
    )


def _arms(results: Results) -> str:
    header, rows = arms_rows(results)
    units = ["", *(f"<br><small>{q.weights}</small>" for q in QUANTITIES)]
    head = "".join(f"<th>{escape(h)}{unit}</th>" for h, unit in zip(header, units, strict=True))
    body = ""
    for at, row in enumerate(rows):
        mark = f'<span class="mark" style="background:{PALETTE[at % len(PALETTE)]}"></span>'
        cells = "".join(f"<td>{escape(value)}</td>" for value in row[1:])
        body += f"<tr><td>{mark}{escape(row[0])}</td>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_CLASSES = {"supported": "supported", "not supported": "against", "inconclusive": "inconclusive"}


def _verdicts(findings: list[Finding]) -> str:
    if not findings:
        return "<p>No statement can be tested: that takes two arms and at least two seeds.</p>"
    head = "<th>statement</th>" + "".join(
        f"<th{' class=text' if at == 0 else ''}>{escape(h)}</th>" for at, h in enumerate(VERDICT_HEADER)
    )
    body, control = "", None
    for finding in findings:
        if finding.control != control:
            control = finding.control
            words = f"{escape(finding.treatment)} against {escape(control)}"
            body += f'<tr class="group"><th colspan="{len(VERDICT_HEADER) + 1}">{words}</th></tr>'
        word, *numbers = verdict_row(finding)
        cells = "".join(f"<td>{escape(value)}</td>" for value in numbers)
        body += (
            f"<tr><td>has a {escape(finding.question.words)}</td>"
            f'<td class="text verdict {_CLASSES[word]}">{word}</td>{cells}</tr>'
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _notes(results: Results) -> str:
    """What has to be known before the verdicts are believed, with its numbers."""
    if len(results.seeds) < 2:
        return ""
    items = [f"<li>{escape(results.decision.note)}</li>"] if results.decision.note else []
    gaps = []
    ours = results.final("train_loss", which="consensus", arm=results.treatment)
    for arm in results.order:
        if arm != results.treatment:
            test = paired(ours, results.final("train_loss", which="consensus", arm=arm))
            p = probability(test.t_pvalue)
            sure = escape(f"(paired t, p {p})" if p.startswith("<") else f"(paired t, p = {p})")
            gaps.append(f"{signed(test.mean_difference)} nats against {escape(results.label(arm))} {sure}")
    if gaps:
        items.append(
            f"<li>Training loss is not matched by design. That of {escape(results.label(results.treatment))} differs "
            f"by {'; '.join(gaps)}. Flatness at unequal training loss may be the price of fitting less rather than a "
            "property of equally good solutions.</li>"
        )
    workers = []
    for arm in results.order:
        mean, worst = (100 * results.final("test_accuracy", which=w, arm=arm) for w in ("mean", "worst"))
        if np.isfinite(mean).all():
            workers.append(f"{escape(results.label(arm))} {mean.mean():.2f} % (worst worker {worst.mean():.2f} %)")
    if workers:
        items.append(f"<li>Single workers, not averaged, reach on the test set: {'; '.join(workers)}.</li>")
    return f"<p><b>Read with this in mind</b></p><ul>{_tied(''.join(items))}</ul>"


def _tied(text: str) -> str:
    """Keeps a percent sign with its number."""
    return text.replace(" %", "\u00a0%")


def _figure(at: int, picture: Picture) -> str:
    data = base64.b64encode(svg(picture.figure)).decode("ascii")
    return (
        f'<figure id="{picture.name}"><img alt="{escape(picture.title)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption><b>Figure {at}. {escape(picture.title)}.</b> {_tied(escape(picture.caption))}</figcaption>"
        "</figure>"
    )


def _differences(results: Results) -> str:
    table = results.differences()
    if not table:
        return "<p>none</p>"
    labels = [results.label(arm) for arm in results.order]
    head = "<th>key</th>" + "".join(f"<th class='text'>{escape(label)}</th>" for label in labels)
    body = "".join(
        f"<tr><td><code>{escape(key.removeprefix('arms.arm.'))}</code></td>"
        + "".join(
            f"<td class='text'>{'–' if values[label] is None else escape(str(values[label]))}</td>" for label in labels
        )
        + "</tr>"
        for key, values in table.items()
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _environment(results: Results) -> str:
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


def _reproduce(results: Results) -> str:
    run = results.first
    return (
        f"dissensus study {run.path.parent / STUDY_FILE}    # all arms and seeds\n"
        f"dissensus simulate {run.path / 'config.toml'}    # one run alone"
    )


def _runs(results: Results) -> str:
    head = "<tr><th>run directory</th><th>start</th><th>order</th><th>final parameters</th><th>wall time</th></tr>"
    body = "".join(
        f"<tr><td><code>{escape(run.path.name)}</code></td><td><code>{run.meta.get('start_hash')}</code></td>"
        f"<td><code>{run.meta.get('order_hash')}</code></td><td><code>{run.summary.get('parameters_hash')}</code></td>"
        f"<td>{run.summary.get('wall_s', 0):.1f} s</td></tr>"
        for runs in results.by_arm.values()
        for run in runs
    )
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f"<details><summary>All runs with their hashes</summary>{table}</details>"
