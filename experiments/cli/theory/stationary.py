"""`dissensus theory stationary`: the disagreement that theory expects on a quadratic with gradient noise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.cli.theory.setting import configure_setting, matching, read_setting

_SHOWN = 40
"""Rows of the table of modes that people are shown; --json has all."""


def configure(parser: Parser) -> None:
    """The options of the verb."""
    configure_setting(parser)
    parser.epilog = (
        "The topology's own parameters are --KEY VALUE pairs. For example:\n"
        "  dissensus theory stationary --topology ring --n 8 --lr 0.1 --momentum 0.9 --gamma 0.3 \\\n"
        "      --order awc --curvature 2,0.7,0.2 --noise 1,1,1 --figure stationary.png"
    )
    parser.add_argument("--lr", type=float, required=True, help="learning rate")
    parser.add_argument("--gamma", type=float, default=1.0, help="adaptive consensus factor (default 1)")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="coupled weight decay (default 0)")
    parser.add_argument(
        "--heterogeneity",
        help="mean square of the workers' gradients about their mean along each curvature: adds the bias of the "
        "fixed point",
    )


def run(args: argparse.Namespace) -> int:
    """Predicts and prints."""
    from dissensus.theory.fixed_point import expected_bias
    from dissensus.theory.limits import limits
    from dissensus.theory.stationary import predict

    setting = read_setting(args)
    local: dict[str, Any] = {
        "lr": args.lr,
        "momentum": args.momentum,
        "gamma": args.gamma,
        "order": args.order,
        "weight_decay": args.weight_decay,
    }
    found = predict(setting.topology, setting.curvature, setting.noise, nesterov=args.nesterov, **local)
    result = found.to_dict()
    bounds = limits(setting.topology, setting.curvature, nesterov=args.nesterov, **local)
    result["limits"] = bounds.to_dict()
    if args.heterogeneity is not None:
        spread = matching(args.heterogeneity, "--heterogeneity", setting.curvature)
        distance, envelope = expected_bias(setting.topology, setting.curvature, spread, **local)
        result["bias"] = {"consensus_distance": distance, "envelope": envelope}
        result["total"] = {
            "consensus_distance": distance + found.consensus_distance,
            "envelope": envelope + found.envelope,
        }
    if args.figure is not None:
        from dissensus.experiments.figures.style import save
        from dissensus.experiments.figures.theory import gamma_curves, stationary_figure

        save(
            stationary_figure(
                gamma_curves(setting.topology, setting.curvature, setting.noise, nesterov=args.nesterov, **local)
            ),
            Path(args.figure),
        )
    if args.json:
        print_json(result)
        return 0
    _print(f"{setting.topology!r}", result)
    if bounds.warning:
        sys.stderr.write(f"warning: {bounds.warning}\n")
    return 0


def _print(title: str, result: dict[str, Any]) -> None:
    bounds = result["limits"]
    rows = [
        ["consensus distance", result["consensus_distance"]],
        ["envelope ½ tr(HΣ)", result["envelope"]],
        ["alignment tr(HΣ)/trΣ", result["alignment"]],
        ["normalised alignment", result["normalised_alignment"]],
        ["excess risk of the mean", result["excess"]],
        ["envelope / excess risk", result["ratio"]],
        ["stable for lr below", bounds["lr"]],
        ["the mean alone for lr below", bounds["mean_lr"]],
        ["disagreement forgets in steps", bounds["relaxation"]],
        ["the mean forgets in steps", bounds["mean_relaxation"]],
    ]
    for part in ("bias", "total"):
        rows += [[f"{part}: {k.replace('_', ' ')}", v] for k, v in result.get(part, {}).items()]
    print_table(title, ["", "predicted"], rows)
    keys, modes = ["lambda", "curvature", "variance"], result["modes"]
    title = "modes" if len(modes) <= _SHOWN else f"modes, {_SHOWN} of {len(modes)} (--json: all)"
    print_table(title, keys, [[m[k] for k in keys] for m in modes[:_SHOWN]])
