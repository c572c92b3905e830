"""`dissensus theory ledger`: how tight every bound is, on random and on searched instances; as a page, as a figure."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError


def configure(parser: Parser) -> None:
    """The options of the part."""
    parser.add_argument("names", nargs="*", metavar="BOUND", help="only these bounds (default: all)")
    parser.add_argument("--instances", type=int, default=1000, help="random instances per bound (default 1000)")
    parser.add_argument("--searches", type=int, default=200, help="instances of the search, per family (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the instances (default 0)")
    parser.add_argument("--processes", type=int, help="how many at once (default: all cores, at most 8)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table as a page of Markdown")
    parser.add_argument(
        "--figure", type=Path, metavar="PATH", help="also draw the slack of every bound: a .png, .svg or .pdf file"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Measures, prints and writes; exit code 1 where a bound was broken."""
    from dissensus.theory.ledger import ledger
    from dissensus.theory.trials import left_out

    if args.instances < 1 or args.searches < 0:
        raise UsageError("theory ledger: --instances must be at least 1 and --searches at least 0")
    processes = args.processes or min(os.cpu_count() or 1, 8)
    rows = ledger(args.names, instances=args.instances, searches=args.searches, seed=args.seed, processes=processes)
    if args.write is not None:
        from dissensus.experiments.ledger_page import page
        from dissensus.experiments.loading import write_whole

        write_whole(args.write, page(rows, instances=args.instances, searches=args.searches, seed=args.seed))
    if args.figure is not None:
        from dissensus.experiments.figures.bounds import tightness_figure
        from dissensus.experiments.figures.style import save

        save(tightness_figure(rows), args.figure)
    missing = [family for family in left_out() if family.bound in {row.bound for row in rows}]
    if missing:
        packages, names = (", ".join(sorted({getattr(f, of) for f in missing})) for of in ("needs", "bound"))
        sys.stderr.write(f'note: no exact worst cases of {names} without {packages}: pip install "dissensus[theory]"\n')
    if args.json:
        print_json({"rows": [row.to_dict() for row in rows], "violations": sum(row.violations for row in rows)})
    else:
        keys = ["bound", "family", "instances", "violations", "smallest", "median", "searched", "certificate"]
        print_table(
            "slack: bound over measured, 1 where the bound is attained",
            keys,
            [[row.to_dict()[key] for key in keys] for row in rows],
        )
    return 1 if any(row.violations for row in rows) else 0
