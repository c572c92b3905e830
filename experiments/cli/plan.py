"""`dissensus plan MODEL --cluster ...`: when decentralization pays, on a stated or a measured cluster.

Three uses: rank schedules for a model on a cluster; measure the machines one has (`--calibrate`, under torchrun or with
`--nproc N`); find which worker should live on which device where links differ (`--place`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from dissensus.experiments.planning.ranking import Plan


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.usage = (
        "dissensus plan MODEL --cluster NAME|FILE.toml|FILE.json [--compute SECONDS] [--sigma S] [--json]\n"
        "       dissensus plan --calibrate FILE.json [--nproc N] [--parameters P] [--json]\n"
        "       dissensus plan --place LINKS [--topology NAME] [--bytes B] [--json]\n"
        "       dissensus plan --list [--json]"
    )
    parser.epilog = (
        "MODEL is a name (see --list) or a number of parameters, as in 124M. For example:\n"
        "  dissensus plan resnet50 --cluster a40-25g --compute 0.12 --sigma 0.1 --figures plan\n"
        "  dissensus plan --calibrate cluster.json --nproc 4 --parameters 1M\n"
        "  torchrun --nproc-per-node 8 --nnodes 4 ... -m dissensus plan --calibrate cluster.json\n"
        "  dissensus plan 25M --cluster cluster.json\n"
        "  dissensus plan --place dt-fm-two-universities --topology one-peer-exponential"
    )
    parser.add_argument("model", nargs="?", help="its name, or how many parameters it has: 1e6, 25M, 1.3B")
    parser.add_argument("--list", action="store_true", help="list models and clusters that are known by name")
    group = parser.add_argument_group("the machine")
    group.add_argument(
        "--cluster", metavar="NAME|FILE", help="a preset, a cluster.toml, or what --calibrate has written"
    )
    group.add_argument("--compute", type=float, metavar="S", help="seconds that a step computes, without communication")
    group.add_argument("--sigma", type=float, metavar="S", help="standard deviation of that, as a share (log-normal)")
    group = parser.add_argument_group("what is compared")
    group.add_argument("--topology", nargs="+", default=[], metavar="NAME", help="only these")
    group.add_argument(
        "--order", choices=["awc", "atc", "cta"], default="awc", help="what waits for what (default awc)"
    )
    group.add_argument("--every", type=int, default=1, metavar="H", help="exchange every H-th step only (default 1)")
    group.add_argument("--message-dtype", choices=["float32", "bfloat16"], default="float32", help="of an exchange")
    group.add_argument(
        "--begins", type=float, default=0.4, metavar="F", help="share of computing before all-reduce sends"
    )
    group.add_argument("--buckets", type=int, default=10, metavar="B", help="of an all-reduce that overlaps")
    group.add_argument("--memory", type=float, default=0.9, help="memory at which neighbours are counted (default 0.9)")
    group.add_argument("--seed", type=int, default=0, help="of simulation and search")
    group.add_argument("--figures", type=Path, metavar="DIR", help="gets timeline.png, surface.png and size.png")
    group = parser.add_argument_group("measuring")
    group.add_argument("--calibrate", type=Path, metavar="FILE.json", help="measure these machines into this file")
    group.add_argument("--nproc", type=int, metavar="N", help="start N processes here; torchrun starts them itself")
    group.add_argument("--backend", choices=["gloo", "nccl"], help="default nccl where there are CUDA devices")
    group.add_argument(
        "--parameters", metavar="P", default="1M", help="of the model whose steps are timed (default 1M)"
    )
    group = parser.add_argument_group("placement")
    group.add_argument(
        "--place",
        metavar="LINKS",
        help="dt-fm-data-centre, -spot-instances, -two-universities, -four-regions, -eight-regions, or an .npz",
    )
    group.add_argument("--pipeline", metavar="SxD", help="place S stages of D devices each, as DT-FM does")
    group.add_argument("--bytes", type=float, default=1e8, metavar="B", help="of a message of --topology (default 1e8)")
    group.add_argument(
        "--gradient-bytes", type=float, metavar="B", help="of a stage of --pipeline (default: GPT-3 XL's)"
    )
    group.add_argument("--activation-bytes", type=float, metavar="B", help="between stages (default: GPT-3 XL's)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Lists, measures, places or ranks."""
    uses = [name for name, asked in _uses(args).items() if asked]
    if len(uses) != 1:
        told = " and ".join(uses) if uses else "nothing"
        raise UsageError(f"plan: asked for {told}; give one of MODEL, --calibrate FILE.json, --place LINKS and --list")
    if args.list:
        return _list(as_json=args.json)
    if args.calibrate is not None:
        from dissensus.experiments.cli.plan_calibrate import calibrate

        return calibrate(args)
    if args.place is not None:
        from dissensus.experiments.cli.plan_place import place

        return place(args)
    return _rank(args)


