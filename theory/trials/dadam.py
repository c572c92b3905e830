r"""Trials of the bounds on DAdam: the recursion run on smooth non-convex functions, without noise or on every path.

Losses are $f_i(x) = \sum_k \varphi_k(x_k) + \langle b_i, x\rangle$ with $\sum_i b_i = 0$ and $\varphi$ a cosine or a
pseudo-Huber function: constants, least value and heterogeneity $\zeta^2 = \frac1n\sum_i\lVert b_i\rVert^2$ are exact.
Noise has two atoms per worker and step, so an expectation is a weighted sum over all paths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from dissensus.theory.bounds.dadam import Adaptive, memory
from dissensus.theory.trials.base import Draws, Trial, trial


@dataclass(frozen=True, eq=False)
class Waves:
    r"""$\varphi_k$ is $c(1-\cos w x)$ or $c(\sqrt{1+w^2x^2}-1)$: curvature at most $cw^2$, slope at most $cw$."""

    height: np.ndarray
    frequency: np.ndarray
    bounded: np.ndarray
    """Where the cosine is."""
    tilt: np.ndarray
    """b, (n, d), columns sum to zero."""

    def value(self, x: np.ndarray) -> float:
        """F at one point; its least value is zero."""
        y = self.frequency * x  # in forms that keep their digits at the foot
        cosine, huber = 2.0 * np.sin(0.5 * y) ** 2, y * y / (np.sqrt(1.0 + y * y) + 1.0)
        return float(np.sum(self.height * np.where(self.bounded, cosine, huber)))

    def slope(self, x: np.ndarray) -> np.ndarray:
        """The gradient of F at every row."""
        y = self.frequency * x
        return self.height * self.frequency * np.where(self.bounded, np.sin(y), y / np.sqrt(1.0 + y * y))

    @property
    def smoothness(self) -> float:
        """L."""
        return float(np.max(self.height * self.frequency**2))

    def largest(self, noise: np.ndarray) -> float:
        """G: the largest slope, tilt and noise together, in any coordinate."""
        return float(np.max(self.height * self.frequency + np.abs(self.tilt).max(0) + noise))


@dataclass(frozen=True, eq=False)
class Noise:
    """Two atoms along one direction: `up` with probability `chance`, otherwise what makes the mean zero."""

    direction: np.ndarray
    chance: float

    @property
    def atoms(self) -> tuple[float, float]:
        """The two numbers that multiply the direction, of unit variance."""
        up = ((1.0 - self.chance) / self.chance) ** 0.5
        return up, -1.0 / up

    @property
    def largest(self) -> np.ndarray:
        """The largest modulus per coordinate."""
        return max(map(abs, self.atoms)) * np.abs(self.direction)

    def paths(self, steps: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise of shape (paths, steps, size, d) and the probabilities of all paths."""
        chosen = np.array(list(product((0, 1), repeat=steps * size))).reshape(-1, steps, size)
        chances = np.where(chosen == 0, self.chance, 1.0 - self.chance).prod((1, 2))
        return np.array(self.atoms)[chosen][..., None] * self.direction, chances


def run(p: Adaptive, waves: Waves, w: np.ndarray, start: np.ndarray, noise: Noise | None = None) -> tuple[float, float]:
    """The mean over steps of the expected squared gradient at the mean, and the largest number in any gradient."""
    n, d = waves.tilt.shape
    drawn, chances = (np.zeros((1, p.steps, n, d)), np.ones(1)) if noise is None else noise.paths(p.steps, n)
    x = np.tile(start, (len(chances), n, 1))
    m, v = np.zeros_like(x), np.zeros_like(x)
    total, largest = 0.0, 0.0
    for t in range(p.steps):
        total += float(chances @ np.sum(waves.slope(x.mean(1)) ** 2, -1))
        at = w @ x if p.order == "cta" else x
        g = waves.slope(at) + waves.tilt + drawn[:, t]
        largest = max(largest, float(np.abs(g).max()))
        m, v = p.beta1 * m + (1.0 - p.beta1) * g, p.beta2 * v + (1.0 - p.beta2) * g * g
        move = p.lr * (m / (1.0 - p.beta1 ** (t + 1))) / np.sqrt(v / (1.0 - p.beta2 ** (t + 1)) + p.eps)
        x = w @ (x - move) if p.order == "atc" else w @ x - move
    return total / p.steps, largest


