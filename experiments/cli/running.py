"""What the verbs that train have in common: a progress bar, a summary, the report's path on the last line."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dissensus.experiments.cli.output import console, print_json

if TYPE_CHECKING:
    from dissensus.experiments.config import Study
    from dissensus.experiments.progress import Progress
    from dissensus.experiments.report import Report


def loaded(args: argparse.Namespace) -> Study:
    """The study of the files and the `--section.key value`s of a command line."""
    from dissensus.experiments.config import Study
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.loading import load
    from dissensus.theory.errors import nearest

    for key in args.extra:
        if "." not in key and key not in Study.model_fields:
            raise ConfigError(f"unknown option --{key}{nearest(key, [*args.flags, *Study.model_fields])}")
    return load(args.files, [f"{key}={value}" for key, value in args.extra.items()])


def shown_progress(quiet: bool, title: str) -> AbstractContextManager[Progress]:
    """A bar on standard error, or nothing."""
    from dissensus.experiments.progress import Bar, Silent

    return nullcontext(Silent()) if quiet else Bar(title)


def conclude(
    study: Study,
    out: Path,
    *,
    processes: int | None,
    quiet: bool = False,
    resume: bool = False,
    as_json: bool = False,
) -> int:
    """Runs every cell, writes the report, prints arms and verdicts; 1 if a cell did not end well."""
    from dissensus.experiments.report import write_report
    from dissensus.experiments.study import run_study

    count = min(2, os.cpu_count() or 1) if processes is None else processes
    with shown_progress(quiet, study.name) as progress:  # the bar ends before anything is printed below it
        outcomes = run_study(study, out, processes=count, progress=progress, resume=resume)
    folder = out / study.name
    failed = [o for o in outcomes if o.status != "ok"]
    report = write_report(folder) if len(failed) < len(outcomes) else None
    if report is None:
        said = f"dissensus: every run failed; the first: {failed[0].error} (see {failed[0].path})"
        print(said, file=sys.stderr)
    if as_json:
        print_json(
            {
                "report": str(report.path) if report else None,
                "runs": [vars(outcome) | {"path": str(outcome.path)} for outcome in outcomes],
                "findings": [f.to_dict() for f in report.findings] if report else [],
            }
        )
    elif report is not None:
        print_report(report)
    return 1 if failed else 0


def print_report(report: Report) -> None:
    """The arms, the verdicts, and on the last line the path of the page."""
    from dissensus.experiments.tables import arms_table, verdict_table

    out = console()
    out.print(arms_table(report.results))
    out.print(verdict_table(report.findings))
    out.print(f"\n{report.path}", soft_wrap=True, highlight=False)
