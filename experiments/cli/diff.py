"""`dissensus diff A B`: what differs between two configurations, two studies or two runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser

if TYPE_CHECKING:
    from dissensus.experiments.difference import Pairs, Subject


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Each is a TOML file, the folder of a study, or a run directory. Of two runs, what they were given (versions,\n"
        "hashes of data, order, start and topology) and how they ended is compared, too. For example:\n"
        "  dissensus diff base.toml ring.toml\n"
        "  dissensus diff runs/first/dsgd-s0-1a2b3c4d runs/first/dsgd-s1-5e6f7a8b"
    )
    parser.add_argument("a", type=Path, metavar="A", help="a configuration file, a study folder or a run directory")
    parser.add_argument("b", type=Path, metavar="B", help="what it is compared with")
    parser.add_argument("--exit-code", action="store_true", help="1 if anything differs")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Compares the two."""
    from dissensus.experiments.difference import Comparison, Subject

    a, b = Subject.read(args.a), Subject.read(args.b)
    found = Comparison.of(a, b)
    if args.json:
        told = {"a": a.name, "b": b.name, "equal": found.equal, "configuration": _pairs(found.configuration)}
        print_json(told | {"runs": None if found.facts is None else _pairs(found.facts)})
    else:
        _print("the configurations", "the configurations are equal", found.configuration, a, b)
        if found.facts is not None:
            same = "the runs were given the same and ended alike"
            _print("the runs: what they were given, and how they ended", same, found.facts, a, b)
    return 1 if args.exit_code and not found.equal else 0


def _pairs(pairs: Pairs) -> dict[str, Any]:
    return {key: {"a": a, "b": b} for key, (a, b) in pairs.items()}


def _print(what: str, same: str, pairs: Pairs, a: Subject, b: Subject) -> None:
    if not pairs:
        print(same)
        return
    print_table(f"What differs between {what}", ["key", a.name, b.name], [[key, *pair] for key, pair in pairs.items()])
