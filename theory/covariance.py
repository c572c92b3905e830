r"""The covariance of the disagreement as a matrix, for a noise covariance that does not commute with the Hessian.

In the eigenbasis of H, with $S_{ab}$ the noise covariance there, the disagreement of directions a and b obeys a Stein
equation per worker mode, $C_{ab} = A_a C_{ab} A_b^* + S_{ab}B_aB_b^*$ with the step maps of `modes`. Without momentum
and with a static symmetric W it is solved at sight:

$$ \Sigma_{ab} = \frac{\alpha^2 S_{ab}}{n}\sum_{k\ge2}\frac{c_k^2}{1-t_{ka}t_{kb}}, \qquad
   t_{ka} = \mu_k-\alpha h_a \ \text{(AWC)}, \quad \mu_k(1-\alpha h_a) \ \text{(ATC, CTA)}, $$

with $c_k = \mu_k$ (ATC) or 1. The diagonal is what `stationary.predict` gives from the diagonal of S alone: consensus
distance, envelope and alignment do not see the rest of S, principal directions of the disagreement do. Ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dissensus.theory import lyapunov, stationary
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

_CHUNK = 1 << 22


def covariance(
    topology: Topology | Any,
    hessian: Any,
    noise: Any,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> np.ndarray:
    r"""$\Sigma = \mathbb{E}\,\frac1n\sum_i(x_i-\bar x)(x_i-\bar x)^\top$, d x d, averaged over the phases of a period.

    `hessian` and `noise` are symmetric d x d matrices, common to all workers. Settings without a stationary state are
    refused as `stationary.predict` does.
    """
    hess, noise = _symmetric(hessian, "hessian"), _symmetric(noise, "noise")
    if hess.shape != noise.shape:
        raise MixingError(f"hessian and noise must have one shape, got {hess.shape} and {noise.shape}")
    h, basis = np.linalg.eigh(hess)
    s = basis.T @ noise @ basis
    variances = np.diagonal(s)
    settings = {"lr": lr, "momentum": momentum, "gamma": gamma, "order": order, "nesterov": nesterov}
    # refuses what is not stable, and checks every argument
    stationary.predict(topology, h, np.maximum(variances, 0.0), **settings, weight_decay=weight_decay)
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    if not isinstance(topology, Topology) or (topology.is_static and topology.is_symmetric):
        lam, n = disagreement_eigenvalues(topology)
        mu = adapted(lam, gamma)
        if momentum == 0.0:
            seen = _closed(mu, h, lr, move) * s / n
            return basis @ seen @ basis.T
        mixes = [mu[:, None, None]]
    else:
        n = topology.size
        if n == 1:
            return np.zeros_like(s)
        rounds = [restricted(w) for w in topology]
        joint = joint_spectrum(rounds)
        if joint is not None:
            mixes = list(adapted(joint, gamma)[:, :, None, None])
        else:
            mixes = [adapted_matrix(r, gamma)[None] for r in rounds]
    return basis @ (_pairs(mixes, h, lr, move) * s / n) @ basis.T


def _closed(mu: np.ndarray, h: np.ndarray, lr: float, move: Move) -> np.ndarray:
    """The factor on S_ab, summed over modes, without momentum."""
    if move.order == "awc":
        t = mu[:, None] - lr * (h + move.weight_decay * mu[:, None])
    else:
        t = mu[:, None] * (1.0 - lr * (h + move.weight_decay))
    gain = (lr * (mu if move.order == "atc" else np.ones_like(mu))) ** 2
    return np.einsum("k,kab->ab", gain, 1.0 / (1.0 - t[:, :, None] * t[:, None, :]))


def _pairs(mixes: list[np.ndarray], h: np.ndarray, lr: float, move: Move) -> np.ndarray:
    """The same by Stein equations, one per pair of directions and mode, averaged over the phases."""
    maps, inputs = zip(*(state_space(mix, h, lr, move) for mix in mixes), strict=True)
    count, m = len(h), mixes[0].shape[-1]
    rows = max(1, _CHUNK // max(1, count * maps[0][:, 0].size))
    out = np.zeros((count, count))
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        left, right = [a[:, part, None] for a in maps], [a[:, None] for a in maps]
        fresh = [b[:, part, None] @ _star(b[:, None]) for b in inputs]
        lifted_left, lifted_right, gathered = left[0], right[0], fresh[0]
        for a, b, q in zip(left[1:], right[1:], fresh[1:], strict=True):
            gathered = a @ gathered @ _star(b) + q
            lifted_left, lifted_right = a @ lifted_left, b @ lifted_right
        state = lyapunov.solve(lifted_left, gathered, lifted_right)
        for a, b, q in zip(left, right, fresh, strict=True):
            out[part] += np.trace(state[..., :m, :m], axis1=-2, axis2=-1).real.sum(axis=0) / len(mixes)
            state = a @ state @ _star(b) + q
    return out


def _star(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


def _symmetric(given: Any, what: str) -> np.ndarray:
    m = np.asarray(given, dtype=np.float64)
    if m.ndim != 2 or m.shape[0] != m.shape[1] or not np.isfinite(m).all():
        raise MixingError(f"{what} must be a finite square matrix, got shape {m.shape}")
    if np.abs(m - m.T).max(initial=0.0) > 1e-10 * max(1.0, float(np.abs(m).max(initial=0.0))):
        raise MixingError(f"{what} must be symmetric")
    return 0.5 * (m + m.T)
