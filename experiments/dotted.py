"""Nested tables and the dotted paths of their leaves: `{"lr": {"peak": 0.1}}` is `lr.peak = 0.1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.experiments.errors import ConfigError


def place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Writes the value at a dotted path, making the tables on its way."""
    *tables, key = path.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"cannot set {path!r}: {table!r} is a value, not a section")
    tree[key] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested tables by dotted path."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, f"{path}."))
        elif not isinstance(value, Mapping):
            leaves[path] = value
    return leaves
