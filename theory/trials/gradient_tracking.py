r"""Trials of the bounds on gradient tracking: spectral radii of the actual recursion, and runs.

On quadratics a step is linear. Written with $S = Y - g(X)$, whose mean stays zero, it is
$X^+ = WX-\alpha(S+HX)$, $S^+ = WS + (W-I)HX$ up to constants: the spectral radius of this map, S kept among the
disagreements, is the rate itself. Losses of single workers need not be convex where only their mean must be.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import null_space

from dissensus.theory.bounds.gradient_tracking import Diging, Tracking, TrackingProblem, TrackingRun, largest_step
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.dadam import contraction, mixing
from dissensus.theory.trials.functions import Functions, Quadratics, heterogeneity_at, random_logistic, random_spread


def affine(w: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """B and C of a step B - lr C on quadratics of these Hessians (n, d, d), tracked gradients in balance."""
    n, d, _ = curvature.shape
    big = n * d
    h, across = np.zeros((big, big)), np.kron(w, np.eye(d))
    for i, block in enumerate(curvature):
        h[i * d : (i + 1) * d, i * d : (i + 1) * d] = block
    among = np.kron(null_space(np.ones((1, n))), np.eye(d))
    still = np.zeros((big + len(among.T), big + len(among.T)))
    moving = np.zeros_like(still)
    still[:big, :big] = across
    still[big:, :big] = among.T @ (across - np.eye(big)) @ h
    still[big:, big:] = among.T @ across @ among
    moving[:big, :big], moving[:big, big:] = h, among
    return still, moving


def radius(w: np.ndarray, curvature: np.ndarray, lr: float) -> float:
    """The spectral radius of a step: the rate itself."""
    still, moving = affine(w, curvature)
    return float(np.abs(np.linalg.eigvals(still - lr * moving)).max())


def run(w: np.ndarray, f: Functions, start: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """The points after so many steps, (n, d)."""
    x = np.tile(start, (f.size, 1))
    g = f.gradients(x)
    y = g
    for _ in range(steps):
        x = w @ x - lr * y
        latest = f.gradients(x)
        y, g = w @ y + latest - g, latest
    return x


def quadratics(draws: Draws, size: int, dimension: int, *, convex: bool) -> tuple[Quadratics, float, float]:
    """Quadratics with the smoothness of the roughest and the convexity of their mean."""
    rng, low = draws.generator(), draws.real(1e-3, 1.0, log=True)
    turned = [np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] for _ in range(size)]
    curvature = np.stack([(q * rng.uniform(low, 1.0, dimension)) @ q.T for q in turned])
    if not convex:
        bend = rng.normal(size=curvature.shape) * draws.choice((0.0, 1.0, 10.0))
        bend += bend.transpose(0, 2, 1)
        curvature = curvature + bend - bend.mean(0)
    q = Quadratics(curvature, random_spread(rng, size, dimension, draws.choice((0.0, draws.real(1e-2, 1e2, log=True)))))
    return q, q.smoothness, float(np.linalg.eigvalsh(curvature.mean(0))[0])


def _mixes(draws: Draws, size: int) -> tuple[np.ndarray, float, float]:
    """A matrix that mixes, its contraction, and its smallest eigenvalue where it is symmetric."""
    w = mixing(draws, size)
    if contraction(w) > 1.0 - 1e-6:
        w = 0.5 * w + 0.5 / size
    least = float(np.linalg.eigvalsh(w)[0]) if np.array_equal(w, w.T) and draws.choice((True, False)) else -1.0
    return w, contraction(w), max(-1.0, min(least, contraction(w)))


def _tracked(draws: Draws) -> tuple[np.ndarray, Quadratics, Tracking]:
    size = draws.integer(2, 6)
    w, rho, least = _mixes(draws, size)
    q, smooth, convex = quadratics(draws, size, draws.integer(1, 3), convex=draws.choice((True, False)))
    lr = largest_step(TrackingProblem(rho, smooth, convex, least)) * draws.real(1e-2, 1.5, log=True)
    return w, q, Tracking(rho, smooth, convex, lr, least)


@trial("gradient-tracking-rate")
def _rate(draws: Draws) -> Trial:
    w, q, p = _tracked(draws)
    return Trial(p, radius(w, q.curvature, p.lr))


@trial("gradient-tracking-rate", "large steps")
def _large(draws: Draws) -> Trial:
    """A complete graph and steps at which gradient descent itself is at its limit."""
    size = draws.integer(2, 4)
    q, smooth, convex = quadratics(draws, size, 2, convex=True)
    p = Tracking(0.0, smooth, convex, draws.real(0.1, 3.0) / smooth, 0.0)
    return Trial(p, radius(np.full((size, size), 1.0 / size), q.curvature, p.lr))


@trial("gradient-tracking-error")
def _error(draws: Draws) -> Trial:
    w, q, p = _tracked(draws)
    return _ran(draws, w, q, p, np.zeros(q.dimension), draws.integer(1, 30))


@trial("gradient-tracking-error", "logistic")
def _error_logistic(draws: Draws) -> Trial:
    size = draws.integer(2, 6)
    w, rho, least = _mixes(draws, size)
    f = random_logistic(draws, size, draws.integer(1, 3))
    step = largest_step(TrackingProblem(rho, f.smoothness, f.decay, least)) * draws.real(0.1, 3.0)
    p = Tracking(rho, f.smoothness, f.decay, step, least)
    return _ran(draws, w, f, p, f.minimiser(), draws.integer(1, 30))


@trial("gradient-tracking-error", "two workers")
def _error_two(draws: Draws) -> Trial:
    """One number per worker and no cancellation: equal curvature, opposite slopes."""
    rho, slope = draws.real(0.0, 0.99), draws.choice((0.0, draws.real(1e-2, 1e2, log=True)))
    w = np.array([[1.0 + rho, 1.0 - rho], [1.0 - rho, 1.0 + rho]]) / 2.0
    q = Quadratics(np.ones((2, 1, 1)), np.array([[slope], [-slope]]))
    p = Tracking(rho, 1.0, 1.0, draws.real(1e-3, 1.9, log=True), rho)
    return _ran(draws, w, q, p, np.zeros(1), draws.integer(1, 6))


def _ran(draws: Draws, w: np.ndarray, f: Functions, p: Tracking, best: np.ndarray, steps: int) -> Trial:
    direction = draws.generator().normal(size=f.dimension)
    distance = draws.real(1e-2, 1e2, log=True)
    start = best + distance * direction / np.linalg.norm(direction)
    x = run(w, f, start, p.lr, steps)
    problem = TrackingRun(
        p.contraction,
        p.smoothness,
        p.convexity,
        p.lr,
        p.lambda_min,
        steps,
        float(np.linalg.norm(start - best)),
        heterogeneity_at(f, start),
    )
    return Trial(problem, float(np.sqrt(np.mean(np.sum((x - best) ** 2, 1)))))


@trial("gradient-tracking-step")
def _step(draws: Draws) -> Trial:
    size = draws.integer(2, 4)
    w, rho, least = _mixes(draws, size)
    q, smooth, convex = quadratics(draws, size, draws.integer(1, 2), convex=draws.choice((True, False)))
    return Trial(TrackingProblem(rho, smooth, convex, least), first_unstable(w, q.curvature, smooth))


@trial("gradient-tracking-step", "complete graph")
def _step_complete(draws: Draws) -> Trial:
    size = draws.integer(2, 4)
    q, smooth, convex = quadratics(draws, size, draws.integer(1, 2), convex=False)
    w = np.full((size, size), 1.0 / size)
    return Trial(TrackingProblem(0.0, smooth, convex, 0.0), first_unstable(w, q.curvature, smooth))


def first_unstable(w: np.ndarray, curvature: np.ndarray, smoothness: float) -> float:
    """The smallest step size, on a fine ladder and then by bisection, at which a step does not contract."""
    still, moving = affine(w, curvature)

    def grows(lr: float) -> bool:
        return bool(np.abs(np.linalg.eigvals(still - lr * moving)).max() >= 1.0)

    ladder = np.geomspace(1e-6, 3.0, 60) / smoothness
    at = next((k for k, lr in enumerate(ladder) if grows(lr)), len(ladder) - 1)
    low, high = (0.0 if at == 0 else ladder[at - 1]), ladder[at]
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (low, middle) if grows(middle) else (middle, high)
    return float(high)


@trial("diging-rate")
def _diging(draws: Draws) -> Trial:
    size = draws.integer(2, 6)
    w, rho, _ = _mixes(draws, size)
    q, smooth, convex = quadratics(draws, size, draws.integer(1, 3), convex=True)
    most = (1.0 - rho) ** 2 / (2.0 * smooth * (1.0 + 4.0 * np.sqrt(size * smooth / convex)))
    p = Diging(size, rho, smooth, convex, float(most) * draws.real(1e-3, 0.999, log=True))
    return Trial(p, radius(w, q.curvature, p.lr))
