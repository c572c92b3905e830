"""`dissensus demo`: the whole thread on real data, and a report to look at."""

from __future__ import annotations

import argparse
from pathlib import Path

from dissensus.experiments.cli.parsing import Parser


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.epilog = (
        "Trains 8 workers on the digits of scikit-learn with centralized SGD, DSGD and DSGD-AC, paired over seeds,\n"
        "looks at curvature and disagreement on the way, and writes a run directory with one HTML report."
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where run directories go (default runs)")
    parser.add_argument("--seeds", type=int, default=5, help="how many paired seeds (default 5)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
