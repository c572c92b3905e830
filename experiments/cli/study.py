"""`dissensus study CONFIG.toml ...`: arms x seeds, paired statistics, one report."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.output import print_json
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.cli.running import conclude, loaded


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = (
        "Files are merged left to right; --SECTION.KEY VALUE overrides them. For example:\n"
        "  dissensus study base.toml ring.toml --train.steps 500 --seeds [0,1,2]\n"
        "  dissensus study base.toml --grid.lr.peak [0.05,0.1] --grid.arms.dsgd-ac.p [1.0,2.0,3.0]"
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="CONFIG.toml", help="configuration, merged left to right"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where run directories go (default runs)")
    parser.add_argument("--processes", type=int, help="how many runs at a time (default: the cores, at most 2)")
    parser.add_argument("--resume", action="store_true", help="run only what has not ended well yet")
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Runs the study."""
    study = loaded(args)
    if args.print_config:
        from dissensus.experiments.config import resolved
        from dissensus.experiments.toml import write_toml

        if args.json:
            print_json({"config": resolved(study)})
        else:
            print(write_toml(resolved(study)))
        return 0
    quiet = args.quiet or args.json
    return conclude(study, args.out, processes=args.processes, quiet=quiet, resume=args.resume, as_json=args.json)
