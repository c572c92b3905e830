r"""A random run of decentralized SGD from an equal start, ready to be measured: functions, mixing, step size, horizon.

Functions of smoothness near 1 are drawn with their minimiser at zero or known; the learning rate is a share of the
largest that the assumptions allow. What isolates a term of a bound is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.theory.bounds.memory import Memory, geometric, of_schedule
from dissensus.theory.trials.base import Draws
from dissensus.theory.trials.doubly_stochastic import (
    contraction,
    one_peer_exponential,
    one_peer_ring,
    random_mixing,
)
from dissensus.theory.trials.dsgd_runs import coin_paths, mean_worker, moments, path
from dissensus.theory.trials.functions import (
    Cosines,
    Functions,
    Logistic,
    Quadratics,
    mean_gradient,
    mean_value,
    random_cosines,
    random_logistic,
    random_quadratics,
)
from dissensus.theory.trials.ramps import Ramps, random_ramps

ROUNDING = 1e-13
"""An excess is a difference of values: so far below them it is nothing."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything about one run."""

    functions: Functions
    matrices: Sequence[np.ndarray]
    lr: float
    steps: int
    start: np.ndarray
    order: str
    noise: float = 0.0
    """The mean square of every worker's noise."""

    @property
    def contraction(self) -> float:
        """The largest of the rounds."""
        return max(contraction(w) for w in self.matrices)

    def minimiser(self) -> np.ndarray:
        """Of F, for convex functions: the one next to the start where there are many."""
        if isinstance(self.functions, Ramps):
            return np.array([np.clip(self.start[0], *self.functions.minimisers)])
        if isinstance(self.functions, Quadratics | Logistic):
            return self.functions.minimiser()
        raise TypeError(f"no minimiser is known for {type(self.functions).__name__}")

    def infimum(self) -> float:
        """A lower bound on F, exact except for cosines."""
        if isinstance(self.functions, Ramps):
            return self.functions.minimum[1]
        if isinstance(self.functions, Cosines):
            return self.functions.infimum
        return float(mean_value(self.functions, self.minimiser()))

    def average_excess(self) -> float:
        """The average over the steps of E F(mean worker), less the infimum: exactly."""
        total = 0.0
        if self.noise == 0.0:
            states = path(self.functions, self.matrices, self.lr, self.steps - 1, self.start, self.order)
            total = float(mean_value(self.functions, states.mean(axis=1)).sum())
        elif isinstance(self.functions, Quadratics):
            bend = self.functions.curvature.mean(axis=0)
            for m, c in self._moments(self.functions):
                middle, spread = mean_worker(m, c)
                total += float(mean_value(self.functions, middle)) + 0.5 * float(np.sum(bend * spread))
        else:
            for x in self.states():
                total += float(mean_value(self.functions, x.mean(axis=1)).mean())
        lowest = self.infimum()
        excess = total / self.steps - lowest
        return 0.0 if abs(excess) <= ROUNDING * max(1.0, abs(lowest)) else excess

    def average_square_gradient(self) -> float:
        """The average over the steps of E |grad F(mean worker)|^2: exactly."""
        total = 0.0
        for x in self.states():
            total += float(np.sum(mean_gradient(self.functions, x.mean(axis=1)) ** 2, axis=-1).mean())
        found = total / self.steps
        return 0.0 if found <= ROUNDING**2 else found

    def states(self) -> Iterator[np.ndarray]:
        """Steps 0 to K-1 of all equally likely paths, (paths, n, d); a single one without noise."""
        if self.noise == 0.0:
            yield from path(self.functions, self.matrices, self.lr, self.steps - 1, self.start, self.order)[:, None]
            return
        kicks = np.full((self.functions.size, self.functions.dimension), (self.noise / self.functions.dimension) ** 0.5)
        yield from coin_paths(self.functions, self.matrices, self.lr, self.steps, self.start, self.order, kicks)

    def _moments(self, functions: Quadratics) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        shape = np.broadcast_to(noise_shape(functions, self.noise), (functions.size, *functions.curvature.shape[1:]))
        return moments(functions, self.matrices, self.lr, self.steps, self.start, self.order, shape)


def noise_shape(functions: Quadratics, noise: float) -> np.ndarray:
    """All noise along the sharpest direction of the mean, where it costs most."""
    direction = np.linalg.eigh(functions.curvature.mean(axis=0))[1][:, -1]
    return noise * np.outer(direction, direction)


