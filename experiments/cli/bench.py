"""`dissensus bench WHAT`: how fast, as ratios measured in the same run."""

from __future__ import annotations

import argparse
from typing import Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.errors import ConfigError

PARTS_OF_OURS = ("gradients", "mixing", "move", "rest")


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "what", choices=["theory", "simulate", "probes", "distributed", "runtime"], help="which benchmark"
    )
    parser.add_argument(
        "--scale", choices=["small", "full"], default="small", help="full takes minutes: more workers, larger sizes"
    )
    parser.add_argument(
        "--only",
        metavar="PART[,PART]",
        type=lambda text: text.split(","),
        help="of simulate: only some of limit, processes, loop, memory; "
        "of probes: of products, trace, eigenvalues, end-to-end, coverage; "
        "of distributed: of loopback, bandwidth, latency, noise, memory; "
        "of runtime: of simulator, validation (7 minutes), replays",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    if args.what == "simulate":
        from dissensus.experiments.bench.simulate import PARTS, bench_simulate

        result, show = bench_simulate(args.scale, parts=args.only or PARTS), _show_simulation
    elif args.what == "probes":
        from dissensus.experiments.bench.probes import PARTS as PROBE_PARTS
        from dissensus.experiments.bench.probes import bench_probes

        result, show = bench_probes(args.scale, parts=args.only or tuple(PROBE_PARTS)), _show_probes
    elif args.what == "distributed":
        from dissensus.experiments.bench.distributed import PARTS as DISTRIBUTED_PARTS
        from dissensus.experiments.bench.distributed import bench_distributed
        from dissensus.experiments.cli.bench_distributed import show_distributed

        result, show = bench_distributed(args.scale, parts=args.only or DISTRIBUTED_PARTS), show_distributed
    elif args.what == "runtime":
        from dissensus.experiments.bench.runtime import PARTS as RUNTIME_PARTS
        from dissensus.experiments.bench.runtime import bench_runtime
        from dissensus.experiments.cli.bench_runtime import show_runtime

        result, show = bench_runtime(args.scale, parts=args.only or RUNTIME_PARTS), show_runtime
    elif args.only:
        raise ConfigError(f"--only {','.join(args.only)} is for `bench simulate`; `bench {args.what}` has no parts")
    else:
        from dissensus.experiments.bench.theory import bench_theory

        result, show = bench_theory(args.scale), _show_theory
    if args.json:
        print_json(result)
    else:
        show(result)
    if result.get("interrupted"):
        raise KeyboardInterrupt  # what was measured until then has been printed
    return 1 if result.get("failed") else 0


def _show_theory(result: dict[str, Any]) -> None:
    _show_gaps(result["spectral_gap"])
    _show_exchanges(result["exchange"])
    _show_predictions(result["prediction"])


def _show_simulation(result: dict[str, Any]) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        rows.setdefault(row["part"], []).append(row)
    shows = {"limit": _show_limits, "processes": _show_processes, "loop": _show_loops, "memory": _show_memory}
    for part, show in shows.items():
        if part in rows:
            show(rows[part])


def _show_probes(result: dict[str, Any]) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        rows.setdefault(row["part"], []).append(row)
    for part, some in rows.items():
        _show_products(some) if part == "products" else _show_plainly(part, some)
    for part, reason in result["skipped"].items():
        print(f"{part}: skipped, {reason}")


def _show_products(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        ratio = "no peer is installed" if row["ratio"] is None else f"{row['ratio']:.2f} of {row['fastest_peer']}"
        print_table(
            f"{row['case']}, {row['parameters']} parameters, blocks of {row['block']}: {row['route']}, {ratio}",
            ["who", "gradients a vector", "ms", "setup in gradients", "with setup shared", "error"],
            [
                [
                    name,
                    _short(row["gradients"][name]),
                    _ms(row["seconds"][name]),
                    _short(row["setup_gradients"].get(name)),
                    _short(row["gradients_with_setup_shared"].get(name)),
                    _short(row["relative_error"].get(name)),
                ]
                for name in row["gradients"]
            ],
        )


def _show_plainly(part: str, rows: list[dict[str, Any]]) -> None:
    """Every number and word of the rows, as they are."""
    columns = [key for key, value in rows[0].items() if key != "part" and not isinstance(value, (dict, list))]
    cells = [[_short(v) if isinstance(v, float) else v for v in (row.get(c) for c in columns)] for row in rows]
    print_table(part, columns, cells)


def _show_limits(rows: list[dict[str, Any]]) -> None:
    print_table(
        "a step of n workers against one gradient on all their samples: medians in ms (ratio of fastest runs)",
        ["model", "n", "optimizer", "threads", "big step", "ours", "ratio", "limit", "met", "agree", *PARTS_OF_OURS],
        [
            [
                *(row[key] for key in ("case", "n", "optimizer", "threads")),
                _ms(row["seconds"]["big step"]),
                _ms(row["seconds"]["ours"]),
                f"{row['ratio']:.2f} ({row['ratio_of_fastest']:.2f})",
                *(row[key] for key in ("limit", "met", "agree")),
                *(_ms(row["parts_of_ours"][part]) for part in PARTS_OF_OURS),
            ]
            for row in rows
        ],
    )


def _show_processes(rows: list[dict[str, Any]]) -> None:
    who = ("processes, front door", "processes, by hand", "ours")
    print_table(
        "worker-steps per second: a process per worker and ours, medians (ratio of fastest runs)",
        ["model", "n", "threads", *who, "times more", "limit", "met", "agree"],
        [
            [
                *(row[key] for key in ("case", "n", "threads")),
                *(f"{row['worker_steps_per_second'][name]:.0f}" for name in who),
                f"{row['times_more']:.2f} ({row['times_more_of_fastest']:.2f})",
                *(row[key] for key in ("limit", "met", "agree")),
            ]
            for row in rows
        ],
    )


def _show_loops(rows: list[dict[str, Any]]) -> None:
    who = ("python loop", "tuned python loop", "ours, auto", "ours, vmap", "ours, loop")
    print_table(
        "a step of n workers against loops over n modules: medians in ms (ratios of fastest runs)",
        ["model", "n", "threads", *who, "faster than loop", "of the faster loop", "limit", "met", "agree"],
        [
            [
                *(row[key] for key in ("case", "n", "threads")),
                *(_ms(row["seconds"][name]) for name in who),
                f"{row['times_faster_than_python_loop']:.2f} ({row['times_faster_than_python_loop_of_fastest']:.2f})",
                f"{row['times_slower_than_faster_loop']:.2f} ({row['times_slower_than_faster_loop_of_fastest']:.2f})",
                *(row[key] for key in ("limit", "met", "agree")),
            ]
            for row in rows
        ],
    )


def _show_memory(rows: list[dict[str, Any]]) -> None:
    kinds = ("resident", "allocated")
    described = ("case", "n", "d", "optimizer", "chunk")
    columns = ["model", *described[1:], *kinds, "activations", *(f"{k} beside" for k in kinds), "limit", "met"]
    print_table(
        "the largest memory of a step in units of n d numbers, engine included; activations are an ordinary module's",
        columns,
        [
            [
                *(row[key] for key in described),
                *(f"{row['units'][kind]:.2f}" for kind in kinds),
                f"{row['units_of_activations']:.2f}",
                *(f"{row['units_without_activations'][kind]:.2f}" for kind in kinds),
                *(row[key] for key in ("limit", "met")),
            ]
            for row in rows
        ],
    )


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
        ["case", "d", "dtype", "ms", "of a copy", "of the best product", "engine", "limit"],
        [
            [
                row["case"],
                row["d"],
                row["dtype"],
                _short(1000 * row["seconds"]["ours"]["median"]),
                f"{row['ratio_to_copy']:.2f} ({row['ratio_to_copy_of_fastest']:.2f})",
                f"{row['ratio_to_best_product']:.2f} ({row['ratio_to_best_product_of_fastest']:.2f})",
                f"{row['engine_ratio_to_copy' if row['one_peer'] else 'engine_ratio_to_best_product']:.2f}",
                row["limit"],
            ]
            for row in rows
        ],
    )


def _show_predictions(rows: list[dict[str, Any]]) -> None:
    print_table(
        "predictions and certificates: seconds, other ways to the same number, and how far they are apart",
        ["case", "seconds", "limit", "met", "another way", "times slower", "apart"],
        [
            [
                row["case"],
                _short(row["seconds"]["ours"]["median"]),
                *(row[key] for key in ("limit", "met")),
                ", ".join(row["times_slower_than_ours"]),
                ", ".join(f"{times:.2f}" for times in row["times_slower_than_ours"].values()),
                ", ".join(f"{apart:.1e}" for apart in row["relative_difference"].values()),
            ]
            for row in rows
        ],
    )


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def _ms(spread: dict[str, float]) -> str:
    return f"{1000 * spread['median']:.3g}"
