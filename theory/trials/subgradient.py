"""Runs of decentralized subgradient descent on sums of absolute values, optima by enumeration or linear program."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from dissensus.theory.bounds.memory import Order
from dissensus.theory.bounds.subgradient import SubgradientProblem
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import contraction, random_mixing
from dissensus.theory.trials.dsgd_runs import path
from dissensus.theory.trials.functions import mean_value

RECALLED, OURS = "subgradient-recalled", "subgradient-descent"


@dataclass(frozen=True, eq=False)
class AbsoluteSums:
    r"""$f_i(x) = \sum_j\lvert a_{ij}^\top x - c_{ij}\rvert$; where one is zero its sign is taken as `tie`."""

    data: np.ndarray
    """(n, m, d)."""
    targets: np.ndarray
    """(n, m)."""
    tie: float = 1.0
    size: int = field(init=False)
    dimension: int = field(init=False)
    smoothness: float = field(init=False, default=np.inf)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.data.shape[0])
        object.__setattr__(self, "dimension", self.data.shape[2])

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """A subgradient."""
        off = np.einsum("nmd,...nd->...nm", self.data, x) - self.targets
        return np.einsum("...nm,nmd->...nd", np.where(off == 0.0, self.tie, np.sign(off)), self.data)

    def values(self, x: np.ndarray) -> np.ndarray:
        """The sum of the absolute values."""
        return np.abs(np.einsum("nmd,...nd->...nm", self.data, x) - self.targets).sum(axis=-1)

    @property
    def lipschitz(self) -> float:
        """No subgradient is longer."""
        return float(np.linalg.norm(self.data, axis=2).sum(axis=1).max())

    def minimiser(self) -> np.ndarray:
        """At a kink on the line, else by linear programming."""
        if self.dimension == 1:
            kinks = (self.targets / self.data[..., 0]).reshape(-1, 1)
            return kinks[int(np.argmin(mean_value(self, kinks)))]
        rows, d = self.data.reshape(-1, self.dimension), self.dimension
        eye, c = np.eye(len(rows)), self.targets.reshape(-1)
        above, below = np.hstack([rows, -eye]), np.hstack([-rows, -eye])
        cost = np.concatenate([np.zeros(d), np.ones(len(rows))])
        bounds = [(None, None)] * d + [(0, None)] * len(rows)
        found = linprog(cost, A_ub=np.vstack([above, below]), b_ub=np.concatenate([c, -c]), bounds=bounds)
        return found.x[:d]


def measured(
    functions: AbsoluteSums, w: np.ndarray, lr: float, steps: int, start: np.ndarray, order: Order, *, averaged: bool
) -> Trial:
    """The facts, and the excess at the average iterate or the average of the excesses."""
    lowest = functions.minimiser()
    means = path(functions, [w], lr, steps, start, order).mean(axis=1)
    value = mean_value(functions, means.mean(axis=0)) if averaged else mean_value(functions, means).mean()
    distance = float(np.linalg.norm(start - lowest))
    problem = SubgradientProblem(contraction(w), functions.lipschitz, lr, steps, distance, order)
    return Trial(problem, float(value - mean_value(functions, lowest)))


def random_run(draws: Draws, *, averaged: bool) -> Trial:
    """Any data, mixing and start, learning rates about D/(R sqrt K)."""
    n, d, m = draws.integer(2, 8), draws.choice((1, 1, 1, 2)), draws.integer(1, 3)
    rng = draws.generator()
    functions = AbsoluteSums(rng.normal(size=(n, m, d)), draws.real(0.0, 3.0) * rng.normal(size=(n, m)))
    away = draws.real(1e-2, 10.0, log=True)
    start = functions.minimiser() + away * rng.normal(size=d)
    steps = int(draws.real(1.0, 200.0, log=True))
    lr = draws.real(0.1, 10.0, log=True) * away / (functions.lipschitz * steps**0.5)
    order: Order = "awc" if averaged else draws.choice(("awc", "atc"))
    w = random_mixing(draws, n)
    if averaged and contraction(w) >= 1.0:
        w = 0.5 * (w + 1.0 / n)
    return measured(functions, w, lr, steps, start, order, averaged=averaged)


@trial(RECALLED)
def recalled(draws: Draws) -> Trial:
    """The average iterate."""
    return random_run(draws, averaged=True)


@trial(OURS)
def ours(draws: Draws) -> Trial:
    """The average of the values."""
    return random_run(draws, averaged=False)


@trial(OURS, "lattice")
def lattice(draws: Draws) -> Trial:
    """The absolute value, exact averaging, a start so many steps away: nothing is lost."""
    n, away = draws.integer(1, 5), draws.integer(0, 12)
    functions = AbsoluteSums(np.ones((n, 1, 1)), np.zeros((n, 1)), tie=-1.0)
    w = np.full((n, n), 1.0 / n)
    steps = max(1, draws.integer(away, away + 6))
    start = np.array([draws.real(0.9, 1.1) * float(away) if draws.choice((True, False)) else float(away)])
    return measured(functions, w, 1.0, steps, start, "atc", averaged=False)


@trial(OURS, "tug of war")
def tug_of_war(draws: Draws) -> Trial:
    """Pairs that pull in opposite directions and disagree as far as mixing lets them."""
    n, lazy = 2 * draws.integer(1, 3), draws.real(0.0, 0.95)
    rng = draws.generator()
    targets = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)[:, None] * draws.real(0.0, 30.0)
    functions = AbsoluteSums(np.ones((n, 1, 1)), targets + 0.01 * rng.normal(size=(n, 1)))
    w = lazy * np.eye(n) + (1.0 - lazy) / n
    start = np.array([draws.real(-5.0, 5.0)])
    steps = int(draws.real(1.0, 200.0, log=True))
    return measured(functions, w, draws.real(0.01, 3.0, log=True), steps, start, "awc", averaged=False)