def random_setup(
    draws: Draws,
    *,
    convex: bool = True,
    at_optimum: bool = False,
    heterogeneous: bool = True,
    noisy: bool = False,
    periodic: bool = False,
    poor: bool = False,
    complete: bool = False,
    steps: int = 200,
) -> tuple[Setup, Memory]:
    """A run within the assumptions of the descent bounds, and the memory of its mixing.

    Args:
        draws: where the numbers come from.
        convex: convex functions, else sums of cosines and broken lines.
        at_optimum: start at the minimiser.
        heterogeneous: gradients at the minimiser differ.
        noisy: with gradient noise.
        periodic: one-peer schedules, weakened by a random gamma.
        poor: contraction near one.
        complete: everybody with everybody.
        steps: the longest horizon; noise on other functions than quadratics has a few steps only.
    """
    order = draws.choice(("awc", "atc"))
    square = draws.real(1e-3, 10.0, log=True) if heterogeneous else 0.0
    coins = noisy and (not convex or draws.choice((True, False)))
    n = draws.integer(2, 3 if coins else 8)
    functions = _functions(draws, n, convex=convex, heterogeneity=square, coins=coins, noisy=noisy)
    horizon = draws.integer(1, 4 if n == 2 else 3) if coins else max(1, round(draws.real(1.0, steps, log=True)))
    matrices = _matrices(draws, n, periodic=periodic, poor=poor, complete=complete)
    if at_optimum:  # something must move
        horizon = max(2, horizon)
        order = "awc" if contraction(matrices[0]) < 1e-9 else order
    if periodic:
        memory = of_schedule(matrices, horizon, order)
    else:
        memory = geometric(contraction(matrices[0]), horizon, order, n)
    largest = 1.0 / (functions.smoothness * max(memory.gain, 1.0 if convex else 0.5) * (1.0 + 1e-9))
    lr = largest * draws.choice((draws.real(0.01, 1.0, log=True), draws.real(0.5, 0.999), 0.999))
    start = np.zeros(functions.dimension)
    noise = draws.real(1e-3, 10.0, log=True) if noisy else 0.0
    setup = Setup(functions, matrices, lr, horizon, start, order, noise)
    if convex:
        away = 0.0 if at_optimum else draws.real(1e-2, 10.0, log=True)
        direction = draws.generator().normal(size=functions.dimension)
        start = setup.minimiser() + away * direction / np.linalg.norm(direction)
        if isinstance(functions, Ramps):  # away from all of the minimisers
            low, high = functions.minimisers
            start = np.array([high + away if direction[0] > 0.0 else low - away])
    elif not at_optimum:
        start = draws.generator().normal(size=functions.dimension)
    return Setup(functions, matrices, lr, horizon, start, order, noise), memory


def _functions(draws: Draws, n: int, *, convex: bool, heterogeneity: float, coins: bool, noisy: bool) -> Functions:
    d = draws.integer(1, 3)
    if not convex:
        if draws.choice((True, False)):
            return random_cosines(draws, n, d, heterogeneity=heterogeneity)
        return random_ramps(draws, n, convex=False, heterogeneity=heterogeneity)
    if noisy and not coins:
        return random_quadratics(draws, n, d, heterogeneity=heterogeneity)
    kind = draws.choice(("quadratics", "logistic", "ramps"))
    if kind == "logistic" and heterogeneity > 0.0:
        return random_logistic(draws, n, d)
    if kind == "quadratics":
        return random_quadratics(draws, n, d, heterogeneity=heterogeneity)
    return random_ramps(draws, n, convex=True, heterogeneity=heterogeneity)


def _matrices(draws: Draws, n: int, *, periodic: bool, poor: bool, complete: bool) -> list[np.ndarray]:
    eye = np.eye(n)
    if complete:
        return [np.full((n, n), 1.0 / n)]
    if periodic:
        gamma = draws.choice((1.0, draws.real(0.05, 1.0)))
        rounds = draws.choice((one_peer_exponential, one_peer_ring))(n)
        return [(1.0 - gamma) * eye + gamma * w for w in rounds]
    w = random_mixing(draws, n)
    if poor:
        speak = draws.real(1e-3, 0.1, log=True)
        return [(1.0 - speak) * eye + speak * w]
    return [w]
