"""A mutant: something right, broken on purpose in one place, and the laws that must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Mutant:
    """A broken algorithm or engine, how to build it, and what it was before."""

    name: str
    breaks: str
    """What is wrong with it, as one would say it of a real implementation."""
    kind: Literal["algorithm", "engine"]
    build: Callable[[], Any]
    """Builds the mutant: an algorithm, or an engine factory."""
    original: Callable[[], Any]
    """Builds what was broken, unharmed: every law that kills the mutant lets it live."""
    killed_by: tuple[str, ...]
    """Names of laws, each of which notices by itself."""


MUTANTS: list[Mutant] = []


def broken(
    name: str, breaks: str, *killed_by: str, original: type | None = None, **parameters: Any
) -> Callable[[type], type]:
    """Adds a class of algorithms to the list; it is made a frozen dataclass, and its parent is the original."""

    def add(cls: type) -> type:
        mutant, parent = dataclass(frozen=True)(cls), original or cls.__mro__[1]
        build, unharmed = (lambda: mutant(**parameters)), (lambda: parent(**parameters))
        MUTANTS.append(Mutant(name, breaks, "algorithm", build, unharmed, killed_by))
        return mutant

    return add
