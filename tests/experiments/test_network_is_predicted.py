"""A real network at a constant learning rate disagrees as much as its measured curvature and gradient noise predict."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.experiments.data import dataset
from dissensus.probes import Curvature, consensus_distance, envelope, hessian_trace, noise_measure
from dissensus.theory import predict, topology

WORKERS, BATCH, WARM, STEPS, EVERY = 8, 16, 600, 2000, 20


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    """Cross-entropy with a penalty that keeps every direction curved, so that the stationary state is reached."""
    penalty = sum((p**2).sum() for p in model.parameters())
    return cross_entropy(model(batch[0]), batch[1]) + 0.01 * penalty


@pytest.mark.parametrize(
    ("lr", "momentum", "gamma"),
    [(0.02, 0.9, 0.4), pytest.param(0.2, 0.0, 1.0, marks=pytest.mark.slow)],
)
def test_consensus_distance_and_envelope(lr: float, momentum: float, gamma: float) -> None:
    data, ring = dataset("digits", {}).to(torch.float64), topology("ring", WORKERS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10)).double()
    engine = StackedEngine(
        model,
        loss,
        algorithm=algorithm("dsgd", gamma=gamma),
        topology=ring,
        optimizer=partial(torch.optim.SGD, momentum=momentum),
        lr=lr,
        seed=0,
    )
    rng = np.random.default_rng(0)
    full = [(data.train_x, data.train_y)]

    def drawn(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.from_numpy(rng.integers(0, data.size, size=shape))
        return data.train_x[at], data.train_y[at]

    distances, costs = [], []
    for t in range(STEPS):
        engine.step(drawn(WORKERS, BATCH))
        if t >= WARM and t % EVERY == 0:
            distances.append(consensus_distance(engine.x).xi)
            if t % (7 * EVERY) == 0:
                with engine.consensus() as mean:
                    costs.append(float(envelope(mean, loss, full, engine.x)))
    with engine.consensus() as mean:
        operator = Curvature(mean, loss, full)
        trace = float(hessian_trace(operator, rtol=0.05))
        measure = noise_measure(mean, loss, [drawn(BATCH) for _ in range(128)], batches=full, operator=operator)
    about: dict[str, Any] = {"lr": lr, "momentum": momentum, "gamma": gamma, "mean_curvature": trace / operator.size}
    expected = predict(ring, measure.nodes, measure.weights, **about)
    spread = 3 * np.std(distances) / np.sqrt(len(distances) / 4)  # neighbours in time are alike
    assert abs(np.mean(distances) - expected.consensus_distance) < spread + 0.15 * expected.consensus_distance
    assert np.mean(costs) == pytest.approx(expected.envelope, rel=0.3)
