r"""What theory says the disagreement must have been, from the gradient noise that was measured: no fitted constant.

At a few times the noise of one worker's gradient is measured by curvature: a measure whose weight at h is the noise
along directions of curvature h. Each is cut into J portions of equal noise, from the flattest to the sharpest, with
mean curvatures $h_1 \le \dots \le h_J$; these and the total noise $s^2$ are interpolated linearly in time, and the
covariance of every disagreement mode $\lambda_k$ along every portion follows the exact recursion of one step,

$$ C_{t+1} = A_t C_t A_t^\top + \tfrac{s_t^2}{J}\,B_t B_t^\top, \qquad
   \Xi_t = \tfrac1n \sum_{k\ge2,\,j} C_{t,xx}, \qquad P_t = \tfrac1{2n} \sum_{k\ge2,\,j} h_{j,t}\,C_{t,xx}, $$

with $A_t, B_t$ of `theory.modes` at the rate and gamma that were used (`theory.annealed.trajectory`). What is assumed:
the loss is quadratic at the scale of the disagreement, a direction keeps its rank in curvature while curvature
changes, and batches are independent in time (drawing without replacement makes them slightly anticorrelated). Ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dissensus.experiments.cell import Setup
from dissensus.experiments.optimizers import is_sgd
from dissensus.theory import Topology
from dissensus.theory.annealed import Trajectory, trajectory
from dissensus.theory.modes import Move, joint_spectrum, restricted

Measure = tuple[np.ndarray, np.ndarray]
"""Curvatures, and the noise of one worker along them."""
PORTIONS = 48
FEW = 32
"""Workers up to which rounds without common eigenvectors are followed as well, by the covariance of all of them."""


def predict(
    setup: Setup, measures: Mapping[int, Measure], lrs: Sequence[float], gammas: Sequence[float]
) -> Trajectory | None:
    """Consensus distance and envelope of a run; `None` where the theory does not apply.

    It applies to DSGD and DSGD-AC with SGD as the local move (momentum, Nesterov, weight decay), in every order, over
    the schedules that `follows` names, where all workers start at one point and draw from the same data, nothing fails
    or is clipped, and what was measured is finite. Where the theory's disagreement overflows it stays infinite.
    """
    move, cell = moves_of(setup), setup.cell
    if cell.data.partition not in ("shuffled", "iid") or cell.train.start == "independent":
        return None
    if cell.faults is not None or cell.train.clip is not None:
        return None
    if move is None or not measures or not follows(setup.topology):
        return None
    curvatures, noise = interpolated(measures, len(lrs))
    if not (np.isfinite(curvatures).all() and np.isfinite(noise).all()):
        return None
    return trajectory(
        setup.topology, curvatures, noise[:, None], lrs, gammas, move.momentum, move.order,
        nesterov=move.nesterov, weight_decay=move.weight_decay, overflow="inf",
    )  # fmt: skip


def moves_of(setup: Setup) -> Move | None:
    """Order, momentum, Nesterov and weight decay in the terms of the theory, or `None` outside of it."""
    algorithm, chosen = setup.engine.algorithm, setup.cell.optimizer
    if algorithm.name not in ("dsgd", "dsgd-ac") or not is_sgd(chosen.name):
        return None
    known = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    if set(chosen.parameters) - set(known):
        return None
    return Move.of(getattr(algorithm, "order", "awc"), **{**known, **chosen.parameters})


def follows(topology: Topology) -> bool:
    """Whether the recursion is affordable: rounds that share their eigenvectors, or at most `FEW` workers.

    The first are all static symmetric topologies and circulant and XOR schedules. Column-stochastic rounds are out.
    """
    if topology.promise == "column":
        return False
    if topology.size <= FEW or (topology.is_static and topology.is_symmetric):
        return True
    return bool(topology.rounds) and joint_spectrum([restricted(w) for w in topology.rounds]) is not None


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
