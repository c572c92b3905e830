r"""The whole disagreement of workers with data of their own: bias of the fixed point plus covariance of the noise.

With quadratics, Hessians and noise that differ from worker to worker (`coupled.Quadratics`) nothing can be split into
modes, but the step is affine, so bias and noise add up exactly:

$$ \Sigma = \underbrace{\tfrac1n\sum_i e_ie_i^\top}_{\text{fixed point}} +
   \underbrace{\tfrac1n\sum_i \operatorname{Cov}(x_i-\bar x)}_{\text{Lyapunov}} , \qquad
   \Xi = \operatorname{tr}\Sigma, \qquad P = \tfrac12\operatorname{tr}(\bar H\Sigma). $$

The covariance solves the discrete (periodic) Lyapunov equation of all n d coordinates, or 2 n d with momentum, by
doubling. Derivation: ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dissensus.theory import lyapunov
from dissensus.theory.coupled import Lifted, Quadratics, lift
from dissensus.theory.fixed_point import FixedPoint, refuse_unstable, resting
from dissensus.theory.modes import Move
from dissensus.theory.topology import Topology


@dataclass(frozen=True, eq=False)
class Heterogeneous:
    """What stays of the disagreement, averaged over the phases of a period."""

    bias: float
    r"""The consensus distance of the fixed point: what heterogeneity alone leaves."""
    noise: float
    r"""The consensus distance of the fluctuation around it."""
    covariance: np.ndarray = field(repr=False)
    r"""$\Sigma$, d x d: both together."""
    noise_covariance: np.ndarray = field(repr=False)
    r"""The part of $\Sigma$ that noise makes."""
    envelope: float
    r"""$\tfrac12\operatorname{tr}(\bar H\Sigma)$."""
    mean_variance: float | None
    r"""$\operatorname{tr}\operatorname{Cov}(\bar x)$; `None` where one Hessian is shared: see `Stationary.excess`."""
    fixed_point: FixedPoint = field(repr=False)

    @property
    def consensus_distance(self) -> float:
        r"""$\Xi$, bias and noise."""
        return self.bias + self.noise

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and lists, for JSON."""
        return {
            "consensus_distance": self.consensus_distance,
            "bias": self.bias,
            "noise": self.noise,
            "envelope": self.envelope,
            "mean_error": self.fixed_point.error,
            "mean_variance": self.mean_variance,
            "covariance": self.covariance.tolist(),
        }


def predict(
    topology: Topology,
    problem: Quadratics,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Heterogeneous:
    """The stationary disagreement of workers that each have a quadratic and a noise of their own."""
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    lifted = lift(topology, problem, lr, gamma, move)
    refuse_unstable(lifted, topology, problem, lr, gamma, move)
    rest = resting(lifted, topology, problem, weight_decay)
    spread, mean = _fluctuation(lifted, problem)
    sigma = spread + rest.covariance
    return Heterogeneous(
        bias=rest.consensus_distance,
        noise=float(np.trace(spread)),
        covariance=sigma,
        noise_covariance=spread,
        envelope=0.5 * float(np.trace(problem.mean_hessian @ sigma)),
        mean_variance=mean,
        fixed_point=rest,
    )


def _fluctuation(lifted: Lifted, problem: Quadratics) -> tuple[np.ndarray, float | None]:
    """The noise's part of Sigma, and the variance of the mean where the state holds it."""
    d, m = problem.dimension, lifted.basis.shape[1]
    if m == 0:
        return np.zeros((d, d)), None
    noises = [step.b @ lifted.covariance @ step.b.T for step in lifted.steps]
    found = lyapunov.periodic([step.a for step in lifted.steps], noises)[:, : m * d, : m * d]
    blocks = found.reshape(-1, m, d, m, d).mean(axis=0)
    seen = lifted.basis - lifted.basis.mean(axis=0)  # from the state to the deviations of the workers
    spread = np.einsum("ik,il,kalb->ab", seen, seen, blocks, optimize=True) / problem.size
    if m != problem.size:
        return spread, None
    return spread, float(np.einsum("kala->", blocks)) / problem.size**2
