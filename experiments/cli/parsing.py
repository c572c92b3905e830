"""Reading arguments: argparse, with errors of one sentence that name the nearest flag, and open-ended `--key value`s.

What a registry entry accepts (a topology's `--radius`, an algorithm's `--algorithm.gamma`) is not known to the parser;
a verb that takes such keys declares it with `open_keys = True` and gets them as a dictionary, still text, in
`args.extra`, to be checked against the signature they are meant for.
"""

from __future__ import annotations

import argparse
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


class UsageError(Exception):
    """Wrong use of the command line: one sentence, exit code 2."""


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are `UsageError`s with the nearest flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.open_keys = False

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage block."""
        raise UsageError(f"{self.prog.removeprefix('dissensus ')}: {message}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses, and turns what is left over into `args.extra` or into an error that names the nearest flag."""
        known, unknown_keys = self._apart(list(arguments))
        args, left = self.parse_known_args(known)
        left = unknown_keys + left
        from dissensus.theory.errors import nearest

        args.verb = self.prog.removeprefix("dissensus ")
        args.given = list(arguments)
        args.extra = self._pairs(left)
        args.flags = [s.removeprefix("--") for a in self._actions for s in a.option_strings if s.startswith("--")]
        if args.extra and not self.open_keys:
            unknown = next(iter(args.extra))
            self.error(f"unknown option --{unknown}{nearest(unknown.replace('_', '-'), args.flags)}")
        return args

    def _apart(self, arguments: list[str]) -> tuple[list[str], list[str]]:
        """Takes unknown `--key value`s out, so that a value is never read as a positional argument."""
        known: list[str] = []
        unknown: list[str] = []
        at = 0
        while at < len(arguments):
            flag = arguments[at]
            strange = flag.startswith("--") and flag.partition("=")[0] not in self._option_string_actions
            (unknown if strange else known).append(flag)
            at += 1
            if strange and "=" not in flag and at < len(arguments) and not _is_flag(arguments[at]):
                unknown.append(arguments[at])
                at += 1
        return known, unknown

    def _pairs(self, left: list[str]) -> dict[str, str]:
        pairs: dict[str, str] = {}
        at = 0
        while at < len(left):
            flag = left[at]
            if not flag.startswith("--"):
                self.error(f"unexpected argument {flag!r}")
            key, equals, value = flag[2:].partition("=")
            if not equals and at + 1 < len(left) and not _is_flag(left[at + 1]):
                at += 1
                value = left[at]
            elif not equals:
                value = "true"
            if key in pairs:
                self.error(f"option --{key} is given twice")
            pairs[key] = value
            at += 1
        return pairs


def keywords(build: Callable[..., Any], args: argparse.Namespace, what: str) -> dict[str, Any]:
    """Checks the textual `args.extra` against the keyword parameters of a function and converts them to their types."""
    from pydantic import TypeAdapter, ValidationError

    from dissensus.theory.errors import nearest

    hints = typing.get_type_hints(build)
    known = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    converted: dict[str, Any] = {}
    for typed, text in args.extra.items():
        key = typed.replace("-", "_")
        if key not in known:
            near = nearest(key.replace("_", "-"), [*(k.replace("_", "-") for k in known), *args.flags])
            raise UsageError(f"{what} takes no --{typed}{near}")
        try:
            converted[key] = TypeAdapter(hints.get(key, str)).validate_strings(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise UsageError(f"{what}: --{typed} got {text!r}: {reason}") from None
    return converted


def _is_flag(text: str) -> bool:
    return text.startswith("--") or (text.startswith("-") and not text[1:2].isdigit() and text[1:2] != ".")
