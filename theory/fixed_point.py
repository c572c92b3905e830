r"""Where heterogeneous workers come to rest: the fixed point of DSGD without noise, and how far it is from agreement.

Workers whose quadratics differ do not agree even without noise. With $a = \alpha/(1-\beta)$ (the velocity at rest is
$g/(1-\beta)$; heavy ball and Nesterov alike) the resting points solve, without weight decay,

$$ \text{AWC: } (I-W_\gamma)X + a\,\nabla F(X) = 0, \quad
   \text{ATC: } X = W_\gamma\,(X - a\,\nabla F(X)), \quad
   \text{CTA: } (I-W_\gamma)X + a\,\nabla F(W_\gamma X) = 0 . $$

With one Hessian for all and a symmetric W this is, mode by mode, $e_k = c\,b_k/[(1-\beta)(1-\mu_k)+\kappa]$ with the
letters of `variance` (`variance.bias`): the disagreement is of order $a/\gamma$ where mixing dominates, and of order
one, whatever gamma and the learning rate, where curvature does. A schedule of several rounds does not rest but runs
through a cycle. For symmetric W the AWC point minimises
$\sum_i f_i(x_i) + \frac1{2a}\operatorname{tr}X^\top(I-W_\gamma)X$. Derivation: ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.theory.coupled import Lifted, Quadratics, lift
from dissensus.theory.errors import MixingError
from dissensus.theory.modes import Move, disagreement_eigenvalues
from dissensus.theory.persistent import persistent_variance
from dissensus.theory.stationary import spectrum
from dissensus.theory.topology import Topology


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """The noiseless limit of a run, at every phase of the period."""

    deviations: np.ndarray
    r"""$x_i-\bar x$ just before each round of the period, (P, n, d)."""
    mean: np.ndarray | None
    r"""$\bar x$ at the same times, (P, d); `None` where the mean has no single resting point (flat directions)."""
    optimum: np.ndarray | None
    """Where the mean loss is smallest, `None` where that is not one point."""

    @property
    def phases(self) -> np.ndarray:
        """The consensus distance at every phase."""
        return (self.deviations**2).sum(axis=2).mean(axis=1)

    @property
    def consensus_distance(self) -> float:
        """Averaged over the phases."""
        return float(self.phases.mean())

    @property
    def covariance(self) -> np.ndarray:
        r"""The share of the bias in $\Sigma$: the mean of $(x_i-\bar x)(x_i-\bar x)^\top$, d x d."""
        p, n, _ = self.deviations.shape
        return np.einsum("pia,pib->ab", self.deviations, self.deviations) / (p * n)

    @property
    def error(self) -> float | None:
        r"""$\|\bar x - x^\star\|$, the largest over the phases: what heterogeneity costs the model that is deployed."""
        if self.mean is None or self.optimum is None:
            return None
        return float(np.linalg.norm(self.mean - self.optimum, axis=1).max())


def fixed_point(
    topology: Topology,
    problem: Quadratics,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> FixedPoint:
    """The points to which noiseless DSGD converges from anywhere; settings that converge nowhere are refused."""
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    lifted = lift(topology, problem, lr, gamma, move)
    refuse_unstable(lifted, topology, problem, lr, gamma, move)
    return resting(lifted, topology, problem, weight_decay)


def expected_bias(
    topology: Topology | Any,
    curvatures: Any,
    heterogeneity: Any,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    weight_decay: float = 0.0,
) -> tuple[float, float]:
    r"""Consensus distance and envelope of the fixed point where only the size of the heterogeneity is known.

    `heterogeneity` is the mean square over workers of their gradients' deviation from the mean gradient along every
    curvature, $\zeta_j^2$; it is taken to be spread evenly over the n - 1 modes of a static symmetric W (or its
    eigenvalues), as data that are dealt to workers without regard to the graph spread it on average.
    """
    if isinstance(topology, Topology) and not (topology.is_static and topology.is_symmetric):
        raise MixingError(
            f"the bias in closed form needs one symmetric matrix, not {topology!r}; fixed_point takes the workers' own "
            "quadratics over any schedule"
        )
    lam, n = disagreement_eigenvalues(topology)
    h, zeta2 = spectrum(curvatures, heterogeneity)
    if n == 1:
        return 0.0, 0.0
    rest = persistent_variance(
        lam[:, None], h, lr, momentum, gamma, order, noise=zeta2 * n / (n - 1), weight_decay=weight_decay, memory=1.0
    )
    along = rest.sum(axis=0) / n
    if not np.isfinite(along).all():
        raise MixingError(
            f"lr = {lr:g} has no fixed point: some mode is not stable; limits.limits tells the largest lr"
        )
    return float(along.sum()), 0.5 * float(h @ along)


def resting(lifted: Lifted, topology: Topology, problem: Quadratics, weight_decay: float) -> FixedPoint:
    """The cycle of a stable period."""
    product, drift = np.eye(len(lifted.steps[0].a)), np.zeros(len(lifted.steps[0].a))
    for step in lifted.steps:
        product, drift = step.a @ product, step.a @ drift + step.c
    state = np.linalg.solve(np.eye(len(product)) - product, drift)
    states = [state]
    for step in lifted.steps[:-1]:
        states.append(step.a @ states[-1] + step.c)
    points = lifted.workers(np.array(states))
    mean = points.mean(axis=1)
    deviations = points - mean[:, None, :]
    optimum = problem.optimum()
    if lifted.basis.shape[1] == problem.size:
        return FixedPoint(deviations, mean, optimum)
    return FixedPoint(deviations, _mean_alone(topology, problem, weight_decay, len(points)), optimum)


def _mean_alone(topology: Topology, problem: Quadratics, decay: float, phases: int) -> np.ndarray | None:
    """With one Hessian and doubly stochastic rounds the mean rests where the decayed mean loss does."""
    total = problem.mean_hessian + decay * np.eye(problem.dimension)
    values = np.linalg.eigvalsh(total)
    if topology.promise != "doubly" or values[0] <= 1e-12 * max(abs(values[-1]), 1e-300):
        return None
    return np.tile(np.linalg.solve(total, problem.linear.mean(axis=0)), (phases, 1))


def radius(lifted: Lifted) -> float:
    """The spectral radius of a period."""
    product = lifted.steps[0].a
    for step in lifted.steps[1:]:
        product = step.a @ product
    return float(np.abs(np.linalg.eigvals(product)).max(initial=0.0))


def refuse_unstable(
    lifted: Lifted, topology: Topology, problem: Quadratics, lr: float, gamma: float, move: Move
) -> None:
    """Names the settings and, where it is cheap to find, the largest learning rate that works."""
    found = radius(lifted)
    if found < 1.0 - 1e-13:
        return
    what = (
        f"{topology!r} with {problem.size} quadratics (order {move.order}, momentum {move.momentum:g}, gamma {gamma:g})"
    )
    if len(lifted.steps[0].a) > 256:
        raise MixingError(
            f"lr = {lr:g} has no stationary state: the step map of {what} has spectral radius {found:.6g}"
        )

    def stable(rate: float) -> bool:
        return radius(lift(topology, problem, rate, gamma, move)) < 1.0 - 1e-13

    good, bad = lr / 2, lr
    while not stable(good):
        good, bad = good / 2, good
        if good < 1e-9 * lr or good == 0.0:
            raise MixingError(f"no learning rate below {lr:g} is stable for {what}: some direction is not damped")
    for _ in range(30):
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if stable(middle) else (good, middle)
    raise MixingError(f"lr = {lr:g} has no stationary state: {what} is stable for lr < {good:.6g}")
