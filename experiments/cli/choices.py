"""From `--what.key value` on a command line to what it asks for: text becomes values, names become things.

The parameters of a thing belong to it alone, so a misspelt one is answered with the nearest of that very thing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dissensus.experiments.cli.parsing import UsageError

if TYPE_CHECKING:
    from dissensus.algorithms.protocol import Algorithm
    from dissensus.experiments.sections import Rate

OPEN = ("algorithm", "topology", "optimizer", "lr")
"""What takes `--what.key value` pairs beside its own value."""


def pairs_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The `--what.key value` pairs by what they belong to."""
    from dissensus.theory.errors import nearest

    pairs: dict[str, dict[str, Any]] = {what: {} for what in OPEN}
    for typed, text in args.extra.items():
        what, dot, key = typed.partition(".")
        if what not in pairs or not key:
            known = [f"{w}.{key}" for w in OPEN] if dot and key else args.flags
            raise UsageError(f"{args.verb}: unknown option --{typed}{nearest(typed, known)}")
        key = key.replace("-", "_")
        if (what, key) in (("optimizer", "lr"), ("lr", "peak")):
            raise UsageError(f"{args.verb}: the learning rate is --lr {text}, not --{typed}")
        if key in pairs[what]:
            raise UsageError(f"{args.verb}: option --{what}.{key} is given twice")
        pairs[what][key] = value_of(text)
    return pairs


def value_of(text: str) -> Any:
    """A truth value, a number, several of them (`0.9,0.99`, `[0.9, 0.99]`, lists in a list), or else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.startswith("["):
        try:
            return _tuples(json.loads(text))
        except ValueError:
            pass
    if "," in text:
        return tuple(value_of(part.strip()) for part in text.strip("[]() ").split(",") if part.strip())
    return text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def algorithm_of(name: str, parameters: Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name, its parameters checked against the types that it declares."""
    from dissensus.algorithms.registry import algorithm, algorithms
    from dissensus.experiments.registry import check_values

    try:
        built = algorithm(name, **parameters)
    except TypeError:  # a text where a number belongs: told by its type
        check_values(f"algorithm {name!r}", algorithms()[name.replace("_", "-")], parameters)
        raise
    check_values(f"algorithm {built.name!r}", type(built), parameters)
    return built


def rate_of(lr: float, keys: Mapping[str, Any], steps: int, verb: str) -> Rate | None:
    """The schedule that `--lr.key value` pairs ask for, constant where they do not say; none without pairs."""
    from pydantic import ValidationError

    from dissensus.experiments.sections import Rate
    from dissensus.theory.errors import nearest

    if not keys:
        return None
    known = [key for key in Rate.model_fields if key != "peak"]
    for key in keys:
        if key not in known:
            raise UsageError(f"{verb}: there is no --lr.{key}{nearest(key, known)}")
    try:
        rate = Rate.model_validate({"schedule": "constant", **keys, "peak": lr})
    except ValidationError as error:
        found = error.errors()[0]
        key = "lr" if found["loc"][0] == "peak" else f"lr.{found['loc'][0]}"
        raise UsageError(f"{verb}: --{key}: {found['msg'].lower()}, got {found['input']!r}") from None
    if rate.warmup and rate.warmup >= steps:
        raise UsageError(f"{verb}: --lr.warmup {rate.warmup} must be shorter than --steps {steps}")
    return rate
