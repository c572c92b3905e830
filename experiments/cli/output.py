"""Writing results: one JSON object for machines, a plain table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dissensus.experiments.json_values import plain

if TYPE_CHECKING:
    from rich.console import Console


def print_json(result: Mapping[str, Any]) -> None:
    """One JSON object on standard output; what JSON has no number for (infinity, NaN) becomes null."""
    sys.stdout.write(json.dumps(plain(result), allow_nan=False) + "\n")


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table on standard output: numbers with 6 significant digits, absent values as a dash."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))  # as it is: [brackets] are no markup
    console().print(table)


def console() -> Console:
    """Standard output; wide where it is no terminal, so that a redirected table keeps its lines."""
    from rich.console import Console

    class Piped(Console):
        """Leaves a reader that went away to `main`, for which that is no failure."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            raise BrokenPipeError

    return Piped(width=None if sys.stdout.isatty() else 140)


def shown(value: Any) -> str:
    """How a value is written for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(v) for v in value) if value else "–"
    return str(value)
