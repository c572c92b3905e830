r"""The disagreement that stays: consensus distance, envelope and alignment at constant learning rate and gamma.

With $\Sigma = \mathbb{E}\,\frac1n\sum_i (x_i-\bar x)(x_i-\bar x)^\top$ and S the variance of a mode,

$$ \Xi = \operatorname{tr}\Sigma = \frac1n\sum_{k\ge2}\sum_j S(\lambda_k,h_j), \qquad
   P = \tfrac12\operatorname{tr}(H\Sigma) = \mathbb{E}\Big[\frac1n\sum_i L(x_i) - L(\bar x)\Big], \qquad
   A = \frac{\operatorname{tr}(H\Sigma)}{\operatorname{tr}\Sigma} . $$

Beside the envelope P stands the excess risk of the mean, $R = \tfrac12\operatorname{tr}(H\operatorname{Cov}\bar x)$,
which knows nothing of W or gamma; P/R is at most n - 1, what independent workers have.

`predict` takes the closed form of `variance` where the rounds are static and symmetric, 2 x 2 Lyapunov equations per
mode where they share eigenvectors (directed rings, exponential graphs, XOR matchings), and the periodic Lyapunov
equation of all workers per curvature otherwise. Only the diagonal of the noise covariance in the eigenbasis of H
enters the three numbers, so `noise` is one variance per curvature even if the two do not commute (`diagonal`); the
nodes and weights of a spectral measure of the noise serve as well as the full spectrum. Derivations: ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dissensus.theory import lyapunov
from dissensus.theory.errors import MixingError
from dissensus.theory.modes import (
    Move,
    adapted,
    adapted_matrix,
    disagreement_eigenvalues,
    joint_spectrum,
    restricted,
    state_space,
)
from dissensus.theory.topology import Topology
from dissensus.theory.variance import relaxation, stable, stable_learning_rates, variance

__all__ = [
    "Modes",
    "Stationary",
    "diagonal",
    "mean_excess",
    "predict",
    "relaxation",
    "stable",
    "stable_learning_rates",
    "variance",
]

_CHUNK = 1 << 22
"""Numbers in one stack of matrices: curvatures are taken in portions of this size."""


@dataclass(frozen=True, eq=False)
class Modes:
    """The table behind a prediction: the variance of every worker mode (rows) along every curvature (columns)."""

    eigenvalues: np.ndarray | None
    """The n - 1 eigenvalues of W, or `None` where the rounds have no common real ones: then rows are the principal
    variances of the disagreement (averaged over the phases), largest first."""
    curvatures: np.ndarray
    variances: np.ndarray
    """(n - 1, J), averaged over the phases of a period."""

    def rows(self) -> list[dict[str, float | None]]:
        """The table as dictionaries with the keys lambda, curvature, variance."""
        lams = [None] * len(self.variances) if self.eigenvalues is None else [float(v) for v in self.eigenvalues]
        return [
            {"lambda": lam, "curvature": float(h), "variance": float(v)}
            for lam, row in zip(lams, self.variances, strict=True)
            for h, v in zip(self.curvatures, row, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Stationary:
    """What theory expects of the disagreement in the stationary state."""

    consensus_distance: float
    r"""$\Xi$, the mean over workers of $\|x_i-\bar x\|^2$, averaged over the phases of a period."""
    envelope: float
    r"""$\tfrac12\operatorname{tr}(H\Sigma)$: how much higher the workers' losses lie than that of their mean."""
    alignment: float | None
    r"""$\operatorname{tr}(H\Sigma)/\operatorname{tr}\Sigma$; `None` where there is no disagreement."""
    normalised_alignment: float | None
    """`alignment` over the mean curvature: 1 if the disagreement does not care about curvature."""
    excess: float | None
    r"""$\tfrac12\operatorname{tr}(H\operatorname{Cov}\bar x)$, what noise costs the mean of the workers; `None` where
    the mean has no stationary state of its own (negative curvature, rounds that are not doubly stochastic)."""
    phases: tuple[float, ...]
    """The consensus distance just before each round of the period."""
    directions: np.ndarray = field(repr=False)
    r"""The diagonal of $\Sigma$ in the eigenbasis of H, one number per curvature."""
    modes: Modes = field(repr=False)

    @property
    def ratio(self) -> float | None:
        """`envelope` over `excess`: the penalty of disagreement in units of the noise floor of SGD."""
        return self.envelope / self.excess if self.excess else None

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and lists, for JSON."""
        return {
            "consensus_distance": self.consensus_distance,
            "envelope": self.envelope,
            "alignment": self.alignment,
            "normalised_alignment": self.normalised_alignment,
            "excess": self.excess,
            "ratio": self.ratio,
            "phases": list(self.phases),
            "modes": self.modes.rows(),
        }


def predict(
    topology: Topology | Any,
    curvatures: Any,
    noise: Any = 1.0,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
    mean_curvature: float | None = None,
) -> Stationary:
    """The stationary disagreement of DSGD on a quadratic; settings without a stationary state are refused.

    `topology` is a schedule, or all n eigenvalues of a symmetric W. `noise` is the variance of one worker's gradient
    along each curvature. `mean_curvature` is tr H / d where the curvatures are quadrature nodes rather than the
    spectrum.
    """
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    h, s2 = spectrum(curvatures, noise)
    for name, value in (("lr", lr), ("gamma", gamma)):
        if not (np.isfinite(value) and value >= 0.0):
            raise MixingError(f"{name} must be finite and not negative, got {value}")
    if not isinstance(topology, Topology) or (topology.is_static and topology.is_symmetric):
        lam, n = disagreement_eigenvalues(topology)
        _refuse_unstable(np.append(lam, 1.0), h, lr, gamma, move)
        table = variance(lam[:, None], h, lr, momentum, gamma, move.order, nesterov, s2, weight_decay)
        modes, phases = Modes(lam, h, table), np.array([table.sum() / n])
    else:
        modes, phases, n = _by_lyapunov(topology, h, s2, lr, gamma, move)
    directions = modes.variances.sum(axis=0) / n
    total, weighted = float(directions.sum()), float(h @ directions)
    level = float(h.mean()) if mean_curvature is None else mean_curvature
    alignment = weighted / total if total > 0.0 else None
    normalised = None if alignment is None or level == 0.0 else alignment / level
    doubly = not isinstance(topology, Topology) or topology.promise == "doubly"
    excess = mean_excess(h, s2, n, lr, move) if doubly else None
    at = tuple(float(p) for p in phases)
    return Stationary(total, 0.5 * weighted, alignment, normalised, excess, at, directions, modes)


def mean_excess(h: np.ndarray, s2: np.ndarray, n: int, lr: float, move: Move) -> float | None:
    """The stationary excess risk of the mean of n workers; along flat directions it drifts, at no cost."""
    if (h < 0).any() or lr == 0.0:
        return 0.0 if lr == 0.0 else None
    curved = h > 0
    settings = (lr, move.momentum, 1.0, move.order, move.nesterov)
    spread = variance(1.0, h[curved], *settings, s2[curved] / n, move.weight_decay)
    return 0.5 * float(h[curved] @ spread)


def diagonal(hessian: np.ndarray, noise_covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and the noise variance along each, from a symmetric Hessian and any noise covariance."""
    h, basis = np.linalg.eigh(np.asarray(hessian, dtype=np.float64))
    return h, np.einsum("ia,ij,ja->a", basis, np.asarray(noise_covariance, dtype=np.float64), basis)


