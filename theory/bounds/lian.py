r"""Lian et al. 2017 (D-PSGD), Theorem 1, as recalled.

With $\rho = \lambda^2$, $D_2 = 1-\frac{18\alpha^2nL^2}{(1-\sqrt\rho)^2}$ and
$D_1 = \frac12-\frac{9\alpha^2L^2n}{(1-\sqrt\rho)^2D_2}$, for awc and a symmetric doubly stochastic W,

$$ \frac1K\Big(\frac{1-\alpha L}2\sum_t\mathbb E\lVert\bar g_t\rVert^2 + D_1\sum_t\mathbb E\lVert\nabla F(\bar x_t)
   \rVert^2\Big) \le \frac{F(x_0)-F^\star}{\alpha K} + \frac{\alpha L\sigma^2}{2n}
   + \frac{\alpha^2L^2n\sigma^2}{(1-\rho)D_2} + \frac{9\alpha^2L^2n\zeta^2}{(1-\sqrt\rho)^2D_2}. $$

The value is divided by $D_1$, so that it speaks of the mean square gradient, to be compared with `nonconvex-descent`.
Wording and constants were not re-read; re-tested only.
"""

from __future__ import annotations

from typing import ClassVar

from dissensus.theory.bounds.base import Assumption, Bound, Provenance, bound
from dissensus.theory.bounds.conditions import MIXES
from dissensus.theory.bounds.dsgd import BASIC, CENTRAL, EXCESS, HETEROGENEITY, NOISE
from dissensus.theory.bounds.nonconvex_descent import NonconvexProblem


def constants(p: NonconvexProblem) -> tuple[float, float]:
    """D1 and D2; D1 is minus one where D2 is not positive."""
    coupling = p.lr**2 * p.smoothness**2 * p.size / (1.0 - p.contraction) ** 2
    second = 1.0 - 18.0 * coupling
    return (0.5 - 9.0 * coupling / second if second > 0.0 else -1.0), second


@bound
class LianDescent(Bound[NonconvexProblem]):
    """The mean square gradient, with what is left of the square of the mean gradient."""

    name: ClassVar[str] = "lian-descent"
    title: ClassVar[str] = "mean square gradient at the mean iterate of decentralized SGD, by Lian et al."
    statement: ClassVar[str] = (
        r"\begin{array}{rl}\frac1K\sum_{t<K}\mathbb E\Bigl(\lVert\nabla F(\bar x_t)\rVert^2"
        r"+\frac{1-\alpha L}{2D_1}\lVert\bar g_t\rVert^2\Bigr) &\le \frac1{D_1}\Bigl("
        r"\frac{F(x_0)-F^\star}{\alpha K}+\frac{\alpha L\sigma^2}{2n}"
        r"+\frac{\alpha^2L^2n\sigma^2}{(1-\lambda^2)D_2}+\frac{9\alpha^2L^2n\zeta^2}{(1-\lambda)^2D_2}\Bigr),\\"
        r"D_2 &= 1-\frac{18\alpha^2nL^2}{(1-\lambda)^2},\quad "
        r"D_1 = \frac12-\frac{9\alpha^2L^2n}{(1-\lambda)^2D_2}\end{array}"
    )
    reference: ClassVar[str] = "Lian et al. 2017, Theorem 1"
    provenance: ClassVar[Provenance] = "recalled"
    problem: ClassVar[type] = NonconvexProblem
    assumptions: ClassVar[tuple[Assumption[NonconvexProblem], ...]] = (
        *BASIC,
        MIXES,
        Assumption("order", r"\text{order} = \text{awc},\ W = W^\top", lambda p: p.order == "awc"),
        EXCESS,
        NOISE,
        HETEROGENEITY,
        CENTRAL,
        Assumption(
            "constants",
            r"D_1, D_2 > 0",
            lambda p: 0.0 <= p.contraction < 1.0 and min(constants(p)) > 0.0,
        ),
    )

    def formula(self, p: NonconvexProblem) -> float:
        """The four terms over D1."""
        first, second = constants(p)
        step, rate = p.lr * p.smoothness, p.contraction
        return (
            p.excess / (p.lr * p.steps)
            + step * p.noise / (2.0 * p.size)
            + step**2 * p.size * p.noise / ((1.0 - rate**2) * second)
            + 9.0 * step**2 * p.size * p.heterogeneity / ((1.0 - rate) ** 2 * second)
        ) / first
