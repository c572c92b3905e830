"""`dissensus simulate CONFIG.toml ...`: one run, n workers in this process; `--problem FILE.npz`: exact quadratics."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli import problem
from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.running import loaded, shown_progress


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = (
        "Files are merged left to right; --SECTION.KEY VALUE overrides them. For example:\n"
        "  dissensus simulate study.toml --arm dsgd --seed 0 --train.workers 16 --topology.name torus\n"
        f"{problem.EXAMPLE}"
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="CONFIG.toml", help="configuration, merged left to right"
    )
    parser.add_argument("--arm", help="which arm (needed where the configuration has several)")
    parser.add_argument("--seed", type=int, help="which seed (default the first, or 0)")
    parser.add_argument("--out", type=Path, help="where run directories go (default runs)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    problem.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Trains one cell, or solves a problem."""
    if args.problem is not None:
        return problem.run(args)
    problem.refuse_without_problem(args)
    if not args.files:
        raise UsageError("simulate: what? give CONFIG.toml, or --problem FILE.npz for exact quadratics")
    return _run_cell(args)


def _run_cell(args: argparse.Namespace) -> int:
    from dissensus.experiments.records import Run
    from dissensus.experiments.runner import run_cell
    from dissensus.experiments.study import check_extras
    from dissensus.theory.errors import nearest

    study = loaded(args)
    arms = list(study.arms)
    if args.arm is None and len(arms) > 1:
        raise UsageError(f"simulate: the configuration has the arms {', '.join(arms)}; say which with --arm")
    arm = args.arm or arms[0]
    if arm not in arms:
        raise UsageError(f"simulate: no arm {arm!r}{nearest(arm, arms)}")
    cell = study.cell(arm, study.seeds[0] if args.seed is None else args.seed)
    check_extras([cell])
    with shown_progress(args.quiet or args.json, f"{study.name} {arm}") as progress:
        progress.begin(1, cell.train.steps)
        outcome = run_cell(cell, args.out or Path("runs"), lambda _: progress.advance(1))
        progress.finish(outcome)
    summary = Run.read(outcome.path).summary
    if args.json:
        print_json({"path": str(outcome.path), **summary})
    else:
        numbers = [[k.replace("_", " "), v] for k, v in summary.items() if not isinstance(v, dict | list)]
        print_table("", ["", f"{arm}, seed {outcome.seed}"], numbers)
        print(outcome.path)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return 0 if outcome.status == "ok" else 1
