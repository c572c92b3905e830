"""`dissensus bench WHAT`: how fast, as ratios measured in the same run."""

from __future__ import annotations

import argparse
from typing import Any

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
    _show_gaps(result["spectral_gap"])
    _show_exchanges(result["exchange"])
    return 0


def _show_gaps(rows: list[dict[str, Any]]) -> None:
    peers = list(dict.fromkeys(peer for row in rows for peer in row["times_slower_than_ours"]))
    columns = ["case", "route", "error", "ms", *(f"{peer} (x)" for peer in peers)]
    print_table(
        "spectral gap: time, relative error, and how many times slower the peers are",
        columns,
        [
            [
                row["case"],
                row["method"],
                _short(row["relative_error"]),
                _short(1000 * row["seconds"]["ours"]["median"]),
                *(_short(row["times_slower_than_ours"].get(peer)) for peer in peers),
            ]
            for row in rows
        ],
    )


def _show_exchanges(rows: list[dict[str, Any]]) -> None:
    print_table(
        "one exchange on an n x d array: ratios to a memory copy and to the best product, medians (fastest runs)",
        ["case", "d", "dtype", "ms", "of a copy", "of the best product", "limit"],
        [
            [
                row["case"],
                row["d"],
                row["dtype"],
                _short(1000 * row["seconds"]["ours"]["median"]),
                f"{row['ratio_to_copy']:.2f} ({row['ratio_to_copy_of_fastest']:.2f})",
                f"{row['ratio_to_best_product']:.2f} ({row['ratio_to_best_product_of_fastest']:.2f})",
                row["limit"],
            ]
            for row in rows
        ],
    )


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
