"""Writing TOML: the standard library reads it only, and a study needs no more than tables, lists and scalars."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"^[A-Za-z0-9_-]+$")


def write_toml(tree: Mapping[str, Any]) -> str:
    """The tree as TOML, scalars before tables, in the order given; `tomllib.loads` gives the same tree back."""
    return "\n".join(_table(tree, ())).lstrip("\n") + "\n"


def _table(tree: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    scalars = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in tree.items() if isinstance(value, Mapping)}
    lines = []
    if path and (scalars or not tables):
        lines += ["", f"[{'.'.join(_key(key) for key in path)}]"]
    lines += [f"{_key(key)} = {_value(value, (*path, key))}" for key, value in scalars.items()]
    for key, value in tables.items():
        lines += _table(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.match(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, path: tuple[str, ...]) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return f"[{', '.join(_value(item, path) for item in value)}]"
        case Mapping():
            pairs = (f"{_key(key)} = {_value(item, (*path, key))}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"{'.'.join(path)}: TOML has no value for {type(value).__name__}")
