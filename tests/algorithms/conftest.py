"""Oracles the tests of this room share: quadratics, numpy optimizers with their own memory, dense schedules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import StackedEngine
from dissensus.algorithms.protocol import Algorithm, DenseProblem
from dissensus.testing.laws.problems import quadratic_loss
from dissensus.theory import Topology, from_matrices

NumpyMove = Callable[[int, np.ndarray, np.ndarray, float], np.ndarray]


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.from_numpy(start.copy()))


@dataclass(frozen=True)
class Quadratics:
    """Heterogeneous quadratics with a fixed table of gradient noise."""

    A: np.ndarray
    b: np.ndarray
    noise: np.ndarray
    x0: np.ndarray

    @classmethod
    def draw(cls, n: int, d: int, steps: int, seed: int = 0, common: bool = False) -> "Quadratics":
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(n, d, d)) / np.sqrt(d)
        hessians = 0.2 * np.eye(d) + factors @ factors.transpose(0, 2, 1) / 2
        b = rng.normal(size=(n, d))
        if common:
            hessians, b = np.repeat(hessians[:1], n, 0), np.repeat(b[:1], n, 0)
        return cls(hessians, b, 0.3 * rng.normal(size=(steps, n, d)), rng.normal(size=(n, d)))

    def gradient(self, t: int, x: np.ndarray) -> np.ndarray:
        return np.einsum("nij,nj->ni", self.A, x) - self.b + self.noise[t]

    def batch(self, t: int) -> dict[str, Tensor]:
        return {k: torch.from_numpy(v) for k, v in {"A": self.A, "b": self.b, "noise": self.noise[t]}.items()}

    def dense(self, topology: Topology, lr: Callable[[int], float], move: NumpyMove) -> DenseProblem:
        return DenseProblem(
            self.x0, self.gradient, lambda t: topology[t].dense(), lr, move, decay=getattr(move, "weight_decay", 0.0)
        )

    def engine(self, algorithm: Algorithm, topology: Topology, **options: Any) -> StackedEngine:
        usual = {
            "optimizer": partial(torch.optim.SGD, lr=0.1),
            "gradients": "vmap",
            "start": torch.from_numpy(self.x0),
        }
        return StackedEngine(
            Point(self.x0[0]), quadratic_loss, algorithm=algorithm, topology=topology, **(usual | options)
        )

    def run(self, engine: StackedEngine, steps: int) -> np.ndarray:
        """The deployed points, (steps + 1, n, d)."""
        points = [engine.x.numpy()]
        for _ in range(steps):
            engine.step(self.batch(engine.t))
            points.append(engine.x.numpy())
        return np.stack(points)


class SgdMove:
    """torch's SGD as it is documented, on arrays: coupled decay, momentum, Nesterov."""

    def __init__(self, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> None:
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.v: np.ndarray | float = 0.0

    def __call__(self, t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        g = g + self.weight_decay * x
        self.v = self.momentum * self.v + g
        return x - lr * (g + self.momentum * self.v if self.nesterov else self.v)


class AdamMove:
    """Kingma and Ba's Adam on arrays; decoupled decay makes it AdamW."""

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decoupled: float = 0.0) -> None:
        self.betas, self.eps, self.decoupled = betas, eps, decoupled
        self.k, self.m, self.v = 0, 0.0, 0.0

    def __call__(self, t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        self.k += 1
        (b1, b2), k = self.betas, self.k
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g
        x = x - lr * self.decoupled * x
        return x - lr * (self.m / (1 - b1**k)) / (np.sqrt(self.v / (1 - b2**k)) + self.eps)


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[], NumpyMove]]] = {
    "sgd": (partial(torch.optim.SGD, lr=0.1), SgdMove),
    "momentum": (partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(SgdMove, 0.9)),
    "nesterov": (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), partial(SgdMove, 0.9, True)),
    "decay": (partial(torch.optim.SGD, lr=0.1, weight_decay=0.1), partial(SgdMove, 0.0, False, 0.1)),
    "momentum-decay": (
        partial(torch.optim.SGD, lr=0.1, momentum=0.5, weight_decay=0.1),
        partial(SgdMove, 0.5, False, 0.1),
    ),
    "adam": (partial(torch.optim.Adam, lr=0.1, eps=1e-3), partial(AdamMove, eps=1e-3)),
    "adamw": (
        partial(torch.optim.AdamW, lr=0.1, eps=1e-3, weight_decay=0.2),
        partial(AdamMove, eps=1e-3, decoupled=0.2),
    ),
}


def ring(n: int) -> Topology:
    """Weights 1/3 to both sides; complete for n <= 3."""
    if n <= 3:
        return from_matrices(np.full((n, n), 1.0 / n), name="ring")
    eye = np.eye(n)
    return from_matrices((eye + np.roll(eye, 1, 1) + np.roll(eye, -1, 1)) / 3, name="ring")


def one_peer_exponential(n: int) -> Topology:
    """Directed, time-varying: at step t worker i hears i - 2^(t mod log2 n)."""
    eye = np.eye(n)
    shifts = [1 << k for k in range(max(1, (n - 1).bit_length()))]
    return from_matrices([(eye + np.roll(eye, s, 0)) / 2 for s in shifts], name="one-peer-exponential")


def directed(n: int) -> Topology:
    """A static directed circulant that is neither symmetric nor normal-looking: hears 1 behind more than 2 ahead."""
    eye = np.eye(n)
    return from_matrices(0.5 * eye + 0.35 * np.roll(eye, 1, 0) + 0.15 * np.roll(eye, -2, 0), name="directed")


def column_stochastic(n: int) -> Topology:
    """Two rounds of a digraph with unequal out-degrees: columns sum to one, rows do not."""
    rounds = []
    for hop in (1, 2):
        w = np.eye(n) + np.roll(np.eye(n), hop, 0)
        w[0, n // 2] += 1.0
        w[2, 1] += 2.0
        rounds.append(w / w.sum(axis=0))
    return from_matrices(rounds, name="push", promise="column")


def complete(n: int) -> Topology:
    """Everybody hears everybody."""
    return from_matrices(np.full((n, n), 1.0 / n), name="complete")


TOPOLOGIES: dict[str, Callable[[int], Topology]] = {
    "ring": ring,
    "one-peer-exponential": one_peer_exponential,
    "directed": directed,
    "column-stochastic": column_stochastic,
    "complete": complete,
}


@pytest.fixture
def quadratics() -> type[Quadratics]:
    return Quadratics


@pytest.fixture
def schedules() -> dict[str, Callable[[int], Topology]]:
    return TOPOLOGIES


@pytest.fixture
def optimizers() -> dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[], NumpyMove]]]:
    return OPTIMIZERS
