r"""What the laws are run on: quadratics whose gradients are known, local optimizers as numpy recursions, schedules.

Worker i has $f_i(x) = \tfrac12 x^\top A_i x - b_i^\top x$ and at step t the additional gradient `noise[t, i]`. The same
numbers go through `torch` in an engine and through numpy in a matrix form.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.protocol import DenseProblem
from dissensus.algorithms.streams import stream
from dissensus.testing.dense_topologies import dense_rounds
from dissensus.theory.topology import Topology, from_matrices

NumpyMove = Callable[[int, np.ndarray, np.ndarray, float], np.ndarray]
"""(step, x, gradient, learning rate) -> the new point: a local optimizer as a recursion with its own memory."""


class LocalOptimizer(NamedTuple):
    """A local optimizer twice: for an engine, and as a numpy recursion written without looking at it."""

    factory: Callable[..., torch.optim.Optimizer]
    recursion: Callable[[], NumpyMove]


class SgdRecursion:
    """SGD with coupled decay, momentum without dampening, and Nesterov's form of it."""

    def __init__(self, momentum: float = 0.0, decay: float = 0.0, *, nesterov: bool = False) -> None:
        self.momentum, self.decay, self.nesterov = momentum, decay, nesterov
        self.v: np.ndarray | float = 0.0

    def __call__(self, t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        """V = μv + g + λx, then along v, or along g + λx + μv."""
        del t
        g = g + self.decay * x
        self.v = self.momentum * self.v + g
        return x - lr * (g + self.momentum * self.v if self.nesterov else self.v)


class AdamRecursion:
    """Adam (Kingma and Ba 2015) with epsilon outside the root; decoupled decay makes it AdamW."""

    def __init__(self, eps: float = 1e-3, decoupled: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.eps, self.decoupled, self.betas = eps, decoupled, betas
        self.k, self.m, self.v = 0, np.zeros(()), np.zeros(())

    def __call__(self, t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        """One step, with the bias of both moments taken out."""
        del t
        self.k += 1
        first, second = self.betas
        self.m = first * self.m + (1 - first) * g
        self.v = second * self.v + (1 - second) * g**2
        denominator = np.sqrt(self.v / (1 - second**self.k)) + self.eps
        return (1 - lr * self.decoupled) * x - lr * self.m / (1 - first**self.k) / denominator


OPTIMIZERS: Mapping[str, LocalOptimizer] = {
    "sgd": LocalOptimizer(partial(torch.optim.SGD, lr=0.1), SgdRecursion),
    "momentum with decay": LocalOptimizer(
        partial(torch.optim.SGD, lr=0.1, momentum=0.8, weight_decay=0.1), partial(SgdRecursion, 0.8, 0.1)
    ),
    "nesterov": LocalOptimizer(
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), partial(SgdRecursion, 0.9, nesterov=True)
    ),
    "adam": LocalOptimizer(partial(torch.optim.Adam, lr=0.1, eps=1e-3), AdamRecursion),
    "adamw": LocalOptimizer(
        partial(torch.optim.AdamW, lr=0.1, eps=1e-3, weight_decay=0.2), partial(AdamRecursion, 1e-3, 0.2)
    ),
}
"""Epsilon of the Adams is large, so that no quotient of two tiny numbers magnifies rounding."""


def learning_rate(t: int) -> float:
    """Rises for a step or two, then falls in waves: whatever follows the schedule shows, no two steps being alike."""
    return 0.05 * (1 + 0.1 * math.sin(t)) / (1 + t / 50)


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(d, dtype=torch.float64))


def quadratic_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """½ xᵀAx - bᵀx + noiseᵀx, all of one worker's batch."""
    x = model.x
    return 0.5 * x @ (batch["A"] @ x) - batch["b"] @ x + batch["noise"] @ x


@dataclass(frozen=True)
class Quadratics:
    """One quadratic per worker, noise per step and worker, and the starting points."""

    A: np.ndarray
    b: np.ndarray
    noise: np.ndarray
    x0: np.ndarray
    seed: int = 0
    """What an algorithm that draws random numbers draws from."""

    @classmethod
    def draw(cls, n: int, d: int, steps: int, seed: int = 0) -> Quadratics:
        """Different curvature, minimum and start for every worker; curvatures between 0.2 and about 2."""
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(n, d, d)) / np.sqrt(d)
        curvature = 0.2 * np.eye(d) + factors @ factors.transpose(0, 2, 1) / 2
        noise = 0.3 * rng.normal(size=(steps, n, d))
        return cls(curvature, rng.normal(size=(n, d)), noise, rng.normal(size=(n, d)), seed)

    def flat(self) -> Quadratics:
        """The same starts, and no gradient anywhere."""
        return replace(self, A=0.0 * self.A, b=0.0 * self.b, noise=0.0 * self.noise)

    def of(self, workers: Sequence[int] | np.ndarray) -> Quadratics:
        """These workers, in this order; a worker may be named more than once."""
        some = np.asarray(workers)
        return replace(self, A=self.A[some], b=self.b[some], noise=self.noise[:, some], x0=self.x0[some])

    def together(self) -> Quadratics:
        """The same, with every worker starting where worker 0 does."""
        return replace(self, x0=np.repeat(self.x0[:1], len(self.x0), axis=0))

    def gradient(self, t: int, x: np.ndarray) -> np.ndarray:
        """The gradients used at step t at the rows of x."""
        return np.stack([a @ row - b for a, b, row in zip(self.A, self.b, x, strict=True)]) + self.noise[t]

    def batch(self, t: int) -> dict[str, Tensor]:
        """The batch of step t for an engine."""
        return {k: torch.from_numpy(v.copy()) for k, v in {"A": self.A, "b": self.b, "noise": self.noise[t]}.items()}

    def dense(self, topology: Topology, lr: Callable[[int], float], move: NumpyMove) -> DenseProblem:
        """The same for a matrix form."""
        n = len(self.x0)
        return DenseProblem(
            self.x0,
            self.gradient,
            lambda t: topology[t].dense(),
            lr,
            move,
            lambda t, purpose: [stream(self.seed, purpose, t, i) for i in range(n)],
            decay=getattr(move, "decay", 0.0),
        )

    def engine(self, build: Callable[..., Any], **options: Any) -> Any:
        """An engine at the starting points."""
        usual = {"lr": learning_rate, "seed": self.seed, "start": torch.from_numpy(self.x0.copy())}
        return build(Point(self.x0.shape[1]), quadratic_loss, **(usual | options))

    def curved(self) -> Quadratics:
        """The same with curvature that changes along the way, for numpy only: averages of gradients show."""
        return Curved(self.A, self.b, self.noise, self.x0, self.seed)

    def run(self, engine: Any, steps: int) -> np.ndarray:
        """The deployed points of an engine, (steps + 1, n, d)."""
        points = [engine.x.numpy()]
        for _ in range(steps):
            engine.step(self.batch(engine.t))
            points.append(engine.x.numpy())
        return np.stack(points)


