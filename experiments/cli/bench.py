"""`dissensus bench WHAT`: how fast, as ratios measured in the same run."""

from __future__ import annotations

import argparse

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.add_argument("what", choices=["theory"], help="which benchmark")
    parser.add_argument("--scale", choices=["small", "full"], default="small", help="full goes up to a million workers")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    from dissensus.experiments.bench.theory import bench_theory

    result = bench_theory(args.scale)
    if args.json:
        print_json(result)
        return 0
    for section, rows in result.items():
        if isinstance(rows, list) and rows:
            columns = list(dict.fromkeys(k for row in rows for k in row))
            print_table(section, columns, [[row.get(c) for c in columns] for row in rows])
    return 0
