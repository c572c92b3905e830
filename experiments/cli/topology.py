"""`dissensus topology NAME --n N`: what a topology is, checked and analysed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table
from dissensus.experiments.cli.parsing import Parser, UsageError, keywords

if TYPE_CHECKING:
    from dissensus.theory import Topology


def configure(parser: Parser) -> None:
    """The options of the verb."""
    parser.open_keys = True
    parser.usage = (
        "dissensus topology NAME --n N [--KEY VALUE ...] [--gamma G] [--weights] [--compare NAME ...] [--json]\n"
        "       dissensus topology --file matrix.npy|.csv|.json [--promise doubly|row|column] ...\n"
        "       dissensus topology --list [--json]"
    )
    parser.epilog = (
        "NAME's own parameters are --KEY VALUE pairs, for example:\n"
        "  dissensus topology torus --n 12 --rows 3\n"
        "  dissensus topology aer --n 16 --workers-per-node 4 --json\n"
        "  dissensus topology geometric --n 64 --rule lazy --figure geometric.png\n"
        "  dissensus topology ring --n 16 --compare torus exponential one-peer-exponential\n"
        "`dissensus topology --list` names every topology with its parameters."
    )
    parser.add_argument("name", nargs="?", help="which topology (see --list)")
    parser.add_argument("--n", type=int, help="how many workers")
    parser.add_argument("--file", type=Path, help="a matrix, or the list of matrices of one period, from a file")
    parser.add_argument(
        "--promise", choices=["doubly", "row", "column"], help="which sums are one (for --file; default doubly)"
    )
    parser.add_argument("--gamma", type=float, help="adaptive consensus: every round becomes (1-gamma) I + gamma W")
    parser.add_argument("--drop", type=float, metavar="P", help="every link is down with probability P at every step")
    parser.add_argument("--drop-burst", type=float, metavar="STEPS", help="how long an outage takes on average")
    parser.add_argument("--drop-scheme", choices=["link", "message"], help="lose both directions together, or one")
    parser.add_argument("--drop-keep", choices=["row", "column"], help="what to keep where both sums cannot be kept")
    parser.add_argument("--drop-seed", type=int, help="decides who fails when (default 0)")
    parser.add_argument(
        "--memory", type=float, default=0.9, help="memory at which neighbours are counted (default 0.9)"
    )
    parser.add_argument("--weights", action="store_true", help="list every weight: receiver, sender, weight")
    parser.add_argument("--compare", nargs="+", default=[], metavar="NAME", help="other topologies on the same n")
    parser.add_argument(
        "--figure", type=Path, help="draw rounds, spectrum and contraction into this file (png, svg, pdf)"
    )
    parser.add_argument("--list", action="store_true", help="list every topology with its parameters")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Builds, reports, draws."""
    from dissensus.theory import registry
    from dissensus.theory.analysis import report

    if args.list and (args.extra or args.name):
        raise UsageError(f"topology: --list goes alone, got {args.name or f'--{next(iter(args.extra))}'}")
    if args.list:
        return _list(as_json=args.json)
    chosen = [_build(args)]
    chosen += [registry.topology(name, chosen[0].size) for name in args.compare]
    chosen = [_dropped(t, args) for t in chosen]
    if args.gamma is not None:
        chosen = [t.adapted(args.gamma) for t in chosen]
    reports = [report(t, memory=args.memory).to_dict() for t in chosen]
    if args.figure:
        from dissensus.experiments.figures.topology import topology_figure

        topology_figure(chosen[0], args.figure)
    if args.weights:
        for t, r in zip(chosen, reports, strict=True):
            r["rounds"] = _weights(t)
    if args.json:
        print_json(reports[0] | ({"compare": reports[1:]} if args.compare else {}))
        return 0
    _show(reports)
    if args.weights:
        rows = [[t, *w] for t, round_ in enumerate(reports[0]["rounds"]) for w in round_]
        print_table("weights", ["round", "receiver", "sender", "weight"], rows)
    if args.figure:
        print(f"figure: {args.figure}")
    return 0


def _build(args: argparse.Namespace) -> Topology:
    if args.file is not None:
        if args.name:
            raise UsageError("topology: give either NAME or --file, not both")
        from dissensus.theory.outside import from_file

        built = from_file(args.file, promise=args.promise or "doubly", **keywords(from_file, args, "topology --file"))
        if args.n not in (None, built.size):
            raise UsageError(f"topology: {args.file} holds {built.size} workers, but --n says {args.n}")
        return built
    if not args.name:
        raise UsageError("topology: which one? give a NAME and --n N, or --file; --list shows every name")
    if args.promise:
        raise UsageError("topology: --promise is for --file; a named topology knows its own")
    if args.n is None:
        raise UsageError(f"topology: how many workers? give --n N, for example: dissensus topology {args.name} --n 16")
    from dissensus.theory import registry

    found = registry.entry(args.name)
    return registry.topology(found.name, args.n, **keywords(found.build, args, f"topology {found.name!r}"))


def _dropped(built: Topology, args: argparse.Namespace) -> Topology:
    given = {k: v for k in ("burst", "scheme", "keep", "seed") if (v := getattr(args, f"drop_{k}")) is not None}
    if args.drop is None:
        if given:
            raise UsageError(f"topology: --drop-{next(iter(given))} needs --drop P, the share of steps a link is down")
        return built
    from dissensus.theory.faults import dropped

    return dropped(built, args.drop, **given)


_DRAWN_ROUNDS = 8


def _weights(topology: Topology) -> list[list[tuple[int, int, float]]]:
    """The rounds of a period, or the first few of a schedule that is drawn anew at every step."""
    return [topology[t].triplets() for t in range(topology.period or _DRAWN_ROUNDS)]


def _show(reports: list[dict[str, Any]]) -> None:
    flat = [_flat(r) for r in reports]
    keys = [k for k in dict.fromkeys(k for f in flat for k in f) if any(f.get(k) not in (None, []) for f in flat)]
    print_table("", ["", *(r["name"] for r in reports)], [[k, *(f.get(k) for f in flat)] for k in keys])
    for r in reports:
        for why in r["skipped"]:
            print(f"{r['name']}: {why}")


def _flat(report: dict[str, Any]) -> dict[str, Any]:
    """The figures for people: one line each, what only machines want left out."""
    lines: dict[str, Any] = {}
    for key, value in report.items():
        words = key.replace("_", " ")
        if key in ("name", "skipped", "rounds") or key.endswith("_error"):
            continue
        if key == "connected_rounds" and value is not None:
            lines["connected rounds"] = f"{sum(value)} of {len(value)}"
        elif isinstance(value, dict):
            lines |= {f"{words} to {level}": steps for level, steps in value.items()}
        elif isinstance(value, list) and len(value) > _LONGEST_LIST:
            lines[words] = f"{len(value)} values (see --json)"
        else:
            lines[words] = value
    return lines


_LONGEST_LIST = 16


def _list(*, as_json: bool) -> int:
    from dissensus.theory import registry

    entries = registry.catalogue()
    if as_json:
        print_json({name: {"summary": e.summary, "parameters": list(e.parameters)} for name, e in entries.items()})
        return 0
    rows = [
        [n, " ".join(f"--{p.replace('_', '-')}" for p in e.parameters) or "–", e.summary] for n, e in entries.items()
    ]
    print_table("topologies", ["name", "parameters", "what it is"], rows)
    return 0
