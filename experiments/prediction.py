r"""What theory says the disagreement must have been, from the gradient noise that was measured: no fitted constant.

At a few times the noise of one worker's gradient is measured by curvature: a measure whose weight at h is the noise
along directions of curvature h. Each is cut into J portions of equal noise, from the flattest to the sharpest, with
mean curvatures $h_1 \le \dots \le h_J$; these and the total noise $s^2$ are interpolated linearly in time, and the
covariance of every disagreement mode $\lambda_k$ along every portion follows the exact recursion of one step,

$$ C_{t+1} = A_t C_t A_t^\top + \tfrac{s_t^2}{J}\,B_t B_t^\top, \qquad
   \Xi_t = \tfrac1n \sum_{k\ge2,\,j} C_{t,xx}, \qquad P_t = \tfrac1{2n} \sum_{k\ge2,\,j} h_{j,t}\,C_{t,xx}, $$

with $A_t, B_t$ of `theory.modes` at the rate and gamma that were used. What is assumed: the loss is quadratic at the
scale of the disagreement, a direction keeps its rank in curvature while curvature changes, and batches are independent
in time (drawing without replacement makes them slightly anticorrelated). Ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dissensus.experiments.cell import Setup
from dissensus.experiments.optimizers import is_sgd
from dissensus.theory import Topology
from dissensus.theory.modes import Move, adapted, disagreement_eigenvalues, joint_spectrum, restricted, step_map

Measure = tuple[np.ndarray, np.ndarray]
"""Curvatures, and the noise of one worker along them."""
PORTIONS = 48


class Predicted(NamedTuple):
    """Expected disagreement before step 0, 1, ..., T."""

    xi: np.ndarray
    """The consensus distance."""
    envelope: np.ndarray
    """Half of tr(H Sigma)."""


def predict(
    setup: Setup, measures: Mapping[int, Measure], lrs: Sequence[float], gammas: Sequence[float]
) -> Predicted | None:
    """Consensus distance and envelope of a run; `None` where the theory does not apply.

    It applies to DSGD and DSGD-AC with SGD as the local move (momentum, Nesterov, weight decay), in every order, over
    rounds that share their eigenvectors (every static symmetric topology, circulant and XOR schedules), where all
    workers start at one point and draw from the same data, and nothing fails or is clipped.
    """
    move, modes = moves_of(setup), modes_of(setup.topology)
    if setup.cell.data.partition not in ("shuffled", "iid") or setup.cell.train.start == "independent":
        return None
    if setup.cell.faults is not None or setup.cell.train.clip is not None:
        return None
    if move is None or modes is None or not measures:
        return None
    return recursion(modes, setup.topology.size, interpolated(measures, len(lrs)), lrs, gammas, move)


def moves_of(setup: Setup) -> Move | None:
    """Order, momentum, Nesterov and weight decay in the terms of the theory, or `None` outside of it."""
    algorithm, chosen = setup.engine.algorithm, setup.cell.optimizer
    if algorithm.name not in ("dsgd", "dsgd-ac") or not is_sgd(chosen.name):
        return None
    known = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    if set(chosen.parameters) - set(known):
        return None
    return Move.of(getattr(algorithm, "order", "awc"), **{**known, **chosen.parameters})


def modes_of(topology: Topology) -> np.ndarray | None:
    """The eigenvalues of the modes in every round of the period, (P, n - 1); `None` if they share no eigenvectors."""
    if topology.is_static and topology.is_symmetric:
        return disagreement_eigenvalues(topology)[0][None]
    return joint_spectrum([restricted(w) for w in topology.rounds]) if topology.rounds else None


def portions(measure: Measure, count: int = PORTIONS) -> tuple[np.ndarray, float]:
    """The mean curvatures of `count` portions of equal noise, in rising order, and the total noise."""
    nodes, weights = (np.asarray(part, dtype=np.float64) for part in measure)
    order = np.argsort(nodes)
    reached = np.concatenate([[0.0], np.cumsum(weights[order])])
    weighted = np.concatenate([[0.0], np.cumsum(weights[order] * nodes[order])])
    total = float(reached[-1])
    if total <= 0.0:
        return np.zeros(count), 0.0
    edges = np.interp(np.linspace(0.0, total, count + 1), reached, weighted)
    return np.diff(edges) * count / total, total


def interpolated(measures: Mapping[int, Measure], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures (T + 1, J) and noise of one worker along each of them (T + 1,), linear between the measurements."""
    times = sorted(measures)
    cut = [portions(measures[t]) for t in times]
    curvatures, totals = np.stack([h for h, _ in cut]), np.array([total for _, total in cut])
    at = np.arange(steps + 1)
    h = np.stack([np.interp(at, times, column) for column in curvatures.T], axis=1)
    return h, np.interp(at, times, totals) / curvatures.shape[1]


def recursion(
    modes: np.ndarray,
    n: int,
    noise: tuple[np.ndarray, np.ndarray],
    lrs: Sequence[float],
    gammas: Sequence[float],
    move: Move,
) -> Predicted:
    """Second moments (xx, xv, vv) per mode and portion of noise, from consensus at step 0."""
    curvatures, variances = noise
    shape = (modes.shape[1], curvatures.shape[1])
    xx, vv, xv = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=modes.dtype)
    xi, envelope = np.zeros(len(lrs) + 1), np.zeros(len(lrs) + 1)
    for t, (lr, gamma) in enumerate(zip(lrs, gammas, strict=True)):
        a = step_map(adapted(modes[t % len(modes)], gamma)[:, None], 1.0, curvatures[t], lr, move)
        s2 = variances[t]
        old = (xx, xv, vv)
        xx = np.real(_second(a.a11, a.a12, a.a11, a.a12, old) + s2 * _product(a.b1, a.b1))
        xv = _second(a.a11, a.a12, a.a21, a.a22, old) + s2 * _product(a.b1, a.b2)
        vv = np.real(_second(a.a21, a.a22, a.a21, a.a22, old) + s2 * _product(a.b2, a.b2))
        along = xx.sum(axis=0)
        xi[t + 1], envelope[t + 1] = along.sum() / n, 0.5 * (curvatures[t + 1] @ along) / n
    return Predicted(xi, envelope)


def _second(a: Any, b: Any, c: Any, d: Any, old: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """E[(a x + b v) (c x + d v)*] from E|x|^2, E[x v*], E|v|^2."""
    xx, xv, vv = old
    return _product(a, c) * xx + _product(a, d) * xv + _product(b, c) * np.conj(xv) + _product(b, d) * vv


def _product(a: Any, b: Any) -> Any:
    return np.asarray(a * np.conj(b))