def mixing(draws: Draws, size: int) -> np.ndarray:
    """A doubly stochastic matrix: lazy, of permutations, symmetric or not; from hardly mixing to complete."""
    rng, stay = draws.generator(), draws.real(0.0, 1.0)
    w = stay * np.eye(size)
    shares = (1.0 - stay) * rng.dirichlet(np.ones(3))
    for share in shares:
        w += share * np.eye(size)[rng.permutation(size)]
    if draws.choice((True, False)):
        w = (w + w.T) / 2.0
    return draws.choice((w, np.full((size, size), 1.0 / size), 0.5 * np.eye(size) + 0.5 * w))


def contraction(w: np.ndarray) -> float:
    """The norm of W - J, no larger than one."""
    return float(min(np.linalg.norm(w - 1.0 / len(w), 2), 1.0))


def _waves(draws: Draws, size: int, dimension: int, tilt: float) -> Waves:
    rng = draws.generator()
    b = rng.normal(size=(size, dimension)) * tilt
    return Waves(
        height=rng.lognormal(0.0, 0.7, dimension),
        frequency=rng.lognormal(0.0, 0.4, dimension),
        bounded=rng.random(dimension) < 0.6,
        tilt=b - b.mean(0),
    )


def _trial(draws: Draws, waves: Waves, w: np.ndarray, steps: int, noise: Noise | None = None, **chosen: float) -> Trial:
    d = waves.tilt.shape[1]
    rng = draws.generator()
    start = rng.normal(size=d) * draws.real(0.05, 20.0, log=True)
    largest = waves.largest(np.zeros(d) if noise is None else noise.largest)
    facts = {
        "lr": draws.real(1e-4, 0.5, log=True),
        "beta1": draws.choice((0.0, 0.9, 0.5)) if steps < 10 else draws.real(0.0, 0.95),
        "beta2": draws.choice((0.999, 0.9, 0.5, 0.0)),
        "eps": draws.real(1e-8, 10.0, log=True) * largest**2,
    }
    problem = Adaptive(
        contraction=contraction(w),
        smoothness=waves.smoothness,
        dimension=d,
        largest_gradient=largest,
        steps=steps,
        excess=waves.value(start),
        noise=0.0 if noise is None else float(noise.direction @ noise.direction),
        heterogeneity=float(np.mean(np.sum(waves.tilt**2, 1))),
        order=draws.choice(("awc", "atc", "cta")),
        **(facts | chosen),
    )
    return _found(problem, waves, w, start, noise)


@trial("dadam-nonconvex")
def _general(draws: Draws) -> Trial:
    size = draws.integer(2, 6)
    waves = _waves(draws, size, draws.integer(1, 4), draws.choice((0.0, 0.1, 1.0)))
    return _trial(draws, waves, mixing(draws, size), draws.integer(1, 60))


@trial("dadam-nonconvex", "constant slope")
def _constant_slope(draws: Draws) -> Trial:
    """Far out on a pseudo-Huber function the slope is G and moves are the largest that Adam makes."""
    size, d = draws.integer(1, 4), draws.integer(1, 3)
    steps, frequency = draws.integer(1, 40), draws.real(1.0, 1e3, log=True)
    waves = Waves(np.full(d, 1.0 / frequency), np.full(d, frequency), np.zeros(d, bool), np.zeros((size, d)))
    lr, eps = draws.real(1e-9, 1e-2, log=True), draws.real(1e-3, 10.0, log=True)
    # starts where the path, a move of at most 1/sqrt(1+eps) a step, ends near the foot
    start = np.full(d, steps * lr / (1.0 + eps) ** 0.5 * draws.real(1.0, 1.2) + draws.real(0.0, 3.0) / frequency)
    problem = Adaptive(
        0.0, waves.smoothness, d, 1.0, lr, steps, waves.value(start), draws.choice((0.0, 0.9)), 0.999, eps
    )
    return _found(problem, waves, np.full((size, size), 1.0 / size), start)


