"""`dissensus theory exponents`: what gamma = (lr/lr_max)^p does to the disagreement as the learning rate falls."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError
from dissensus.experiments.cli.theory.setting import configure_setting, numbers, read_setting


def configure(parser: Parser) -> None:
    """The options of the verb."""
    configure_setting(parser)
    parser.epilog = (
        "The topology's own parameters are --KEY VALUE pairs. For example:\n"
        "  dissensus theory exponents --p 0,1,2,3 --topology ring --n 8 --lr-max 0.1 --momentum 0.9 \\\n"
        "      --curvature 2,0.7,0.2,0.05 --steps 20000 --figure exponents.png"
    )
    parser.add_argument("--p", default="0,0.5,1,1.5,2,3", help="exponents p of gamma (default 0,0.5,1,1.5,2,3)")
    parser.add_argument("--lr-max", type=float, default=0.1, help="learning rate at which gamma is 1 (default 0.1)")
    parser.add_argument("--lr-min", type=float, help="smallest learning rate looked at (default lr-max / 1000)")
    parser.add_argument("--points", type=int, default=25, help="how many learning rates in between (default 25)")
    parser.add_argument(
        "--memory", type=float, default=0.0,
        help="autocorrelation of the noise: 0 white (default), 1 a constant difference of the workers' data",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, help="length of a cosine to zero: adds freezing time and what is frozen")


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints."""
    from dissensus.theory.exponents import exponents

    setting = read_setting(args)
    low = 1e-3 * args.lr_max if args.lr_min is None else args.lr_min
    if not 0.0 < low < args.lr_max:
        raise UsageError(f"theory: --lr-min must lie between 0 and --lr-max = {args.lr_max:g}, got {low:g}")
    if args.points < 2:
        raise UsageError(f"theory: --points must be at least 2, got {args.points}")
    rates = np.geomspace(args.lr_max, low, args.points)
    rates[0] = args.lr_max
    found = [
        exponents(
            setting.topology, setting.curvature, setting.noise, p=float(p), lr_max=args.lr_max, lrs=rates,
            momentum=args.momentum, order=args.order, nesterov=args.nesterov, memory=args.memory,
        )
        for p in numbers(args.p, "--p")
    ]  # fmt: skip
    rows = [one.to_dict() for one in found]
    if args.steps is not None:
        for row in rows:
            row["annealed"] = _annealed(setting, row["p"], args)
    if args.figure is not None:
        from dissensus.experiments.figures.style import save
        from dissensus.experiments.figures.theory import exponents_figure

        save(exponents_figure(found), Path(args.figure))
    if args.json:
        print_json({"lr_max": args.lr_max, "exponents": rows})
        return 0
    _print(f"{setting.topology!r}", rows)
    return 0


def _annealed(setting: Any, p: float, args: argparse.Namespace) -> dict[str, Any]:
    """What a cosine to zero leaves: by the closed form where there is one."""
    from dissensus.theory.annealed import freezing_time
    from dissensus.theory.freezing import frozen_disagreement
    from dissensus.theory.spectrum import spectral_gap

    gap = float(spectral_gap(setting.topology[0]).value) if setting.topology.is_static else None
    known = setting.topology.is_static and setting.topology.is_symmetric and args.memory == 0.0
    left: tuple[float | None, float | None] = (None, None)
    if known and (setting.curvature >= 0).all():
        left = frozen_disagreement(
            setting.topology, setting.curvature, setting.noise, p=p, lr_max=args.lr_max, steps=args.steps,
            momentum=args.momentum,
        )  # fmt: skip
    return {
        "steps": args.steps,
        "freezing_time": None if not gap else freezing_time(p, gap, args.steps),
        "consensus_distance": left[0],
        "envelope": left[1],
    }


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    for name, what in (
        ("envelope", "envelope ½ tr(HΣ)"),
        ("consensus_distance", "consensus distance"),
        ("ratio", "envelope / excess risk of the mean"),
    ):
        table = []
        for row in rows:
            first, last = row["points"][0], row["points"][-1]
            value, end = first[name], last[name]
            table.append([row["p"], row["limits"][name], row["fates"][name], last["slopes"][name], value, end])
        first, last = rows[0]["points"][0]["lr"], rows[0]["points"][-1]["lr"]
        columns = ["p", "exponent for lr → 0", "it", f"slope at lr {last:.3g}", f"at lr {first:.3g}", f"at {last:.3g}"]
        print_table(f"{what}, {title}", columns, table)
    if "annealed" in rows[0]:
        keys = ["freezing_time", "consensus_distance", "envelope"]
        columns = ["p", "flat modes frozen for the last share", "consensus distance left", "envelope left"]
        table = [[row["p"], *(row["annealed"][k] for k in keys)] for row in rows]
        print_table(f"after a cosine to zero over {rows[0]['annealed']['steps']} steps", columns, table)
