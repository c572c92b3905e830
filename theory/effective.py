r"""The effective number of neighbours: how many workers' noise one worker averages away.

The process of Vogels, Hendrikx and Jaggi ("Beyond spectral gap", 2022): values forget with memory $g\in[0,1)$, take
up fresh unit noise, and are mixed, $x \leftarrow W_t(\sqrt g\, x + \xi_t)$. A worker alone keeps the variance
$1/(1-g)$; so

$$ n_W(g) = \frac{1/(1-g)}{\tfrac1n \operatorname{tr} C}, \qquad C_{t+1} = W_t\,(g\,C_t + I)\,W_t^\top ,$$

with C the stationary covariance, its trace averaged over the phases of the period. For one symmetric W the paper's code
has the trace as $\sum_i \lambda_i^2/(1-g\lambda_i^2)$. The forms for directed and periodic schedules and the
estimate by probes are ours. Normalised so that n workers who average completely count n at every g; as g -> 1 every
doubly stochastic schedule that mixes counts n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.spectrum import DENSE_EIGENVALUES, circulant_eigenvalues, circulant_row
from dissensus.theory.topology import Topology

DENSE_COVARIANCE = 500
"""Up to this n the covariance of a schedule that is neither symmetric and static nor circulant is solved densely."""
CUT = 1e-5
"""Memory beyond this share is cut off in an estimate: far below its standard error, and added to it."""


@dataclass(frozen=True)
class Neighbours:
    """An estimated n_W(g): probes give the standard error, cutting the memory off adds at most `truncation`."""

    value: float
    standard_error: float
    truncation: float
    probes: int
    steps: int


def effective_neighbours(topology: Topology, memory: float) -> float:
    """The exact n_W(g), from eigenvalues where the rounds share eigenvectors, else from the covariance itself."""
    _check(topology, memory)
    n = topology.size
    if topology.period is None:
        raise MixingError(
            f"topology {topology.name!r} is drawn at every step: its covariance has no closed form; "
            "use estimate_neighbours, which says its error"
        )
    if n == 1:
        return 1.0
    powers = _mode_powers(topology)
    if powers is not None:
        return float(n * (1.0 / (1.0 - memory)) / _commuting_trace(powers, memory))
    if n > DENSE_COVARIANCE:
        static = topology.is_static and topology.is_symmetric
        limit = DENSE_EIGENVALUES if static else DENSE_COVARIANCE
        raise MixingError(
            f"effective_neighbours of {topology.name!r} is exact up to n={limit}, got n={n}; "
            "use estimate_neighbours, which says its error"
        )
    return float(n * (1.0 / (1.0 - memory)) / _covariance_trace(topology, memory))


def estimate_neighbours(
    topology: Topology, memory: float, *, probes: int = 16, phases: int | None = None, seed: int = 0
) -> Neighbours:
    r"""n_W(g) at any n and for drawn schedules, by pushing random signs z through the rounds.

    $\operatorname{tr} C = \sum_k g^k\, E\|W_{s+k}\cdots W_s z\|^2$, averaged over starting steps s: all phases of a
    period, or `phases` steps (64 unless told otherwise) of a drawn schedule. The mean, whose share is known, is taken
    out of z. The standard error is over the starting steps of a drawn schedule, over the probes otherwise.
    """
    _check(topology, memory)
    if probes < 2:
        raise MixingError(f"an error estimate needs at least 2 probes, got {probes}")
    n, starts = topology.size, phases or topology.period or 64
    steps = 1 if memory == 0 else max(1, int(np.ceil(np.log(CUT) / np.log(memory))))
    rng = np.random.default_rng(seed)
    doubly = all(w.is_doubly_stochastic for w in topology.rounds or (topology[0],))
    traces = np.zeros((starts, probes))
    pushed: dict[int, np.ndarray] = {}
    for t in range(starts + steps - 1):
        w = topology[t]
        if t < starts:
            z = rng.choice([-1.0, 1.0], size=(n, probes))
            pushed[t] = z - z.mean(axis=0) if doubly else z
        pushed.pop(t - steps, None)
        for s in pushed:
            pushed[s] = w @ pushed[s]
            traces[s] += memory ** (t - s) * np.einsum("ij,ij->j", pushed[s], pushed[s])
    lone = 1.0 / (1.0 - memory)
    trace = float(traces.mean()) + (lone if doubly else 0.0)
    sample = traces.mean(axis=1 if topology.period is None else 0)
    error = float(sample.std(ddof=1)) / np.sqrt(len(sample)) if len(sample) > 1 else np.inf
    value, tail = n * lone / trace, memory**steps * lone * n
    return Neighbours(value, float(value * error / trace), float(value * tail / trace), probes, steps)


def _check(topology: Topology, memory: float) -> None:
    if not 0.0 <= memory < 1.0:
        raise MixingError(f"memory must lie in [0, 1), got {memory}: at 1 noise is never forgotten")
    for t, w in enumerate(topology.rounds or (topology[0],)):
        if not w.is_row_stochastic:
            raise MixingError(
                f"topology {topology.name!r}: round {t} is column stochastic, its rows do not average, so that no "
                "number of neighbours belongs to it; use row or doubly stochastic weights"
            )


def _mode_powers(topology: Topology) -> np.ndarray | None:
    """|lambda|² per phase and mode when all rounds share orthonormal eigenvectors, else `None`."""
    first, n = topology[0], topology.size
    if topology.is_static and topology.closed_form.eigenvalues is not None:
        return np.abs(topology.closed_form.eigenvalues())[None, :] ** 2
    rows = [circulant_row(w) for w in topology]
    if all(row is not None for row in rows):
        return np.abs([circulant_eigenvalues(row, n) for row in rows if row is not None]) ** 2
    if topology.is_static and first.is_symmetric and n <= DENSE_EIGENVALUES:
        return np.linalg.eigvalsh(first.dense())[None, :] ** 2
    return None


def _commuting_trace(powers: np.ndarray, memory: float) -> float:
    """The periodic solution of c <- |lambda_t|² (g c + 1) in each mode, summed over modes, averaged over phases."""
    rate, once = np.ones(powers.shape[1]), np.zeros(powers.shape[1])
    for p in powers:
        once = p * (memory * once + 1.0)
        rate = rate * memory * p
    c, total = once / (1.0 - rate), 0.0
    for p in powers:
        c = p * (memory * c + 1.0)
        total += float(c.sum())
    return total / len(powers)


def _covariance_trace(topology: Topology, memory: float) -> float:
    """The same for matrices: one period is C <- A C Aᵀ + Q, whose fixed point sum A^k Q A^kᵀ is found by doubling."""
    n = topology.size
    a, q = np.eye(n), np.zeros((n, n))
    for w in topology:
        q = _through(w, q, memory)
        a = np.sqrt(memory) * (w @ a)
    while True:
        more = a @ q @ a.T
        q = q + more
        if np.abs(more).max() <= 1e-17 * np.abs(q).max():
            break
        a = a @ a
    c, total = q, 0.0
    for w in topology:
        c = _through(w, c, memory)
        total += float(np.trace(c))
    return total / len(topology.rounds)


def _through(w: MixingMatrix, c: np.ndarray, memory: float) -> np.ndarray:
    noisy = memory * c + np.eye(len(c))
    return w @ (w @ noisy).T
