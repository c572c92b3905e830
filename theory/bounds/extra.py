r"""EXTRA (Shi, Ling, Wu and Yin 2015): every step shrinks a distance to the solution, and by how much.

$X_1 = WX_0-\alpha\nabla f(X_0)$, $X_{k+2} = (I+W)X_{k+1} - \tilde WX_k - \alpha(\nabla f(X_{k+1})-\nabla f(X_k))$,
$\tilde W = (I+W)/2$, W symmetric. With $U = (\tilde W-W)^{1/2}$, $q_k = \sum_{t\le k}UX_t$, $z = (q, X)$ and
$G = \operatorname{diag}(I,\tilde W)$,

$$ \lVert z_{k+1}-z^\star\rVert_G^2 + \theta\,\lVert z_{k+1}-z_k\rVert_G^2 \le \lVert z_k-z^\star\rVert_G^2, \qquad
   \theta = 1-\frac{\alpha L}{2\lambda_{\min}(\tilde W)}, $$

and so $\sum_k\lVert z_{k+1}-z_k\rVert_G^2 \le \lVert z_0-z^\star\rVert_G^2/\theta$. Recalled; its proof is in
docs, bounds about descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import nonnegative
from dissensus.theory.bounds.dsgd import LR, SMOOTH, STEPS


@dataclass(frozen=True)
class ExtraStep:
    """What is known of one step of EXTRA."""

    smoothness: float
    """L, of every worker's convex function."""
    lr: float
    lambda_min: float
    """The smallest eigenvalue of W."""
    potential: float
    r"""$\lVert z_k-z^\star\rVert_G^2$ before the step."""
    moved: float
    r"""$\lVert z_{k+1}-z_k\rVert_G^2$."""


@dataclass(frozen=True)
class ExtraRun:
    """What is known of K steps of EXTRA."""

    smoothness: float
    """L, of every worker's convex function."""
    lr: float
    lambda_min: float
    """The smallest eigenvalue of W."""
    steps: int
    potential: float
    r"""$\lVert z_0-z^\star\rVert_G^2$ at the start."""


def decrease(p: ExtraStep | ExtraRun) -> float:
    r"""$\theta$: the share of a step's square length by which the potential falls."""
    return 1.0 - p.lr * p.smoothness / (1.0 + p.lambda_min)


COMMON: tuple[Assumption[Any], ...] = (
    SMOOTH,
    LR,
    Assumption(
        "eigenvalues", r"W = W^\top \text{ connected},\ -1 < \lambda_{\min} \le 1", lambda p: -1.0 < p.lambda_min <= 1.0
    ),
    nonnegative("potential", r"\lVert z-z^\star\rVert_G^2"),
    Assumption(
        "step size",
        r"\alpha < 2\lambda_{\min}(\tilde W)/L = (1+\lambda_{\min})/L",
        lambda p: p.lr * p.smoothness < 1.0 + p.lambda_min,
    ),
)


@bound
class ExtraPotential(Bound[ExtraStep]):
    """The potential after a step of known length."""

    name: ClassVar[str] = "extra-step"
    title: ClassVar[str] = "square distance of EXTRA's state from the solution after one step"
    statement: ClassVar[str] = (
        r"\lVert z_{k+1}-z^\star\rVert_G^2 \le \lVert z_k-z^\star\rVert_G^2 - \theta\,\lVert z_{k+1}-z_k\rVert_G^2,"
        r"\quad \theta = 1-\frac{\alpha L}{2\lambda_{\min}(\tilde W)}"
    )
    reference: ClassVar[str] = "Shi, Ling, Wu and Yin 2015"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = ExtraStep
    assumptions: ClassVar[tuple[Assumption[ExtraStep], ...]] = (
        *COMMON,
        nonnegative("moved", r"\lVert z^+-z\rVert_G^2"),
    )

    def formula(self, p: ExtraStep) -> float:
        """What was there, less the guaranteed fall."""
        return p.potential - decrease(p) * p.moved


@bound
class ExtraRate(Bound[ExtraRun]):
    """The mean square length of the steps."""

    name: ClassVar[str] = "extra-rate"
    title: ClassVar[str] = "mean square length of EXTRA's steps, which is also its residual of optimality"
    statement: ClassVar[str] = (
        r"\frac1K\sum_{k<K}\lVert z_{k+1}-z_k\rVert_G^2 \le \frac{\lVert z_0-z^\star\rVert_G^2}{\theta K}"
    )
    reference: ClassVar[str] = "Shi, Ling, Wu and Yin 2015"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = ExtraRun
    assumptions: ClassVar[tuple[Assumption[ExtraRun], ...]] = (*COMMON, STEPS)

    def formula(self, p: ExtraRun) -> float:
        """The potential at the start, spent over K steps."""
        return p.potential / (decrease(p) * p.steps)
