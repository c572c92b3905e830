"""`dissensus theory certify`: the exact worst case of a method, with a proof that is checked apart from the solver."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError, keywords

if TYPE_CHECKING:
    from dissensus.theory.topology import Topology


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.epilog = (
        "What mixes is said in one way: --contraction, --eigenvalues or --topology with --n (whose own parameters are\n"
        "--KEY VALUE pairs). Exit code 1 if the value is not certified. For example:\n"
        "  dissensus theory certify --method dgd --order awc --contraction 0.5 --steps 5 --lr 0.3\n"
        "  dissensus theory certify --topology ring --n 4 --steps 5 --lr 0.3333 --replay\n"
        "  dissensus theory certify --method diging --contraction 0.9 --steps 1 --lr 0.0044 --convexity 0.1 "
        "--criterion rate\n"
        "  dissensus theory certify --contraction 0.5 --steps 8 --lr 0.5 --figure certificate.png\n"
        "  dissensus theory certify --contraction 0.5 --steps 5 --optimize-lr --json"
    )
    parser.add_argument("--method", default="dgd", help="dgd (= dsgd), diging (= gradient-tracking), extra or d2")
    parser.add_argument("--order", default="awc", choices=["awc", "atc", "cta"], help="of dgd (default awc)")
    parser.add_argument("--contraction", type=float, help="all symmetric W whose other eigenvalues lie in [-C, C]")
    parser.add_argument("--eigenvalues", metavar="LOW,HIGH", help="all symmetric W whose other eigenvalues lie there")
    parser.add_argument("--topology", help="the W of one topology")
    parser.add_argument("--n", type=int, help="how many workers it has")
    parser.add_argument("--size", type=int, help="tell so many workers of a class apart (default: any number, compact)")
    parser.add_argument("--time-varying", action="store_true", help="another W of the class at every exchange")
    parser.add_argument("--steps", type=int, required=True, help="number of steps K")
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument(
        "--optimize-lr", action="store_true", help="search for the learning rate of the best worst case"
    )
    parser.add_argument("--smoothness", type=float, default=1.0, help="L (default 1)")
    parser.add_argument("--convexity", type=float, default=0.0, help="mu (default 0)")
    parser.add_argument("--lipschitz", type=float, help="convex functions of this slope at most instead of smooth ones")
    parser.add_argument("--distance", type=float, default=1.0, help="of the common start to the optimum (default 1)")
    parser.add_argument(
        "--heterogeneity", type=float, default=1.0, help="mean square of the gradients at the optimum (default 1)"
    )
    parser.add_argument(
        "--criterion",
        default="objective",
        help="objective (mean over the steps, default), last, average (of the points), distance, mean (its distance), "
        "consensus, or rate (gradient tracking)",
    )
    parser.add_argument("--replay", action="store_true", help="run the worst case in the engine")
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="PATH",
        help="also draw the worst case of 1 to K steps, with bounds and runs: a .png, .svg or .pdf file",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Certifies and prints; 1 if the value is not certified."""
    from dissensus.theory.certificates import best_rate, certificate_of, setting

    if (args.lr is None) != args.optimize_lr:
        raise UsageError("theory certify: say either --lr or --optimize-lr")
    began = time.perf_counter()
    of = setting(
        args.method,
        steps=args.steps,
        lr=1.0 / args.smoothness if args.lr is None and args.smoothness > 0 else args.lr or 1.0,
        contraction=args.contraction,
        eigenvalues=_range(args.eigenvalues),
        topology=_topology(args),
        order=args.order,
        smoothness=args.smoothness,
        convexity=args.convexity,
        lipschitz=args.lipschitz,
        distance=args.distance,
        heterogeneity=args.heterogeneity,
        criterion=args.criterion,
        size=args.size,
        time_varying=args.time_varying,
    )
    result: dict[str, Any] = {}
    if args.optimize_lr:
        best = best_rate(of)
        certificate = best.certificate
        result["tried"] = [{"lr": lr, "value": value} for lr, value in best.tried]
    else:
        certificate = certificate_of(of)
    result = {**certificate.to_dict(), **result}
    if args.replay:
        from dissensus.experiments.replay import replay

        replayed = replay(certificate)
        result["replay"] = {
            "attained": replayed.attained,
            "shortfall": replayed.shortfall,
            "workers": replayed.instance.size,
            "dimension": replayed.instance.dimension,
        }
    if args.figure is not None:
        from dissensus.experiments.figures.bounds import over_steps, steps_figure
        from dissensus.experiments.figures.style import save

        curves = over_steps(certificate)
        save(steps_figure(curves), args.figure)
        result["over_steps"] = curves.to_dict()
    result["seconds"] = time.perf_counter() - began
    if args.json:
        print_json(result)
    else:
        _show(result)
    return 0 if certificate.certified else 1


def _show(result: dict[str, Any]) -> None:
    what = f"{result['method']}{', ' + result['order'] if result['order'] else ''}: {result['criterion']}"
    keys = ["lr", "value", "primal", "certified", "gap", "status", "seconds"]
    print_table(f"{what} after {result['steps']} steps", ["", "worst case"], [[k, result[k]] for k in keys])
    dual = result["dual"]
    print_table("dual", ["", "checked"], [[k.replace("_", " "), v] for k, v in dual.items() if k != "limits"])
    if "over_steps" in result:
        names = list(result["over_steps"][0]["bounds"])
        rows = [
            [row["steps"], row["value"], row["attained"], row["sampled"], *row["bounds"].values()]
            for row in result["over_steps"]
        ]
        print_table("over the steps", ["steps", "worst case", "its instance, run", "largest sampled", *names], rows)
    if "replay" in result:
        print_table("replay in the engine", ["", "measured"], [[k, v] for k, v in result["replay"].items()])


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"theory certify: --eigenvalues wants two numbers, LOW,HIGH, got {text!r}") from None
    return low, high


def _topology(args: argparse.Namespace) -> Topology | None:
    if args.topology is None:
        if args.extra or args.n is not None:
            flag = next(iter(args.extra), "n")
            from dissensus.theory.errors import nearest

            known = [f for f in args.flags if f != flag]
            raise UsageError(f"theory certify: --{flag} is of a topology, and none is named{nearest(flag, known)}")
        return None
    from dissensus.theory import registry

    entry = registry.entry(args.topology)
    return registry.topology(entry.name, args.n or 8, **keywords(entry.build, args, f"topology {entry.name!r}"))
