"""How a law is judged: it holds, it is broken at a step and a worker, or it does not apply, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dissensus.theory.errors import nearest

S = TypeVar("S")
Law = Callable[[S], None]


class LawBroken(AssertionError):
    """What a broken law raises; `law` is its name."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(message)
        self.law = law


class Broken(Exception):
    """Raised inside a law with what was found; the runner says whose law it was."""


class DoesNotApply(Exception):
    """Raised inside a law that has nothing to say about this subject, with the reason."""


@dataclass(frozen=True)
class Verdict:
    """Which laws were run and held, and which did not apply and why."""

    subject: str
    held: tuple[str, ...]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.held)} laws hold: {', '.join(self.held)}"]
        lines += [f"  does not apply: {law}: {reason}" for law, reason in self.skipped.items()]
        return "\n".join(lines)


def judge(subject: str, laws: Mapping[str, Law[S]], about: S, chosen: Iterable[str] | None = None) -> Verdict:
    """Runs the laws in their order and raises `LawBroken` at the first that does not hold."""
    wanted = set(laws if chosen is None else chosen)
    for name in sorted(wanted - laws.keys()):
        raise ValueError(f"there is no law {name!r}{nearest(name, laws)}")
    held, skipped = [], {}
    for name in (law for law in laws if law in wanted):
        try:
            laws[name](about)
        except DoesNotApply as reason:
            skipped[name] = str(reason)
            continue
        except Broken as finding:
            raise LawBroken(name, f"{subject} breaks the law {name!r}: {finding}") from finding
        except Exception as error:
            raise LawBroken(name, f"{subject} breaks the law {name!r}: {type(error).__name__}: {error}") from error
        held.append(name)
    return Verdict(subject, tuple(held), skipped)


AXES = ("step", "worker", "column")
"""What the dimensions of a trajectory are called."""


def agree(found: Any, expected: Any, where: str, tolerance: float = 0.0, axes: Sequence[str] = AXES) -> None:
    """Holds two arrays against each other, relative to the largest number expected; a tolerance of zero is to the bit.

    Named is the worst number, by what its dimensions are called; of a trajectory, that of the first step that is off.
    """
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        raise Broken(f"{where}: shape {a.shape}, expected {b.shape}")
    scale = max(float(np.abs(b).max(initial=0.0)), 1e-300)
    off = np.abs(a.astype(np.float64) - b.astype(np.float64))
    bad = ~(off <= tolerance * scale)  # so that what is not a number is bad
    if not bad.any():
        return
    if axes[0] == "step":
        bad[int(np.argmax(bad.reshape(len(bad), -1).any(axis=1))) + 1 :] = False
    worst = np.where(bad, np.where(np.isnan(off), np.inf, off), -1.0)
    at = np.unravel_index(int(np.argmax(worst)), off.shape)
    place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=False))
    raise Broken(
        f"{where}, {place}: found {a[at]:.10g}, expected {b[at]:.10g} (relative error {float(off[at]) / scale:.1e}, "
        f"{f'{tolerance:g} allowed' if tolerance else 'not equal to the bit'})"
    )


def require(holds: bool, finding: str) -> None:
    """Raises the finding unless it holds."""
    if not holds:
        raise Broken(finding)
