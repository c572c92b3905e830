"""`dissensus simulate CONFIG.toml ...`: one run, n workers in this process; `--problem FILE.npz`: exact quadratics."""

from __future__ import annotations

import argparse

from dissensus.experiments.cli import problem
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.cli.running import cell_of, configure_cell, train_cell


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Files are merged left to right; --SECTION.KEY VALUE overrides them. For example:\n"
        "  dissensus simulate study.toml --arm dsgd --seed 0 --train.workers 16 --topology.name torus\n"
        f"{problem.EXAMPLE.format(verb='simulate')}"
    )
    configure_cell(parser)


def run(args: argparse.Namespace) -> int:
    """Trains one cell, or solves a problem."""
    if args.problem is not None:
        return problem.run(args)
    problem.refuse_without_problem(args)
    return train_cell(args, cell_of(args))
