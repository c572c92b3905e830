"""Results of the instruments as rows for people: every single number with its interval and how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Row = list[Any]
"""Name, value, interval, how it was made, products, whether the asked accuracy was reached."""
_LEFT_OUT = (
    "nodes", "weights", "axes", "values", "marks", "shares", "spread", "norm_dispersion", "labels", "evaluations",
    "dimensions", "d", "size", "principal", "vectors", "batch_size", "total", "num_matvecs", "seed", "probes",
)  # fmt: skip
"""Lists, and the circumstances of a number: for machines and figures."""


def readings(found: Mapping[str, Any]) -> list[Row]:
    """One row per number, in the order of the instruments."""
    asked = list(found.get("seconds", {}))
    return [row for name in asked for row in _rows(name, found[name])]


def _rows(name: str, value: Any) -> Iterator[Row]:
    if isinstance(value, Mapping):
        if {"value", "interval", "interval_method"} <= set(value):
            yield _estimate(name, value)
            return
        if name.startswith("disagreement layers ") and "root" in value:
            yield [f"{name.replace(' layers', ' of')}, root", _number(value["root"]), None, None, None, None]
            return
        for key, item in value.items():
            if key not in _LEFT_OUT:
                yield from _rows(f"{name} {_word(key)}", item)
    elif isinstance(value, list):
        if value and all(isinstance(item, Mapping) for item in value):
            for at, item in enumerate(value, start=1):
                if "eigenvalue" in item:
                    yield _mode(f"mode {at}", item)
                else:
                    yield from _rows(f"{name} {at}", item)
        elif value and len(value) <= 8 and not any(isinstance(item, list) for item in value):
            yield [name, ", ".join(_number(item) for item in value), None, None, None, None]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield [name, _number(value), None, None, None, None]


def _estimate(name: str, e: Mapping[str, Any]) -> Row:
    low, high = e["interval"]
    spread = None if low == high else f"{_number(low)} to {_number(high, above=True)}"
    how = e["interval_method"]
    return [name, _number(e["value"]), spread, how, e["num_matvecs"] or None, "yes" if e["converged"] else "no"]


def _mode(name: str, m: Mapping[str, Any]) -> Row:
    value = m["eigenvalue"]
    shown = _number(value) if not isinstance(value, list) else f"{_number(value[0])} ± {_number(value[1])}i"
    share = "–" if m["share"] is None else f"{100 * m['share']:.3g} %"
    words = f"λ = {shown}, dimension {m['multiplicity']}, {share} of Ξ"
    return [f"{name}: mean curvature", _number(m["rayleigh"]), None, words, None, None]


def _number(value: Any, *, above: bool = False) -> str:
    if value is None:
        return "∞" if above else "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _word(key: str) -> str:
    return key.replace("_", " ")
