"""`dissensus theory stationary`: the disagreement that theory expects on a quadratic with gradient noise."""

from __future__ import annotations

import argparse

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError, keywords


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = (
        "The topology's own parameters are --KEY VALUE pairs. For example:\n"
        "  dissensus theory stationary --topology ring --n 8 --lr 0.1 --momentum 0.9 --gamma 0.3 \\\n"
        "      --order awc --curvature 2,0.7,0.2 --noise 1,1,1"
    )
    parser.add_argument("what", choices=["stationary"], help="which prediction")
    parser.add_argument("--topology", default="ring", help="which topology (default ring)")
    parser.add_argument("--n", type=int, default=8, help="how many workers (default 8)")
    parser.add_argument("--lr", type=float, required=True, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.0, help="heavy-ball coefficient (default 0)")
    parser.add_argument("--nesterov", action="store_true", help="Nesterov momentum instead of heavy ball")
    parser.add_argument("--gamma", type=float, default=1.0, help="adaptive consensus factor (default 1)")
    parser.add_argument("--order", choices=["awc", "atc", "cta"], default="awc", help="order of mixing (default awc)")
    parser.add_argument("--curvature", default="1", help="Hessian eigenvalues h1,h2,... (default 1)")
    parser.add_argument("--noise", help="gradient-noise variance along each of them, s1,s2,... (default all 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Predicts and prints."""
    from dissensus.theory import registry
    from dissensus.theory.stationary import predict

    curvature = _numbers(args.curvature, "--curvature")
    noise = _numbers(args.noise, "--noise") if args.noise else [1.0] * len(curvature)
    if len(noise) != len(curvature):
        raise UsageError(f"theory: --curvature has {len(curvature)} values, but --noise has {len(noise)}")
    entry = registry.entry(args.topology)
    topology = registry.topology(entry.name, args.n, **keywords(entry.build, args, f"topology {entry.name!r}"))
    stationary = predict(
        topology,
        curvature,
        noise,
        lr=args.lr,
        momentum=args.momentum,
        gamma=args.gamma,
        order=args.order,
        nesterov=args.nesterov,
    ).to_dict()
    if args.json:
        print_json(stationary)
        return 0
    figures = ["consensus_distance", "envelope", "alignment"]
    print_table(f"{topology!r}", ["", "predicted"], [[k.replace("_", " "), stationary[k]] for k in figures])
    keys = ["lambda", "curvature", "variance"]
    print_table("modes", keys, [[m[k] for k in keys] for m in stationary["modes"]])
    return 0


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"theory: {flag} wants numbers separated by commas, got {text!r}") from None
