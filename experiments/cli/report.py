"""`dissensus report FOLDER`: the page of a study, made again from its records."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.output import print_json
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.cli.running import print_report, unfinished


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.add_argument("folder", type=Path, help="the folder of a study, for example runs/demo")
    parser.add_argument("--to", type=Path, help="where the page goes (default report.html in the folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Reads the records and writes the page."""
    from dissensus.experiments.report import write_report

    report = write_report(args.folder, args.to)
    if args.json:
        said = {"report": str(report.path), "findings": [f.to_dict() for f in report.findings]}
        print_json(said | {"unfinished": [cell.to_dict() for cell in unfinished(args.folder)]})
    else:
        print_report(report, args.folder)
    return 0
