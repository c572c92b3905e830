r"""The tables of a study as files for people without this package: plain numbers as CSV, text for notes and papers.

    finals.csv          the last number of every quantity in every run, as it stands in the records
    arms.csv            its mean over the seeds with the 95 % t-interval, by arm
    verdicts.csv        the statements with their tests
    arms, verdicts, configuration: .md, and .tex for `\usepackage{booktabs}`

Numbers in the CSV files are in the units of the records and have all their digits. The writing is by hand, because
pandas would need two more packages for Markdown and LaTeX.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dissensus.experiments.comparison import MANY, Finding, rule
from dissensus.experiments.curves import Finals
from dissensus.experiments.latex import booktabs
from dissensus.experiments.loading import write_whole
from dissensus.experiments.records import Run
from dissensus.experiments.results import Results
from dissensus.experiments.tables import Rows, arms_note, arms_rows, configuration_rows, markdown, turned, without
from dissensus.experiments.tables import verdict_rows as verdict_text

_FINALS = ("arm", "seed", "quantity", "which", "worker", "bn", "step", "value", "stderr")
_ARMS = ("arm", "label", "quantity", "which", "worker", "n", "mean", "low", "high", "sd")
_VERDICTS = (
    "treatment", "control", "quantity", "which", "expected", "minimum_effect", "verdict", "n", "mean_difference", "low",
    "high", "interval_method", "t_pvalue", "permutation_pvalue", "corrected_pvalue", "effect_size", "detectable",
    "detectable_corrected", "level", "tests",
)  # fmt: skip


def write_tables(results: Results, findings: Sequence[Finding], folder: Path) -> Path:
    """Writes all tables into a folder, which is made if need be; each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    last = final_rows(results)
    _write_csv(folder / "finals.csv", _FINALS, last)
    _write_csv(folder / "arms.csv", _ARMS, _arm_rows(results, last))
    _write_csv(folder / "verdicts.csv", _VERDICTS, map(_verdict_row, findings))
    arms = arms_rows(results) if len(results.order) > MANY else turned(arms_rows(results))
    _write_text(folder / "arms", arms, arms_note(results))
    said = verdict_text(findings)
    narrow = without(said, "detectable", "p (t)", "p (signs)", "d_z")  # a column of text is not wider
    _write_text(folder / "verdicts", said, rule(results, len(findings)), left=3, paper=narrow)
    keys, note = configuration_rows(results), "The keys in which the arms differ; everything else is equal."
    _write_text(folder / "configuration", keys, note, left=len(keys[0]))
    return folder


def final_rows(results: Results) -> list[dict[str, Any]]:
    """The last record of every quantity, by weights, of every run that enters the numbers."""
    return [row for runs in results.by_arm.values() for run in runs for row in _last_rows(run)]


def _last_rows(run: Run) -> Iterable[dict[str, Any]]:
    last: dict[tuple[str, str, Any], dict[str, Any]] = {}
    for row in (*run.metrics, *run.probes):
        key = (row["name"], row["which"], row.get("worker"))
        if row["value"] is not None and (key not in last or row["step"] > last[key]["step"]):
            last[key] = row
    for row in last.values():
        yield {**row, "arm": run.arm, "seed": run.seed, "quantity": row["name"]}


def _arm_rows(results: Results, last: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in last:
        key = tuple(row.get(name) for name in ("arm", "quantity", "which", "worker"))
        groups.setdefault(key, []).append(row["value"])
    for (arm, quantity, which, worker), values in groups.items():
        found = Finals(np.array(values), np.zeros(len(values)))
        low, high = found.interval if len(values) > 1 else (None, None)
        yield {
            "arm": arm, "label": results.label(arm), "quantity": quantity, "which": which, "worker": worker,
            "n": len(values), "mean": found.mean, "low": low, "high": high,
            "sd": float(found.values.std(ddof=1)) if len(values) > 1 else None,
        }  # fmt: skip


def _verdict_row(f: Finding) -> dict[str, Any]:
    low, high = f.test.interval
    alone, strictest = f.detectable or (None, None)
    return {
        **f.to_dict(), "treatment": f.arms[0], "control": f.arms[1], "which": f.question.quantity.which,
        "low": low, "high": high, "detectable": alone, "detectable_corrected": strictest,
        "level": f.level, "tests": f.tests,
    }  # fmt: skip


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, out.getvalue())


def _write_text(path: Path, table: Rows, note: str, *, left: int = 1, paper: Rows | None = None) -> None:
    write_whole(path.with_suffix(".md"), f"{markdown(table, left=left)}\n{note}\n")
    write_whole(path.with_suffix(".tex"), booktabs(*(paper or table), left=left, note=note))
