"""What the verbs that train have in common: a progress bar, a summary, the report's path on the last line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import console, print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from dissensus.experiments.config import Study
    from dissensus.experiments.progress import Progress
    from dissensus.experiments.report import Report
    from dissensus.experiments.runner import Outcome
    from dissensus.experiments.status import CellStatus


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


def configure_cell(parser: Parser) -> None:
    """The options of a verb that trains one cell, or solves a problem."""
    from dissensus.experiments.cli import problem

    parser.open_keys = True
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="CONFIG.toml", help="configuration, merged left to right"
    )
    parser.add_argument("--arm", help="which arm (needed where the configuration has several)")
    parser.add_argument("--seed", type=int, help="which seed (default the first, or 0)")
    parser.add_argument("--out", type=Path, help="where run directories go (default runs)")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint of this run, if it has one"
    )
    configure_tracking(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    problem.configure(parser)


def configure_tracking(parser: Parser) -> None:
    """The option of a verb whose runs can be watched elsewhere."""
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="TRACKER",
        help="copy all records to tensorboard or wandb; may be given twice",
    )


def cell_of(args: argparse.Namespace) -> Study:
    """The one cell that a command line means."""
    from dissensus.experiments.study import check_extras
    from dissensus.experiments.tracking import check_trackers
    from dissensus.theory.errors import nearest

    if not args.files:
        raise UsageError(f"{args.verb}: what? give CONFIG.toml, or --problem FILE.npz for exact quadratics")
    study = loaded(args)
    arms = list(study.arms)
    if args.arm is None and len(arms) > 1:
        raise UsageError(f"{args.verb}: the configuration has the arms {', '.join(arms)}; say which with --arm")
    arm = args.arm or arms[0]
    if arm not in arms:
        raise UsageError(f"{args.verb}: no arm {arm!r}{nearest(arm, arms)}")
    cell = study.cell(arm, study.seeds[0] if args.seed is None else args.seed)
    check_extras([cell])
    check_trackers(args.track)
    return cell


def train_cell(args: argparse.Namespace, cell: Study, **options: Any) -> int:
    """Trains it with a bar, and tells how it ended; `options` are those of `run_cell`."""
    from dissensus.experiments.records import Run
    from dissensus.experiments.runner import run_cell

    arm, _, seed = cell.only
    with shown_progress(args.quiet or args.json, f"{cell.name} {arm}") as progress:
        progress.begin(1, cell.train.steps)
        told = _Told(progress)
        outcome = run_cell(cell, args.out or Path("runs"), told.until, resume=args.resume, track=args.track, **options)
        progress.finish(outcome)
    summary = Run.read(outcome.path).summary
    if args.json:
        print_json({"path": str(outcome.path), **summary})
    else:
        numbers = [[k.replace("_", " "), v] for k, v in summary.items() if not isinstance(v, dict | list)]
        print_table("", ["", f"{arm}, seed {seed}"], numbers)
        print(outcome.path)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return 0 if outcome.status == "ok" else 1


class _Told:
    """What a bar has been told; a run that is resumed starts further on."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0

    def until(self, t: int) -> None:
        """So many steps are done."""
        self._progress.advance(t - self._done)
        self._done = t


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
    as_json: bool = False,
    **options: Any,
) -> int:
    """Runs every cell, writes the report, prints arms and verdicts; `options` are those of `run_study`."""
    from dissensus.experiments.study import run_study

    count = min(2, os.cpu_count() or 1) if processes is None else processes
    with shown_progress(quiet, study.name) as progress:  # the bar ends before anything is printed below it
        outcomes = run_study(study, out, processes=count, progress=progress, **options)
    return tell(study, out, outcomes, as_json=as_json)


def tell(study: Study, out: Path, outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Writes the report of a study that has run, prints arms and verdicts; 1 if a cell did not end well."""
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.report import write_report

    failed = [o for o in outcomes if o.status != "ok"]
    report, said = None, f"every run failed; the first: {failed[0].error} (see {failed[0].path})" if failed else ""
    if len(failed) < len(outcomes):
        try:
            report = write_report(out / study.name)
        except ConfigError as error:  # the runs are told all the same
            said = f"there is no report: {error}"
    if report is None:
        print(f"dissensus: {said}", file=sys.stderr)
    if as_json:
        print_json(
            {
                "report": str(report.path) if report else None,
                "tables": str(report.tables) if report else None,
                "runs": [vars(outcome) | {"path": str(outcome.path)} for outcome in outcomes],
                "findings": [f.to_dict() for f in report.findings] if report else [],
            }
        )
    elif report is not None:
        print_report(report, out / study.name)
    return 1 if failed or report is None else 0


def unfinished(folder: Path) -> list[CellStatus]:
    """The cells of the study in a folder that have not ended well, those that were never begun among them."""
    from dissensus.experiments.status import StudyStatus

    status = StudyStatus.read(folder)
    return status.left if status is not None else []


def print_report(report: Report, folder: Path) -> None:
    """The arms, the verdicts, what did not end well, and on the last line the path of the page."""
    from dissensus.experiments.tables import arms_table, verdict_table

    out = console()
    out.print(arms_table(report.results))
    out.print(verdict_table(report.findings))
    if left := unfinished(folder):
        out.print("\nRuns that did not finish, which are in no number above:", highlight=False)
        for cell in left:
            out.print(f"  {cell}", soft_wrap=True, highlight=False, markup=False)
    out.print(f"\n{report.path}", soft_wrap=True, highlight=False)
