"""DGD run on quadratics, on log-cosh and on cosines, which are smooth and bounded below without being convex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dissensus.theory.bounds.yuan_ling_yin import Descent, Deviation, OwnFixedPoint
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


@dataclass(frozen=True)
class Objective:
    """One function per worker, the values and gradients of all at rows x."""

    value: Callable[[np.ndarray], np.ndarray]
    """Above the infimum of each."""
    gradient: Callable[[np.ndarray], np.ndarray]
    smoothness: float
    dimension: int = 1


def quadratics(draws: Draws, n: int, d: int) -> Objective:
    """Curvatures between zero and L, optima apart."""
    rng, smoothness = draws.generator(), draws.real(1e-2, 1e1, log=True)
    scales = rng.uniform(0.0, smoothness, size=(n, d)) * rng.integers(0, 2, size=(n, d))
    turn = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    h = np.einsum("iab,ib,icb->iac", turn, scales, turn)
    optima = rng.normal(size=(n, d)) * draws.real(0.1, 10.0, log=True)

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.einsum("iab,ib->ia", h, x - optima)

    def value(x: np.ndarray) -> np.ndarray:
        return ((x - optima) * gradient(x)).sum(axis=1) / 2.0

    return Objective(value, gradient, float(max(scales.max(), 1e-3)), d)


def separable(draws: Draws, n: int, d: int, *, convex: bool) -> Objective:
    """Sums over coordinates of log cosh (convex) or of 1 - cos (not), each of its own scale and centre."""
    rng, smoothness = draws.generator(), draws.real(1e-2, 1e1, log=True)
    centres = rng.normal(size=(n, d)) * 3.0
    width = rng.uniform(0.3, 3.0, size=(n, d))
    height = smoothness * width**2 * rng.uniform(0.0, 1.0, size=(n, d))  # curvature at most height / width²

    def value(x: np.ndarray) -> np.ndarray:
        z = (x - centres) / width
        shape = np.logaddexp(z, -z) - np.log(2.0) if convex else 1.0 - np.cos(z)
        return (height * shape).sum(axis=1)

    def gradient(x: np.ndarray) -> np.ndarray:
        z = (x - centres) / width
        return height / width * (np.tanh(z) if convex else np.sin(z))

    return Objective(value, gradient, smoothness, d)


def _objective(draws: Draws, n: int) -> Objective:
    kind, d = draws.choice(("quadratics", "log-cosh", "cosines")), draws.integer(1, 3)
    return quadratics(draws, n, d) if kind == "quadratics" else separable(draws, n, d, convex=kind == "log-cosh")


def _run(draws: Draws, w: np.ndarray, f: Objective) -> tuple[Descent, list[np.ndarray]]:
    n, lowest = len(w), float(graphs.modes(w)[0])
    x = np.tile(draws.generator().normal(size=f.dimension) * draws.real(0.1, 3.0), (n, 1))
    lr = draws.real(1e-2, 1.0, log=True) * (1.0 + lowest) / f.smoothness * (1.0 - 1e-12)
    problem = Descent(lowest, f.smoothness, lr, float(f.value(x).sum()))
    path = [x]
    for _ in range(40):
        x = w @ x - lr * f.gradient(x)
        path.append(x)
    return problem, path


def _negative_free(draws: Draws) -> np.ndarray:
    """A symmetric W that mixes and whose least eigenvalue leaves room for a step."""
    w = graphs.connected(draws, 2, 8)
    return w if graphs.modes(w)[0] > -0.99 else 0.9 * w + 0.1 * np.eye(len(w))


@trial("yuan-ling-yin-gradients")
def gradients(draws: Draws) -> Trial:
    """The largest gradient on the way."""
    w = _negative_free(draws)
    f = _objective(draws, len(w))
    problem, path = _run(draws, w, f)
    return Trial(problem, max(float(np.linalg.norm(f.gradient(x))) for x in path))


@trial("yuan-ling-yin-deviation")
def deviation(draws: Draws) -> Trial:
    """The disagreement after some steps, or the largest of all."""
    w = _negative_free(draws)
    f = _objective(draws, len(w))
    return _deviation(draws, w, f)


def _deviation(draws: Draws, w: np.ndarray, f: Objective) -> Trial:
    p, path = _run(draws, w, f)
    found = [graphs.surely(float(np.linalg.norm(graphs.apart(x))), float(np.linalg.norm(x))) for x in path]
    steps = draws.choice((float("inf"), float(draws.integer(1, 40))))
    measured = max(found) if steps == float("inf") else found[int(steps)]
    return Trial(Deviation(**p.__dict__, contraction=graphs.contraction(w), steps=steps), measured)


@trial("yuan-ling-yin-gradients", "one curvature")
def alike_gradients(draws: Draws) -> Trial:
    """Quadratics of curvature L: attained at the start."""
    w = _negative_free(draws)
    f = _alike(draws, len(w))
    problem, path = _run(draws, w, f)
    return Trial(problem, max(float(np.linalg.norm(f.gradient(x))) for x in path))


@trial("yuan-ling-yin-deviation", "slow mixing")
def slow(draws: Draws) -> Trial:
    """Optima along the slowest mode, hardly any mixing, small steps, from their mean: nearly attained."""
    n = draws.integer(2, 8)
    w = graphs.even(n, 1.0 - draws.real(1e-3, 1.0, log=True))
    c = graphs.slowest(w)[:, None]
    lr, steps = draws.real(1e-4, 1e-1, log=True), draws.integer(1, 30)
    x, lowest = np.zeros((n, 1)), float(graphs.modes(w)[0])
    problem = Deviation(lowest, 1.0, lr, float((c**2).sum()) / 2.0, graphs.contraction(w), float(steps))
    for _ in range(steps):
        x = w @ x - lr * (x - c)
    return Trial(problem, float(np.linalg.norm(graphs.apart(x))))


def _alike(draws: Draws, n: int) -> Objective:
    optima, smoothness = draws.generator().normal(size=(n, 1)), draws.real(1e-2, 1e1, log=True)
    return Objective(
        lambda x: smoothness * ((x - optima) ** 2).sum(axis=1) / 2.0, lambda x: smoothness * (x - optima), smoothness
    )


@trial("dgd-own-fixed-point")
def own_fixed_point(draws: Draws) -> Trial:
    """Quadratics, the fixed point by a linear solve; or log-cosh on top of mu, the fixed point by running on."""
    w = _negative_free(draws)
    n, smoothness, rng = len(w), draws.real(1e-2, 1e1, log=True), draws.generator()
    convexity = smoothness * draws.real(0.05, 1.0)
    curved = rng.choice([0.0, 1.0], size=(n, 1)) if draws.choice((False, True)) else rng.uniform(size=(n, 1))
    optima, bent = rng.normal(size=(n, 1)), draws.choice((False, True))

    def gradient(x: np.ndarray) -> np.ndarray:
        shape = np.tanh(x - optima) if bent else x - optima
        return convexity * x + (smoothness - convexity) * curved * shape

    return _fixed(draws, w, gradient, (convexity, smoothness))


@trial("dgd-own-fixed-point", "one curvature")
def own_alike(draws: Draws) -> Trial:
    """One curvature mu, workers displaced alike: attained."""
    w = _negative_free(draws)
    smoothness = draws.real(1e-2, 1e1, log=True)
    optima = draws.generator().normal(size=(len(w), 1))
    return _fixed(draws, w, lambda x: smoothness * (x - optima), (smoothness, smoothness), together=True)


def _fixed(
    draws: Draws,
    w: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    curvature: tuple[float, float],
    *,
    together: bool = False,
) -> Trial:
    lowest, (convexity, smoothness) = float(graphs.modes(w)[0]), curvature
    lr = draws.real(0.05, 0.95) * (1.0 + lowest) / smoothness
    rate = max(abs(1.0 - lr * convexity), abs(lr * smoothness - lowest), 0.5)
    end = np.zeros((len(w), 1))
    for _ in range(min(20_000, int(np.ceil(np.log(1e-15) / np.log(min(rate, 1.0 - 1e-3)))))):
        end = w @ end - lr * gradient(end)
    x = end + (np.ones_like(end) if together else draws.generator().normal(size=end.shape)) * draws.real(0.1, 10.0)
    steps = draws.integer(1, 10)
    problem = OwnFixedPoint(lowest, smoothness, convexity, lr, steps, float(np.linalg.norm(x - end)))
    for _ in range(steps):
        x = w @ x - lr * gradient(x)
    return Trial(problem, graphs.surely(float(np.linalg.norm(x - end)), problem.distance + float(np.linalg.norm(end))))
