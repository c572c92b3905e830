"""Runs of EXTRA by its published recursion, its potential from the dual that the proof uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dissensus.theory.bounds.extra import ExtraRun, ExtraStep
from dissensus.theory.trials.base import Draws, Trial, trial
from dissensus.theory.trials.doubly_stochastic import random_mixing
from dissensus.theory.trials.functions import Functions, Logistic, Quadratics, random_logistic, random_quadratics

STEP, RATE = "extra-step", "extra-rate"


@dataclass(frozen=True, eq=False)
class Run:
    """K steps: the potential at 0 to K and the square lengths of the K steps."""

    smoothness: float
    lr: float
    lambda_min: float
    potentials: np.ndarray
    moves: np.ndarray


def run(functions: Functions, lowest: np.ndarray, w: np.ndarray, lr: float, steps: int, start: np.ndarray) -> Run:
    """The recursion, and z = (q, X) beside it."""
    n = len(w)
    tilde = 0.5 * (np.eye(n) + w)
    values, vectors = np.linalg.eigh(tilde - w)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    solution = np.tile(lowest, (n, 1))
    # grad f(X*) = -U q*/lr
    dual = -lr * np.linalg.pinv(root, rcond=1e-7) @ functions.gradients(solution)
    x = np.tile(start, (n, 1))
    states = [x, w @ x - lr * functions.gradients(x)]
    for _ in range(steps - 1):
        newest, before = states[-1], states[-2]
        change = functions.gradients(newest) - functions.gradients(before)
        states.append((np.eye(n) + w) @ newest - tilde @ before - lr * change)
    duals = np.cumsum([root @ s for s in states], axis=0)

    def square(q: np.ndarray, y: np.ndarray) -> float:
        return float(np.sum(q**2) + np.sum(y * (tilde @ y)))

    potentials = [square(q - dual, y - solution) for q, y in zip(duals, states, strict=True)]
    moves = [square(duals[k + 1] - duals[k], states[k + 1] - states[k]) for k in range(steps)]
    least = float(np.linalg.eigvalsh(w)[0])
    return Run(functions.smoothness, lr, least, np.array(potentials), np.array(moves))


def random_run(draws: Draws, steps: int) -> Run:
    """A random connected symmetric W, random convex functions, a learning rate within the assumption."""
    n, d = draws.integer(2, 8), draws.integer(1, 3)
    functions: Quadratics | Logistic
    if draws.choice((True, False)):
        functions = random_quadratics(draws, n, d, heterogeneity=draws.real(1e-3, 10.0, log=True))
    else:
        functions = random_logistic(draws, n, d)
    speak = draws.real(0.05, 1.0)
    w = (1.0 - 0.5 * speak) * random_mixing(draws, n, symmetric=True) + 0.5 * speak / n
    lowest = functions.minimiser()
    start = lowest + draws.real(1e-2, 10.0, log=True) * draws.generator().normal(size=d)
    ceiling = (1.0 + float(np.linalg.eigvalsh(w)[0])) / functions.smoothness
    return run(functions, lowest, w, ceiling * draws.choice((draws.real(0.01, 1.0), 0.99)), steps, start)


@trial(STEP)
def step(draws: Draws) -> Trial:
    """A step at any time of the run."""
    at = draws.integer(1, 20)
    done = random_run(draws, at)
    problem = ExtraStep(done.smoothness, done.lr, done.lambda_min, float(done.potentials[-2]), float(done.moves[-1]))
    return Trial(problem, float(done.potentials[-1]))


@trial(RATE)
def rate(draws: Draws) -> Trial:
    """All steps of a run."""
    steps = int(draws.real(1.0, 200.0, log=True))
    done = random_run(draws, steps)
    problem = ExtraRun(done.smoothness, done.lr, done.lambda_min, steps, float(done.potentials[0]))
    return Trial(problem, float(done.moves.mean()))


@trial(RATE, "a common parabola")
def parabola(draws: Draws) -> Trial:
    """Everybody agrees, so this is gradient descent, and its last admissible learning rate."""
    n, lazy = draws.integer(2, 6), draws.real(0.0, 0.9)
    functions = Quadratics(np.ones((n, 1, 1)), np.zeros((n, 1)))
    w = lazy * np.eye(n) + (1.0 - lazy) / n
    steps = draws.integer(1, 40)
    done = run(functions, np.zeros(1), w, (1.0 + lazy) * draws.real(0.3, 0.99), steps, np.ones(1))
    problem = ExtraRun(done.smoothness, done.lr, done.lambda_min, steps, float(done.potentials[0]))
    return Trial(problem, float(done.moves.mean()))
