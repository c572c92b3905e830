"""One step from random and from worst disagreements, along random and along worst gradients."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.consensus_step import GivenGradients, Order, SmoothStep
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial

ORDERS: tuple[Order, ...] = ("awc", "atc")


def _distance(x: np.ndarray) -> float:
    return float((graphs.apart(x) ** 2).sum() / len(x))


def _given(w: np.ndarray, x: np.ndarray, g: np.ndarray, lr: float, order: Order) -> Trial:
    after = w @ (x - lr * g) if order == "atc" else w @ x - lr * g
    scale = float((x**2).sum() + lr**2 * (g**2).sum())
    problem = GivenGradients(graphs.contraction(w), lr, _distance(x), _distance(g), order)
    return Trial(problem, graphs.surely(_distance(after), scale))


@trial("consensus-step-young")
@trial("consensus-step-minkowski")
def given(draws: Draws) -> Trial:
    """Anything along anything."""
    w = graphs.mixing(draws)
    if graphs.contraction(w) >= 1.0 - 1e-9:
        w = (w + graphs.average(len(w))) / 2.0
    x, g = graphs.random_state(draws, len(w)), graphs.random_state(draws, len(w))
    return _given(w, x, g, draws.real(1e-2, 1e1, log=True), draws.choice(ORDERS))


@trial("consensus-step-young", "slowest mode")
@trial("consensus-step-minkowski", "slowest mode")
def given_slowest(draws: Draws) -> Trial:
    """Disagreement and gradients along the slowest mode, pushing outwards: attained."""
    w, order = graphs.connected(draws), draws.choice(ORDERS)
    lam, mode = graphs.contraction(w), graphs.slowest(w)[:, None]
    outward = mode if order == "atc" else np.sign(float((mode * (w @ mode)).sum()) or 1.0) * mode
    # Young's parameter suits gradients of this size; others are drawn too
    fitting = (1.0 - lam) / (max(lam, 1e-3) if order == "atc" else 1.0)
    size = fitting * (draws.real(0.1, 10.0, log=True) if draws.choice((False, True)) else 1.0)
    return _given(w, mode, -size * outward, 1.0, order)


@trial("consensus-step-smooth")
def smooth(draws: Draws) -> Trial:
    """Quadratics of any curvature, unlike from worker to worker, from a random state; the noise's share is exact."""
    w, order, d = graphs.mixing(draws), draws.choice(ORDERS), draws.integer(1, 3)
    n, rng = len(w), draws.generator()
    x = graphs.random_state(draws, n, d)
    curvature = rng.normal(size=(n, d, d))
    curvature = curvature + curvature.transpose(0, 2, 1)
    if draws.choice((False, True)):
        curvature[:] = curvature[0]
    push = rng.normal(size=(n, d)) * draws.real(1e-2, 1e1, log=True)
    return _smooth(draws, w, order, x, curvature, push)


@trial("consensus-step-smooth", "slowest mode")
def smooth_slowest(draws: Draws) -> Trial:
    """One negative curvature, everything along the slowest mode of a W whose modes are all alike: attained."""
    n = draws.integer(2, 8)
    w, order = graphs.even(n, draws.real(0.0, 1.0)), draws.choice(ORDERS)
    mode = graphs.slowest(w)[:, None]
    curvature = np.full((n, 1, 1), -draws.real(1e-2, 1e1, log=True))
    return _smooth(draws, w, order, mode, curvature, -mode * draws.real(0.1, 10.0, log=True))


def _smooth(draws: Draws, w: np.ndarray, order: Order, x: np.ndarray, curvature: np.ndarray, push: np.ndarray) -> Trial:
    n, mean = len(w), x.mean(axis=0)
    lr = draws.real(1e-2, 1e1, log=True)
    noise = draws.choice((0.0, 1.0)) * draws.real(1e-2, 1e1, log=True)
    g = np.einsum("ijk,ik->ij", curvature, x) + push
    at_mean = np.einsum("ijk,k->ij", curvature, mean) + push
    after = w @ (x - lr * g) if order == "atc" else w @ x - lr * g
    # independent noise of mean square `noise` passes through I - J, or through W - J
    through = w - graphs.average(n) if order == "atc" else np.eye(n) - graphs.average(n)
    measured = _distance(after) + lr**2 * noise * float((through**2).sum()) / n
    problem = SmoothStep(
        size=n,
        contraction=graphs.contraction(w),
        smoothness=float(np.abs(np.linalg.eigvalsh(curvature)).max()),
        lr=lr,
        consensus_distance=_distance(x),
        noise=noise,
        heterogeneity=_distance(at_mean),
        order=order,
    )
    return Trial(problem, graphs.surely(measured, float((x**2).sum() + lr**2 * (g**2).sum())))