@trial("dadam-nonconvex", "noise, every path")
def _noise(draws: Draws) -> Trial:
    size = draws.integer(2, 3)
    waves = _waves(draws, size, draws.integer(1, 2), draws.choice((0.0, 0.3)))
    d = waves.tilt.shape[1]
    noise = Noise(draws.generator().normal(size=d) * draws.real(0.01, 3.0, log=True), draws.real(0.03, 0.5))
    return _trial(draws, waves, mixing(draws, size), draws.integer(1, 8 // size), noise)


@trial("dadam-nonconvex", "heterogeneity")
def _heterogeneity(draws: Draws) -> Trial:
    """From a stationary point: whatever moves the mean is that Adam's denominators differ among workers."""
    size = draws.integer(2, 6)
    waves = _waves(draws, size, draws.integer(1, 3), draws.real(0.1, 10.0, log=True))
    eps = draws.real(1e-6, 1e-1, log=True) * waves.largest(np.zeros(1)) ** 2
    return _trial(draws, waves, mixing(draws, size), draws.integer(20, 120), eps=eps)


@trial("dadam-nonconvex", "pull of signs")
def _signs(draws: Draws) -> Trial:
    """Two workers pull by one and one by two: Adam all but takes signs, and walks away from a stationary point."""
    steps = draws.integer(50, 300)
    return _pulled(draws, steps, draws.real(0.5, 3.0) * 3.0 / steps, draws.real(1e-8, 1e-1, log=True), (0.0, 0.5))


@trial("dadam-small-step", "pull of signs")
def _signs_held(draws: Draws) -> Trial:
    """The same with a step that epsilon can hold."""
    eps = draws.real(1e-3, 10.0, log=True)
    return _pulled(draws, draws.integer(50, 300), eps**0.5 * draws.real(1e-2, 0.6, log=True), eps, (0.0,))


def _pulled(draws: Draws, steps: int, lr: float, eps: float, beta1: tuple[float, ...]) -> Trial:
    waves = Waves(np.ones(1), np.ones(1), np.zeros(1, bool), np.array([[1.0], [1.0], [-2.0]]))
    first, second = draws.choice(beta1), draws.choice((0.0, 0.9))
    p = Adaptive(0.0, 1.0, 1, 3.0, lr, steps, 0.0, first, second, eps, 0.0, 2.0, draws.choice(("awc", "atc")))
    return _found(p, waves, np.full((3, 3), 1.0 / 3), np.zeros(1))


@trial("dadam-nonconvex", "noise at the foot")
def _foot(draws: Draws) -> Trial:
    """From the minimum of one worker's cosine, with epsilon far above: the noise floor of gradient descent."""
    waves = Waves(np.ones(1), np.ones(1), np.ones(1, bool), np.zeros((1, 1)))
    noise = Noise(np.array([draws.real(1e-2, 10.0, log=True)]), 0.5)
    eps = draws.real(1.0, 1e6, log=True) * float(noise.direction[0] ** 2)
    lr = draws.real(0.02, 1.0, log=True) * eps**0.5
    order = draws.choice(("awc", "atc"))
    mean_square = float(noise.direction[0] ** 2)
    problem = Adaptive(0.0, 1.0, 1, 1.0, lr, 10, 0.0, 0.0, 0.9, eps, mean_square, 0.0, order)
    return _found(problem, waves, np.ones((1, 1)), np.zeros(1), noise)


@trial("dadam-small-step")
def _small(draws: Draws) -> Trial:
    size = draws.integer(1, 6)
    waves = _waves(draws, size, draws.integer(1, 4), draws.choice((0.0, 0.1, 1.0)))
    w = mixing(draws, size)
    return _held(draws, waves, w, draws.integer(1, 80), draws.real(1e-3, 10.0, log=True))


@trial("dadam-small-step", "gradient descent")
def _descent(draws: Draws) -> Trial:
    """With epsilon far above all gradients Adam is gradient descent."""
    size = draws.integer(1, 3)
    waves = _waves(draws, size, 1, 0.0)
    return _held(draws, waves, np.full((size, size), 1.0 / size), draws.integer(1, 80), draws.real(1e2, 1e6, log=True))


def _held(draws: Draws, waves: Waves, w: np.ndarray, steps: int, ratio: float) -> Trial:
    eps, beta1 = ratio * waves.largest(np.zeros(1)) ** 2, draws.choice((0.0, 0.5, 0.9))
    rho = contraction(w)
    if rho >= 1.0:
        rho, w = 0.0, np.full(w.shape, 1.0 / len(w))
    held = eps**0.5 / (waves.smoothness * (memory(beta1, rho, "awc") + 0.5))
    lr = draws.real(1e-3, 0.999, log=True) * held
    return _trial(draws, waves, w, steps, lr=lr, beta1=beta1, eps=eps)


def _found(p: Adaptive, waves: Waves, w: np.ndarray, start: np.ndarray, noise: Noise | None = None) -> Trial:
    """The run, with G the largest number that occurred in it."""
    measured, largest = run(p, waves, w, start, noise)
    return Trial(replace(p, largest_gradient=largest) if largest > 0.0 else p, measured)