def parameters_of(text: str) -> int:
    """A number of parameters as people write it, or that of a model known by name."""
    from dissensus.experiments.planning.ranking import MODELS
    from dissensus.theory.errors import nearest

    if text in MODELS:
        return MODELS[text][0]
    units = {"k": 1e3, "m": 1e6, "b": 1e9}
    unit = units.get(text[-1:].lower(), 1.0)
    try:
        count = float(text[:-1] if unit > 1 else text) * unit
        if not 1 <= count <= 1e15:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"plan: {text!r} is neither a number of parameters (25M) nor a known model{nearest(text, MODELS)}"
        ) from None
    return round(count)


def _uses(args: argparse.Namespace) -> dict[str, bool]:
    return {
        "MODEL": args.model is not None,
        "--calibrate": args.calibrate is not None,
        "--place": args.place is not None,
        "--list": args.list,
    }


def _rank(args: argparse.Namespace) -> int:
    from dissensus.experiments.planning.machines import machine
    from dissensus.experiments.planning.ranking import make_plan

    parameters = parameters_of(args.model)
    if args.cluster is None:
        raise UsageError(
            "plan: which cluster? give --cluster with a preset (see --list), a cluster.toml, or a calibration"
        )
    for flag, value in (("--compute", args.compute), ("--sigma", args.sigma)):
        if value is not None and not (value > 0 or (flag == "--sigma" and value == 0)):
            raise UsageError(f"plan: {flag} must be a number {'>= 0' if flag == '--sigma' else '> 0'}, got {value:g}")
    found = machine(args.cluster, seconds=args.compute, deviation=args.sigma)
    plan = make_plan(
        found,
        parameters,
        topologies=args.topology,
        order=args.order,
        every=args.every,
        message_bytes=2 if args.message_dtype == "bfloat16" else 4,
        begins=args.begins,
        buckets=args.buckets,
        memory=args.memory,
        seed=args.seed,
    )
    if args.figures is not None:
        from dissensus.experiments.planning.pictures import draw

        draw(plan, found, args.figures)
    if args.json:
        print_json(plan.to_dict())
    else:
        _show(plan)
    if args.figures is not None:
        print(f"figures: {args.figures}", file=sys.stderr)
    return 0


def _show(plan: Plan) -> None:
    n = plan.workers
    print(
        f"{plan.machine}: {n} workers, {plan.parameters:,} parameters; a step computes "
        f"{_ms(plan.compute_seconds)} ms ({plan.compute}); all-reduce takes {_ms(plan.all_reduce_seconds)} ms, "
        f"gamma = {plan.gamma:.3g}"
    )
    rows: list[list[Any]] = [
        ["all-reduce, overlapped", _ms(plan.iteration_all_reduce_overlapped), 1.0, None, None, float(n), None, None],
        [
            "all-reduce, not overlapped",
            _ms(plan.iteration_all_reduce),
            round(plan.iteration_all_reduce_overlapped / plan.iteration_all_reduce, 3),
            *[None, None, float(n), None, None],
        ],
    ]
    rows += [
        [
            row.topology,
            f"{_ms(row.iteration_seconds)} ± {1000 * row.standard_error:.1g}",
            round(row.speedup, 3),
            round(row.guaranteed_speedup, 3),
            _ms(row.exchange_seconds),
            None if row.effective_neighbours is None else round(row.effective_neighbours, 2),
            None if row.neighbours_per_second is None else round(row.neighbours_per_second, 1),
            "exact" if row.exact_after is not None else _rounded(row.contraction_per_second),
        ]
        for row in plan.rows
    ]
    print_table(
        "an iteration",
        [
            "schedule",
            "ms",
            "speed-up",
            "guaranteed",
            "exchange, ms",
            "neighbours",
            "per second",
            "contraction per second",
        ],
        rows,
    )
    for name, why in plan.left_out.items():
        print(f"{name}: left out, {why}")
    print(plan.recommendation)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.01 else f"{1000 * seconds:,.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _list(*, as_json: bool) -> int:
    from dissensus.experiments.planning.machines import PRESETS
    from dissensus.experiments.planning.ranking import MODELS

    if as_json:
        print_json(
            {
                "models": {name: {"parameters": count, "about": about} for name, (count, about) in MODELS.items()},
                "clusters": {
                    name: {"nodes": c.nodes, "workers_per_node": c.per_node, "about": about}
                    for name, (c, about) in PRESETS.items()
                },
            }
        )
        return 0
    print_table("models", ["name", "parameters", "what it is"], [[k, f"{n:,}", s] for k, (n, s) in MODELS.items()])
    print_table("clusters", ["name", "workers", "what it is"], [[k, c.size, s] for k, (c, s) in PRESETS.items()])
    return 0
