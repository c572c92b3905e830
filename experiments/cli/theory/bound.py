"""`dissensus theory bound [NAME]`: guarantees with every constant written out; without a name, the list of them."""

from __future__ import annotations

import argparse
import typing
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.output import print_json, print_table, shown
from dissensus.experiments.cli.parsing import Parser, UsageError

if TYPE_CHECKING:
    from dissensus.theory.bounds import Bound

FROM_TOPOLOGY = ("size", "contraction", "lambda_2", "lambda_min")
"""Facts that a topology answers for itself."""


def configure(parser: Parser) -> None:
    """The options of the part."""
    parser.open_keys = True
    parser.epilog = (
        "The facts of a bound are --KEY VALUE pairs; `dissensus theory bound NAME` tells which it needs. --topology\n"
        f"fills in {', '.join(FROM_TOPOLOGY)} where they are asked for. For example:\n"
        "  dissensus theory bound convex-descent --topology ring --n 8 --lr 0.05 --smoothness 1 --steps 100"
    )
    parser.add_argument("name", nargs="?", help="which bound (leave it out for the list)")
    parser.add_argument("--topology", help="a topology that fills in what it knows of itself")
    parser.add_argument("--n", type=int, help="how many workers it has")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Lists the bounds, tells what one needs, or evaluates it."""
    from dissensus.theory import bounds

    if args.name is None:
        if args.extra:
            raise UsageError(f"theory bound: --{next(iter(args.extra))} belongs to a bound; name one first")
        _list(list(bounds.catalogue().values()), args.json)
        return 0
    bound = bounds.find(args.name)
    facts = _from_topology(bound, args) | _typed(bound, args.extra, args.flags)
    missing = [key for key, default in bound.facts().items() if default is ... and key not in facts]
    if missing and not facts:
        _describe(bound, args.json)
        return 0
    if missing:
        raise UsageError(f"theory bound: {bound.name!r} also needs {', '.join(map(_flag, missing))}")
    answer = bound.value(bound.problem(**facts))
    if args.json:
        print_json({**answer.to_dict(), "kind": bound.kind, "problem": facts, **_about(bound)})
    else:
        verb = {"upper": "at most", "lower": "at least", "equal": "equal to"}[bound.kind]
        print(f"{bound.title}: {verb} {answer}" if answer.applies else f"{bound.title}: {answer}")
    return 0


def _about(bound: Bound[Any]) -> dict[str, Any]:
    return {
        "title": bound.title,
        "statement": bound.statement,
        "assumptions": [f"{a.name}: {a.statement}" for a in bound.assumptions],
        "reference": bound.reference,
        "provenance": bound.provenance,
        "tight": bound.tight or None,
        "facts": {key: None if default is ... else default for key, default in bound.facts().items()},
    }


def _list(known: list[Bound[Any]], as_json: bool) -> None:
    if as_json:
        print_json({"bounds": {bound.name: {"kind": bound.kind, **_about(bound)} for bound in known}})
        return
    print_table("bounds", ["name", "what", "provenance"], [[b.name, b.title, b.provenance] for b in known])


def _describe(bound: Bound[Any], as_json: bool) -> None:
    if as_json:
        print_json({"bound": bound.name, "kind": bound.kind, **_about(bound)})
        return
    about = _about(bound)
    del about["facts"]
    about["needs"] = [_flag(k) if d is ... else f"{_flag(k)} (default {shown(d)})" for k, d in bound.facts().items()]
    print(bound.name)
    for key, value in about.items():
        first, *rest = value if isinstance(value, list) else [value or "unknown"]
        print(f"  {key:<12}{first}", *(f"{'':14}{more}" for more in rest), sep="\n")


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _typed(bound: Bound[Any], pairs: dict[str, str], flags: list[str]) -> dict[str, Any]:
    """The textual `--key value`s as the types of the bound's facts."""
    from pydantic import TypeAdapter, ValidationError

    from dissensus.theory.errors import nearest

    hints, typed = typing.get_type_hints(bound.problem), {}
    for said, text in pairs.items():
        key = said.replace("-", "_")
        if key not in bound.facts():
            known = [*(k.replace("_", "-") for k in bound.facts()), *flags]
            raise UsageError(f"theory bound: {bound.name!r} takes no --{said}{nearest(said, known)}")
        several = typing.get_origin(hints[key]) is tuple
        try:
            read = TypeAdapter(hints[key])
            typed[key] = read.validate_python(text.split(",")) if several else read.validate_strings(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise UsageError(f"theory bound: {bound.name!r}: --{said} got {text!r}: {reason}") from None
    return typed


def _from_topology(bound: Bound[Any], args: argparse.Namespace) -> dict[str, Any]:
    """What the named topology knows of the facts that the bound needs."""
    if args.topology is None:
        if args.n is not None:
            raise UsageError("theory bound: --n is the size of a topology; name one with --topology")
        return {}
    from dissensus.theory import contraction as contraction_of
    from dissensus.theory import eigenvalues, registry

    wanted = [key for key in FROM_TOPOLOGY if key in bound.facts()]
    if not wanted:
        raise UsageError(f"theory bound: {bound.name!r} needs nothing that a topology knows; leave --topology out")
    topology = registry.topology(args.topology, 8 if args.n is None else args.n)
    facts: dict[str, Any] = {}
    if "size" in wanted:
        facts["size"] = topology.size
    if "contraction" in wanted:
        if topology.period is None:
            raise UsageError(f"theory bound: {topology.name!r} draws its rounds anew; give --contraction yourself")
        facts["contraction"] = max(contraction_of(topology, t, 1).value for t in range(topology.period))
    if {"lambda_2", "lambda_min"} & set(wanted):
        if not (topology.is_static and topology.is_symmetric):
            raise UsageError(
                f"theory bound: the rounds of {topology.name!r} have no common real eigenvalues; give them"
            )
        values = sorted(map(float, eigenvalues(topology[0])))
        known = {"lambda_2": values[-2] if len(values) > 1 else 0.0, "lambda_min": values[0]}
        facts |= {key: value for key, value in known.items() if key in wanted}
    return facts
