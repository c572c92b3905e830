"""`dissensus study CONFIG.toml ...`: arms x seeds, paired statistics, one report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.running import conclude, configure_tracking, loaded, shown_progress, tell
from dissensus.experiments.cli.together import as_one_of_them, check_processes, check_shares, configure_processes

if TYPE_CHECKING:
    from dissensus.experiments.config import Study


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = (
        "Files are merged left to right; --SECTION.KEY VALUE overrides them. For example:\n"
        "  dissensus study base.toml ring.toml --train.steps 500 --seeds [0,1,2]\n"
        "  dissensus study base.toml --status            # or: dissensus study runs/NAME --status\n"
        "  dissensus study base.toml --nproc 4           # or torchrun --nproc-per-node 4 -m dissensus study ...\n"
        "  dissensus study base.toml --grid.lr.peak [0.05,0.1] --grid.arms.dsgd-ac.p [1.0,2.0,3.0]"
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="CONFIG.toml", help="configuration, merged left to right"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where run directories go (default runs)")
    parser.add_argument("--processes", type=int, help="how many runs at a time (default: the cores, at most 2)")
    parser.add_argument("--resume", action="store_true", help="run only what has not ended well yet")
    parser.add_argument("--status", action="store_true", help="print how far every run is, and stop")
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and stop")
    configure_tracking(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    configure_processes(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the study."""
    if args.status:
        return _status(args)
    study = loaded(args)
    if args.print_config:
        from dissensus.experiments.config import resolved
        from dissensus.experiments.toml import write_toml

        if args.json:
            print_json({"config": resolved(study)})
        else:
            print(write_toml(resolved(study)))
        return 0
    from dissensus.experiments.processes import count

    there = count()
    processes = there or args.nproc
    if processes is None:
        quiet = args.quiet or args.json
        options = {"processes": args.processes, "resume": args.resume, "track": args.track}
        return conclude(study, args.out, quiet=quiet, as_json=args.json, **options)
    _check(args, study, processes)
    if there is not None:
        return as_one_of_them("study", lambda: _in_step(args, study))
    return _led(args, study)


def _status(args: argparse.Namespace) -> int:
    """Prints every cell of a study, given by its files or by the folder of its runs."""
    from dissensus.experiments.records import STUDY_FILE
    from dissensus.experiments.status import StudyStatus

    folder = args.files[0] if len(args.files) == 1 and args.files[0].is_dir() else None
    if folder is not None:
        args.files = [folder / STUDY_FILE]
    study = loaded(args)
    found = StudyStatus.of(study, folder or args.out / study.name)
    if args.json:
        cells = [cell.to_dict() for cell in found.cells]
        left = {"left": len(found.left), "seconds_left": found.seconds_left}
        print_json({"name": found.name, "runs": cells, **left})
    else:
        rows = [[c.arm, c.seed, c.status, c.wall_s, c.error or None] for c in found.cells]
        print_table("", ["arm", "seed", "status", "wall time, s", "error"], rows)
        print(found)
    return 0


def _check(args: argparse.Namespace, study: Study, processes: int) -> None:
    """Reads everything there is to be wrong before any process starts."""
    from dissensus.experiments.study import check_extras
    from dissensus.experiments.tracking import check_trackers

    check_processes(args)
    if args.processes is not None:
        raise UsageError(
            "study: --processes runs several cells at a time, each in one process; where processes share the workers "
            "of a cell (--nproc, torchrun) cells run one after the other: leave one of the two out"
        )
    cells = study.cells()
    for cell in cells:
        what = f"train.workers = {cell.train.workers} of arm {cell.only[0]}"
        check_shares("study", what, cell.train.workers, processes)
    check_extras(cells)
    check_trackers(args.track)


def _in_step(args: argparse.Namespace, study: Study) -> int:
    """Is one of the processes; under torchrun the first one tells what came of it."""
    from dissensus.experiments.in_step import run_in_step
    from dissensus.experiments.processes import joined, launched

    code = 0
    with joined(args.backend, timeout=args.timeout) as crew:
        with shown_progress(args.quiet or args.json or not crew.first, study.name) as progress:
            outcomes = run_in_step(study, args.out, crew, progress=progress, resume=args.resume, track=args.track)
        with crew.only_first():
            if crew.first and not launched():
                code = tell(study, args.out, outcomes, as_json=args.json)
    return code


def _led(args: argparse.Namespace, study: Study) -> int:
    """Starts the processes, again where a cell has failed in training, until all cells have ended; then tells."""
    from dissensus.experiments.in_step import concluded
    from dissensus.experiments.launcher import launch
    from dissensus.experiments.study import begin_study

    begin_study(study, args.out)
    cells = len(study.cells())
    while len(done := concluded(study, args.out, resume=args.resume)) < cells:
        ending = launch([sys.executable, "-m", "dissensus", "study", *args.given], args.nproc)
        if ending.code == 130:
            return 130
        if len(concluded(study, args.out, resume=args.resume)) == len(done):  # nothing came of it
            if ending.said:
                print(f"dissensus: study: {ending.said}", file=sys.stderr)
            return ending.code or 1
    return tell(study, args.out, list(done.values()), as_json=args.json)
