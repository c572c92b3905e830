"""`dissensus report FOLDER`: the page of a study and its tables, made again from its records."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.output import print_json
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.running import print_report, unfinished


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.add_argument("folder", type=Path, help="the folder of a study, for example runs/demo")
    parser.add_argument("--to", type=Path, help="where the page goes (default report.html in the folder)")
    parser.add_argument(
        "--tables", type=Path, help="where its tables as CSV, Markdown and LaTeX go (default tables beside the page)"
    )
    parser.add_argument("--no-tables", action="store_true", help="only the page")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Reads the records and writes the page and its tables."""
    if args.tables and args.no_tables:
        raise UsageError("report: --tables says where tables go and --no-tables that there are none: give one of them")
    from dissensus.experiments.report import write_report

    report = write_report(args.folder, args.to, tables=args.tables, with_tables=not args.no_tables)
    if args.json:
        print_json(
            {
                "report": str(report.path),
                "tables": report.tables and str(report.tables),
                "findings": [f.to_dict() for f in report.findings],
                "unfinished": [cell.to_dict() for cell in unfinished(args.folder)],
            }
        )
    else:
        print_report(report, args.folder)
    return 0