def spectrum(curvatures: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and noise variances as two checked arrays of one length."""
    h = np.atleast_1d(np.asarray(curvatures, dtype=np.float64))
    s2 = np.asarray(noise, dtype=np.float64)
    if h.ndim != 1 or h.size == 0 or not np.isfinite(h).all():
        raise MixingError(f"curvatures must be a non-empty list of finite numbers, got shape {h.shape}")
    if s2.ndim == 0:
        s2 = np.full(h.shape, float(s2))
    if s2.shape != h.shape:
        raise MixingError(f"noise must be one variance for each of the {h.size} curvatures, got shape {s2.shape}")
    if not np.isfinite(s2).all() or (s2 < 0).any():
        at = int(np.flatnonzero(~np.isfinite(s2) | (s2 < 0))[0])
        raise MixingError(f"noise must be variances, finite and not negative: entry {at} is {s2[at]}")
    return h, s2


def _refuse_unstable(lam: np.ndarray, h: np.ndarray, lr: float, gamma: float, move: Move) -> None:
    """Names the mode that grows, its limit, and the learning rates at which every mode is stable.

    The mean (the last eigenvalue, a 1) counts only where it can be stable at all, that is along positive curvature.
    """
    settings = (move.momentum, gamma, move.order, move.nesterov, move.weight_decay)
    counts = np.ones((len(lam), len(h)), dtype=bool)
    counts[-1] = h + move.weight_decay > 0
    good = stable(lam[:, None], h, lr, *settings) | ~counts
    if good.all():
        return
    low, high = stable_learning_rates(lam[:, None], h, *settings)
    # the worst offender: the mode whose interval lies farthest from lr
    off = np.where(good, -np.inf, np.maximum(low - lr, lr - high))
    k, j = np.unravel_index(int(np.argmax(off)), off.shape)
    where = "the mean of the workers (lambda = 1)" if k == len(lam) - 1 else f"the mode lambda = {lam[k]:.6g}"
    what = f"{where} with curvature {h[j]:.6g} (order {move.order}, momentum {move.momentum:g}, gamma {gamma:g})"
    if not low[k, j] < high[k, j]:
        raise MixingError(
            f"no learning rate is stable for {what}: it is not damped"
            + ("; a positive gamma on a connected topology damps it" if gamma == 0 or lam[k] == 1.0 else "")
        )
    bottom, top = float(low[counts].max()), float(high[counts].min())
    works = f"every mode is stable for {bottom:.6g} < lr < {top:.6g}" if bottom < top else "no lr suits every mode"
    raise MixingError(
        f"lr = {lr:g} has no stationary state: {what} needs {low[k, j]:.6g} < lr < {high[k, j]:.6g}; {works}"
    )


def _by_lyapunov(
    topology: Topology, h: np.ndarray, s2: np.ndarray, lr: float, gamma: float, move: Move
) -> tuple[Modes, np.ndarray, int]:
    """Modes and consensus distance per phase of a schedule that is not one symmetric matrix."""
    if topology.period is None:
        raise MixingError(
            f"topology {topology.name!r} is drawn anew at every step and has no stationary state of its own; predict "
            "on a long sample of it: from_matrices([topology[t] for t in range(100)])"
        )
    n = topology.size
    if n == 1:
        return Modes(None, h, np.zeros((0, len(h)))), np.zeros(topology.period), n
    _refuse_unstable(np.ones(1), h, lr, gamma, move)
    rounds = [restricted(w, where=f"round {t} of {topology.name!r}") for t, w in enumerate(topology)]
    joint = joint_spectrum(rounds)
    if joint is not None:
        mixes = list(adapted(joint, gamma)[:, :, None, None])  # per round: n - 1 matrices of size one
    else:
        mixes = [adapted_matrix(r, gamma)[None] for r in rounds]
    states = mixes[0].shape[0] * (mixes[0].shape[-1] * (2 if move.momentum else 1)) ** 2
    step = max(1, _CHUNK // (states * len(mixes)))
    tables, phases = [], np.zeros(len(mixes))
    for start in range(0, len(h), step):
        part = slice(start, start + step)
        covariance = _covariances(mixes, h[part], s2[part], lr, move)
        if not np.isfinite(covariance).all():
            _refuse_schedule(topology, mixes, h[part], lr, gamma, move, covariance)
        phases += np.trace(covariance, axis1=-2, axis2=-1).real.sum(axis=(1, 2)) / n
        mean = covariance.mean(axis=0)
        tables.append(mean[..., 0, 0].real if joint is not None else np.linalg.eigvalsh(mean[0])[:, ::-1].T)
    return Modes(None, h, np.concatenate(tables, axis=1)), phases, n


def _covariances(mixes: list[np.ndarray], h: np.ndarray, s2: np.ndarray, lr: float, move: Move) -> np.ndarray:
    """The covariance of x, (P, K, J, m, m), at the phases of the period."""
    maps, noises = [], []
    for mix in mixes:
        a, b = state_space(mix, h, lr, move)
        maps.append(a)
        noises.append((b * s2[:, None, None]) @ np.conj(np.swapaxes(b, -1, -2)))
    m = mixes[0].shape[-1]
    return lyapunov.periodic(maps, noises)[..., :m, :m]


def _refuse_schedule(
    topology: Topology,
    mixes: list[np.ndarray],
    h: np.ndarray,
    lr: float,
    gamma: float,
    move: Move,
    covariance: np.ndarray,
) -> None:
    """Names the curvature that is unstable and, by bisection on the spectral radius, the largest lr that works."""
    grows = h[~np.isfinite(covariance).all(axis=(0, 1, 3, 4))]
    worst = np.unique([grows.min(), grows.max()])

    def unstable(rate: float) -> bool:
        return bool(lyapunov.radius([state_space(mix, worst, rate, move)[0] for mix in mixes]).max() >= 1.0 - 1e-12)

    what = (
        f"{topology!r} with curvature {worst[-1]:.6g} (order {move.order}, momentum {move.momentum:g}, gamma {gamma:g})"
    )
    good, bad = lr / 2, lr
    while unstable(good):
        good, bad = good / 2, good
        if good < 1e-12 * lr or good == 0.0:
            raise MixingError(f"no learning rate below {lr:g} is stable for {what}: some disagreement is not damped")
    for _ in range(40):
        middle = 0.5 * (good + bad)
        good, bad = (good, middle) if unstable(middle) else (middle, bad)
    raise MixingError(f"lr = {lr:g} has no stationary state: {what} is stable for lr < {good:.6g}")
