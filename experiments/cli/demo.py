"""`dissensus demo`: the whole thread on real data, and a report to look at."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.cli.running import conclude


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Trains 8 workers on the digits of scikit-learn with centralized SGD, DSGD and DSGD-AC, paired over seeds,\n"
        "looks at curvature and disagreement on the way, and writes a run directory with one HTML report."
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where run directories go (default runs)")
    parser.add_argument("--seeds", type=int, default=5, help="how many paired seeds (default 5)")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps each run takes (default 1000)")
    parser.add_argument("--processes", type=int, help="how many runs at a time (default: the cores, at most 2)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Runs the demo."""
    from dissensus.experiments.demo import check_extras, demo_study

    study = demo_study(args.seeds, args.steps)
    check_extras()
    return conclude(study, args.out, processes=args.processes, quiet=args.quiet)