class Curved(Quadratics):
    """Quadratics and a sine."""

    def gradient(self, t: int, x: np.ndarray) -> np.ndarray:
        """The gradient of the quadratics and of -cos(3x)/6."""
        return super().gradient(t, x) + 0.5 * np.sin(3.0 * x)


def directed(n: int) -> Topology:
    """A static directed circulant of unequal weights: 1 behind is heard more than 2 ahead."""
    eye = np.eye(n)
    w = 0.5 * eye + 0.35 * np.roll(eye, 1, 0) + 0.15 * np.roll(eye, -2, 0)
    return from_matrices(w, name="directed circulant")


def pushing(n: int, *, static: bool = False) -> Topology:
    """A digraph with unequal numbers of listeners: columns sum to one, rows do not."""
    rounds = []
    for hop in (1,) if static else (1, 2):
        w = np.eye(n) + np.roll(np.eye(n), hop, 0)
        w[0, n // 2] += 1.0
        w[min(2, n - 1), min(1, n - 1)] += 2.0
        rounds.append(w / w.sum(axis=0))
    return from_matrices(rounds, name="pushing", promise="column", may_disconnect=n == 1)


def listening(n: int, *, static: bool = False) -> Topology:
    """The transpose: rows sum to one, columns do not."""
    return from_matrices([w.dense().T for w in pushing(n, static=static)], name="listening", promise="row")


def named(name: str, n: int) -> Topology:
    """A topology by its dense rounds, which share nothing with the builders of the library."""
    return from_matrices(dense_rounds(name, n), name=name, may_disconnect=n == 1)


def apart(n: int) -> Topology:
    """Nobody hears anybody."""
    return from_matrices(np.eye(n), name="nobody speaks", may_disconnect=True)


def generator_states() -> dict[str, Any]:
    """Where the global generators of torch, numpy and Python stand."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (numpy["state"]["key"].tolist(), numpy["state"]["pos"]),  # type: ignore[call-overload]
        "Python": random.getstate(),
    }
