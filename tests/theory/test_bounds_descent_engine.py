"""The bounds about descent against the engine itself, and the trials' recursion against the engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.theory import from_matrices
from dissensus.theory.bounds import find
from dissensus.theory.bounds.convex_descent import ConvexProblem
from dissensus.theory.bounds.memory import Order
from dissensus.theory.trials import RandomDraws
from dissensus.theory.trials.doubly_stochastic import contraction, random_mixing
from dissensus.theory.trials.dsgd_runs import path
from dissensus.theory.trials.functions import Quadratics, heterogeneity_at, mean_value, random_quadratics


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.from_numpy(start.copy()))


def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """One worker's quadratic."""
    x = model.x
    return 0.5 * x @ batch["curvature"] @ x + batch["slope"] @ x


def engine_path(
    functions: Quadratics, w: np.ndarray, lr: float, steps: int, start: np.ndarray, order: str
) -> np.ndarray:
    engine = StackedEngine(
        Point(start),
        loss,
        algorithm=algorithm("dsgd", order=order),
        topology=from_matrices([w]),
        optimizer=partial(torch.optim.SGD, lr=lr),
        gradients="vmap",
    )
    batch = {"curvature": torch.from_numpy(functions.curvature), "slope": torch.from_numpy(functions.slope)}
    points = [engine.x.numpy()]
    for _ in range(steps):
        engine.step(batch)
        points.append(engine.x.numpy())
    return np.stack(points)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", ["awc", "atc"])
def test_the_engine_stays_below_the_bound_and_on_the_path_of_the_trials(order: Order, seed: int) -> None:
    draws = RandomDraws(np.random.default_rng(seed))
    functions = random_quadratics(draws, 4, 2, heterogeneity=1.0, condition=0.05)
    w = 0.5 * random_mixing(draws, 4) + 0.125
    lowest, lr, steps = functions.minimiser(), 0.9 * (1.0 - contraction(w)), 25
    start = lowest + np.array([0.3, -0.2])
    states = engine_path(functions, w, lr, steps, start, order)
    np.testing.assert_allclose(states, path(functions, [w], lr, steps, start, order), rtol=1e-12, atol=1e-12)
    excess = mean_value(functions, states[:-1].mean(axis=1)).mean() - mean_value(functions, lowest)
    distance = float(np.linalg.norm(start - lowest))
    problem = ConvexProblem(
        contraction(w), functions.smoothness, lr, steps, distance, heterogeneity_at(functions, lowest), order
    )
    answer = find("convex-descent").value(problem)
    assert answer.applies
    assert 0.0 < excess <= answer.value
