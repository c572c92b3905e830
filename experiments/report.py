"""One study as one self-contained HTML page: tables, verdicts under a rule stated before them, figures, configuration.

Nothing is loaded from anywhere: figures are embedded as SVG images, the style is in the page. Every sentence with a
number in it is computed from the run directories; a result that goes against a claim reads exactly as large as one
that goes with it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from dissensus.experiments import html_tables
from dissensus.experiments.claim_rows import ClaimRow
from dissensus.experiments.comparison import MANY, Finding, compare, power, rule
from dissensus.experiments.config import Study, resolved
from dissensus.experiments.figures.style import svg
from dissensus.experiments.loading import write_whole
from dissensus.experiments.pictures import Picture, pictures
from dissensus.experiments.records import STUDY_FILE, Run
from dissensus.experiments.results import Results
from dissensus.experiments.selection import in_colour
from dissensus.experiments.statistics import paired
from dissensus.experiments.table_files import write_tables
from dissensus.experiments.tables import arms_note, probability, signed
from dissensus.experiments.toml import write_toml


@dataclass(frozen=True)
class Report:
    """A written report and what it says."""

    path: Path
    results: Results
    findings: list[Finding]
    tables: Path | None = None
    """The folder of the tables, if they were wanted."""


def write_report(
    folder: Path | str, path: Path | str | None = None, *, tables: Path | str | None = None, with_tables: bool = True
) -> Report:
    """Reads the runs of a study and writes its page, `report.html` in the folder unless told otherwise.

    Its tables as files go to `tables` beside `report.html`, and to `x-tables` beside any other `x.html`.
    """
    results = Results.read(folder)
    _ = results.first
    findings = compare(results)
    target = Path(path) if path is not None else Path(folder) / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    from dissensus.experiments.claims.reported import claim_rows  # claims run studies, and studies write reports

    write_whole(target, page(results, findings, pictures(results), claim_rows(results)))
    if not with_tables:
        return Report(target, results, findings)
    beside = target.with_name("tables" if target.name == "report.html" else f"{target.stem}-tables")
    return Report(target, results, findings, write_tables(results, findings, Path(tables or beside)))


def page(results: Results, findings: list[Finding], shown: list[Picture], claims: Sequence[ClaimRow] = ()) -> str:
    """The page as text; without claims it has no section for them."""
    example = results.first
    template = Template(resources.files("dissensus.experiments").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_title(results)),
        what=_what(results),
        unfinished=_unfinished(results),
        arms_note=arms_note(results),
        arms=html_tables.arms(results),
        rule=escape(rule(results, len(findings))),
        power=f"<p>{_tied(escape(power(results, len(findings))))}</p>" if findings else "",
        verdicts=html_tables.verdicts(findings),
        notes=_notes(results),
        claims=html_tables.claims(claims),
        figures="\n".join(_figure(at, picture) for at, picture in enumerate(shown, start=1)),
        differences=html_tables.differences(results),
        example=escape(example.path.name),
        configuration=escape(write_toml(resolved(example.study))),
        environment=html_tables.environment(results),
        reproduce=escape(_reproduce(results)),
        runs=html_tables.runs(results),
    )


def _title(results: Results) -> str:
    labels = [results.label(arm) for arm in results.order]
    if len(labels) > MANY:
        return f"{results.name}: {len(labels)} arms"
    return f"{results.name}: {' and '.join(filter(None, (', '.join(labels[:-1]), labels[-1])))}"


def _what(results: Results) -> str:
    run = results.first
    study, meta = run.study, run.meta
    data = study.data.parameters
    noisy = f", {100 * data['noise']:g} % of the training labels replaced by wrong ones" if data.get("noise") else ""
    arms = ", ".join(f"<b>{escape(results.label(arm))}</b>" for arm in results.order)
    if len(results.order) > MANY:
        arms = f"{len(results.order)} arms"
    return (
        f"{study.train.workers} workers trained one {escape(study.model.name)} of {meta.get('parameters', 0):,} "
        f"parameters on {escape(study.data.name)} ({meta.get('train_samples')} training and {meta.get('test_samples')} "
        f"test samples{noisy}) for {study.train.steps} steps of {study.train.batch} samples per worker, with "
        f"{_optimizer(study)}{_elsewhere(results)}, as {arms}. All arms of a seed share the start, the data and their "
        f"order and differ in nothing but the keys listed under Configuration. {_seeds(results)}"
    )


def _elsewhere(results: Results) -> str:
    """What is different in other arms than the one that is described, beside the algorithm."""
    keys = sorted(key for key in results.differences() if not key.startswith("arms."))
    return f" (in the first arm; others differ in {escape(', '.join(keys))})" if keys else ""


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
    if results.left_out:
        names = escape(", ".join(results.left_out))
        words = f"<b>Runs that did not finish</b>; with them no seed is common to all arms without leaving out {names}:"
    return f"<p>{words}</p><ul>{items}</ul>"


def _notes(results: Results) -> str:
    """What has to be known before the verdicts are believed, with its numbers."""
    if len(results.seeds) < 2:
        return ""
    items = [f"<li>{escape(results.decision.note)}</li>"] if results.decision.note else []
    if results.before_the_rule:
        items.append(
            f"<li>{len(results.before_the_rule)} of {len(results.runs)} runs were begun before arms, seeds and rule of "
            "decision took the form they have here: what was seen of those may have had a part in it.</li>"
        )
    lost = [f"{run.arm}, seed {run.seed}" for runs in results.by_arm.values() for run in runs if _diverged(run)]
    if lost:
        items.append(
            f"<li>The training loss of {escape('; '.join(lost))} ended above where it began: such a run has diverged, "
            "and what it says of flatness means nothing.</li>"
        )
    gaps = []
    for arm in in_colour(results):
        if arm != results.treatment and results.treatment in results.order:
            ours = results.final("train_loss", which="consensus", arm=results.treatment)
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
    for arm in in_colour(results):
        mean, worst = (100 * results.final("test_accuracy", which=w, arm=arm) for w in ("mean", "worst"))
        if np.isfinite(mean).all():
            workers.append(f"{escape(results.label(arm))} {mean.mean():.2f} % (worst worker {worst.mean():.2f} %)")
    if workers:
        items.append(f"<li>Single workers, not averaged, reach on the test set: {'; '.join(workers)}.</li>")
    return f"<p><b>Read with this in mind</b></p><ul>{_tied(''.join(items))}</ul>"


def _diverged(run: Run) -> bool:
    _, losses = run.series("train_loss", which="consensus")
    return len(losses) > 1 and losses[-1] > losses[0]


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


def _reproduce(results: Results) -> str:
    run = results.first
    return (
        f"dissensus study {run.path.parent / STUDY_FILE}    # all arms and seeds\n"
        f"dissensus simulate {run.path / 'config.toml'}    # one run alone"
    )
