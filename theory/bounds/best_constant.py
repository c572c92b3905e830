r"""One weight for all links, $W = I - aL$: the best there is, from the two ends of the Laplacian's spectrum.

Reference: Xiao and Boyd, Fast linear iterations for distributed averaging (2004).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Kind, Provenance, bound


@dataclass(frozen=True)
class LaplacianEnds:
    """The smallest eigenvalue but zero, and the largest."""

    lowest: float
    highest: float


ENDS = Assumption[LaplacianEnds](
    "connected", r"0 < \lambda_2(L) \le \lambda_n(L)", lambda p: 0.0 < p.lowest <= p.highest
)


@bound
class BestConstantContraction(Bound[LaplacianEnds]):
    """The contraction of the best constant weight."""

    name: ClassVar[str] = "best-constant-contraction"
    title: ClassVar[str] = "contraction of the best single weight for all links"
    kind: ClassVar[Kind] = "equal"
    statement: ClassVar[str] = (
        r"\min_a \lVert I-aL-J\rVert_2 = \frac{\lambda_n(L)-\lambda_2(L)}{\lambda_n(L)+\lambda_2(L)},"
        r"\quad a=\frac{2}{\lambda_2(L)+\lambda_n(L)}"
    )
    reference: ClassVar[str] = "Xiao and Boyd 2004"
    provenance: ClassVar[Provenance] = "classical"
    problem: ClassVar[type] = LaplacianEnds
    assumptions: ClassVar[tuple[Assumption[LaplacianEnds], ...]] = (ENDS,)

    def formula(self, p: LaplacianEnds) -> float:
        """Both ends at the same modulus."""
        return (p.highest - p.lowest) / (p.highest + p.lowest)


@bound
class AnyConstantContraction(Bound[LaplacianEnds]):
    """No constant weight does better."""

    name: ClassVar[str] = "any-constant-contraction"
    title: ClassVar[str] = "contraction of any single weight for all links"
    kind: ClassVar[Kind] = "lower"
    statement: ClassVar[str] = (
        r"\lVert I-aL-J\rVert_2 \ge \frac{\lambda_n(L)-\lambda_2(L)}{\lambda_n(L)+\lambda_2(L)} \text{ for every } a"
    )
    reference: ClassVar[str] = "Xiao and Boyd 2004"
    provenance: ClassVar[Provenance] = "classical"
    tight: ClassVar[str] = "the best constant weight"
    problem: ClassVar[type] = LaplacianEnds
    assumptions: ClassVar[tuple[Assumption[LaplacianEnds], ...]] = (ENDS,)

    def formula(self, p: LaplacianEnds) -> float:
        """That of the best."""
        return (p.highest - p.lowest) / (p.highest + p.lowest)
