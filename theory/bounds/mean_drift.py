r"""How far the mean gradient is from the gradient at the mean plus the drift of the implicit regularizer.

For a common loss f with $\lVert\nabla^4 f\rVert \le M$, Taylor's formula with the rest of third order in every row:

$$ \left\lVert \frac1n\sum_i\nabla f(x_i)-\nabla f(\bar x)-\nabla\tfrac12\operatorname{tr}(H\Sigma)\right\rVert
   \le \frac{M}{6}\,\frac1n\sum_i\lVert x_i-\bar x\rVert^3 . $$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import nonnegative


@dataclass(frozen=True)
class Apart:
    """What is known of a common loss about the mean, and of the workers' places."""

    fourth: float
    """M: a bound on the fourth derivative as a form of four directions, wherever workers and mean are."""
    cubed_disagreement: float
    r"""$\frac1n\sum_i\lVert x_i-\bar x\rVert^3$."""


@bound
class MeanDriftRest(Bound[Apart]):
    """The rest of Taylor's formula."""

    name: ClassVar[str] = "mean-drift-rest"
    title: ClassVar[str] = "what gradient at the mean and drift leave of the mean gradient, common loss"
    statement: ClassVar[str] = (
        r"\left\lVert\frac1n\sum_i\nabla f(x_i)-\nabla f(\bar x)-\nabla\tfrac12\operatorname{tr}(H\Sigma)\right\rVert"
        r" \le \frac M6\,\frac1n\sum_i\lVert x_i-\bar x\rVert^3"
    )
    reference: ClassVar[str] = "Taylor's formula"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "a quartic along one line with one worker far from many others, in the limit"
    problem: ClassVar[type] = Apart
    assumptions: ClassVar[tuple[Assumption[Apart], ...]] = (
        nonnegative("fourth", "M"),
        nonnegative("cubed_disagreement", r"\frac1n\sum_i\lVert x_i-\bar x\rVert^3"),
    )

    def formula(self, p: Apart) -> float:
        """A sixth of the product."""
        return p.fourth * p.cubed_disagreement / 6.0
