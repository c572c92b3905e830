r"""A bound: a number that theory guarantees, the facts it needs, and the assumptions without which it says nothing.

A bound speaks about a *problem*: a frozen dataclass of plain facts (how smooth, how many workers, which learning rate),
one class per bound or shared by a family. It checks its assumptions on these facts and answers either with a value or
with the assumption that fails; it never answers with a number that nothing guarantees. Every constant stands in the
formula: there is no hidden big-O.

Fields of problems have the same name everywhere, so that the command line and the ledger can fill them in:
`size` (workers n), `contraction` ($\lambda=\lVert W-J\rVert_2$), `lambda_2`, `lambda_min` (eigenvalues of a symmetric
W), `smoothness` (L), `convexity` (mu), `lr` ($\alpha$), `momentum` ($\beta$), `steps` (K), `distance`
($\lVert x_0-x^\star\rVert$), `excess` ($F(x_0)-F^\star$), `noise` ($\sigma^2$, the mean square of one worker's gradient
noise), `heterogeneity` ($\zeta^2$, the mean square of the workers' gradients about their mean).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from dissensus.theory.errors import MixingError, nearest

Problem = TypeVar("Problem")
Kind = Literal["upper", "lower", "equal"]
Provenance = Literal["published", "classical", "recalled", "ours"]
"""`published`: the constants were read in the paper's text or code. `classical`: textbook, proven again in the docs.
`recalled`: stated from memory of the paper and re-tested, wording not re-read. `ours`: derived for this project."""


@dataclass(frozen=True)
class Assumption(Generic[Problem]):
    """What must hold of a problem for a bound to say anything."""

    name: str
    """A few words for error messages: `step size`."""
    statement: str
    r"""In LaTeX, without dollar signs: `\alpha \le (1-\lambda)/(2L)`."""
    holds: Callable[[Problem], bool]


@dataclass(frozen=True)
class Answer:
    """What a bound says of one problem."""

    bound: str
    value: float
    """The guaranteed number; where the bound does not apply, what is always true (inf for an upper bound)."""
    failing: tuple[str, ...] = ()
    """The assumptions that do not hold, as `name: statement`."""

    @property
    def applies(self) -> bool:
        """Whether all assumptions hold."""
        return not self.failing

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g}" if self.applies else f"does not apply ({'; '.join(self.failing)})"

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON; a value that nothing guarantees is None."""
        value = self.value if self.applies and math.isfinite(self.value) else None
        return {"bound": self.bound, "value": value, "applies": self.applies, "failing": list(self.failing)}


class Bound(Generic[Problem]):
    """One statement: subclass it, fill in the class variables and `formula`, register it with `@bound`."""

    name: ClassVar[str]
    """With dashes, as on the command line."""
    title: ClassVar[str]
    """One plain line: what is bounded."""
    kind: ClassVar[Kind] = "upper"
    statement: ClassVar[str]
    """In LaTeX, without dollar signs."""
    reference: ClassVar[str]
    provenance: ClassVar[Provenance]
    tight: ClassVar[str] = ""
    """The case in which the bound is attained, where one is known."""
    problem: ClassVar[type]
    """The frozen dataclass of facts."""
    assumptions: ClassVar[tuple[Assumption[Any], ...]] = ()

    def formula(self, p: Problem) -> float:
        """The right-hand side; only ever called where the assumptions hold."""
        raise NotImplementedError

    def value(self, p: Problem) -> Answer:
        """The guaranteed number, or which assumption fails."""
        failing = tuple(f"{a.name}: {a.statement}" for a in self.assumptions if not a.holds(p))
        if failing:
            return Answer(self.name, -math.inf if self.kind == "lower" else math.inf, failing)
        try:
            return Answer(self.name, float(self.formula(p)))
        except OverflowError:  # beyond the largest number: an upper bound says nothing then, but it is not wrong
            return Answer(self.name, -math.inf if self.kind == "lower" else math.inf)

    def facts(self) -> dict[str, Any]:
        """What a problem of this bound needs: field name -> default (`...` where there is none)."""
        from dataclasses import MISSING

        return {f.name: ... if f.default is MISSING else f.default for f in fields(self.problem)}


_known: dict[str, Bound[Any]] = {}
Declared = TypeVar("Declared", bound=Bound[Any])


def bound(declared: type[Declared]) -> type[Declared]:
    """Registers a bound under its name (a class decorator)."""
    if declared.name in _known:
        raise MixingError(f"bound {declared.name!r} is registered twice")
    _known[declared.name] = declared()
    return declared


def find(name: str) -> Bound[Any]:
    """The bound of that name, or an error with the nearest."""
    from dissensus.theory.bounds import catalogue

    known, wanted = catalogue(), name.replace("_", "-")
    if wanted not in known:
        raise MixingError(f"unknown bound {name!r}{nearest(wanted, known)}")
    return known[wanted]
