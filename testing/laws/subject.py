"""The algorithm under test with what it is tested on; what applies to it is read off what it declares and asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import check_optimizer
from dissensus.testing.laws.bare import Bare, Trace
from dissensus.testing.laws.problems import (
    OPTIMIZERS,
    LocalOptimizer,
    Quadratics,
    directed,
    learning_rate,
    listening,
    named,
    pushing,
)
from dissensus.testing.laws.verdict import Broken, DoesNotApply
from dissensus.theory.topology import Topology

EngineFactory = Callable[..., Any]
"""Called like `StackedEngine`, and like it in what comes back: `step`, `x`, `state`, `state_dict`, ..."""

Plain = Callable[[Quadratics, LocalOptimizer], np.ndarray]

COLUMNS = 5
DECLARED = {
    "name": 'the name in messages and states: @register("my-name"), or name: ClassVar[str] = "my-name"',
    "promise": 'what it needs of every round: promise: ClassVar[Stochasticity | None] = "doubly"',
    "static": "whether every round must be the same matrix: static: ClassVar[bool] = False",
    "columnwise": "whether columns are coupled by nothing but Norm: columnwise: ClassVar[bool] = True",
    "init": "the state before the first step: def init(self, x) -> a NamedTuple of tensors",
    "step": "the recursion: a generator step(self, x, state, local) that yields requests",
    "deployed": "the model a worker would deploy: def deployed(self, x, state), often x itself",
    "matrix_form": "the paper's recursion in dense numpy, its oracle: def matrix_form(self, problem, steps), "
    "deployed points of shape (steps + 1, n, d)",
}
"""What every algorithm carries, and how to add it."""


@dataclass(frozen=True)
class Subject:
    """An algorithm, and the schedules, optimizers, size and engine it is run with."""

    algorithm: Algorithm
    topologies: tuple[Topology, ...]
    optimizers: Mapping[str, LocalOptimizer]
    n: int
    steps: int
    engine: EngineFactory
    layouts: Mapping[str, EngineFactory]
    seed: int

    def fresh(self, **changes: Any) -> Algorithm:
        """The algorithm built once more from its fields: nothing it may have remembered comes along."""
        return (
            dataclasses.replace(self.algorithm, **changes)
            if dataclasses.is_dataclass(self.algorithm)
            else self.algorithm
        )

    def engine_on(self, problem: Quadratics, topology: Topology, optimizer: str, **options: Any) -> Any:
        """An engine that runs it on quadratics."""
        given = {"algorithm": self.fresh(), "topology": topology, "optimizer": self.optimizers[optimizer].factory}
        build = options.pop("build", self.engine)
        return problem.engine(build, **(given | options))

    def path(self, problem: Quadratics, topology: Topology, optimizer: str, steps: int, **options: Any) -> np.ndarray:
        """Its deployed points on quadratics, (steps + 1, n, d)."""
        return problem.run(self.engine_on(problem, topology, optimizer, **options), steps)

    def bare(self, topology: Topology, **options: Any) -> Bare:
        """It alone, without an engine, from starting points that differ."""
        x0 = torch.from_numpy(np.random.default_rng(self.seed).normal(size=(topology.size, COLUMNS)))
        return Bare(self.fresh(), topology, **({"x0": x0, "seed": self.seed} | options))

    def matrix_form(self, problem: Quadratics, topology: Topology, optimizer: str, steps: int) -> np.ndarray:
        """Its own dense recursion on the same problem."""
        form = getattr(self.algorithm, "matrix_form", None)
        if form is None:
            raise Broken(f"it has no matrix_form; add {DECLARED['matrix_form']}")
        dense = problem.dense(topology, learning_rate, self.optimizers[optimizer].recursion())
        points = np.asarray(self.fresh().matrix_form(dense, steps))
        if points.shape != (steps + 1, *problem.x0.shape):
            raise Broken(f"its matrix_form returns shape {points.shape}, expected {(steps + 1, *problem.x0.shape)}")
        return points

    @cached_property
    def trace(self) -> Trace:
        """What it asks for over a run on the first topology."""
        bare = self.bare(self.topologies[0])
        bare.run(min(self.steps, 24))
        return bare.trace

    def needs_no_draws(self) -> None:
        """For laws about workers that change places: a drawn number belongs to a place."""
        if self.trace.draws:
            raise DoesNotApply("it draws random numbers, which belong to a worker and not to its data")

    def pairs(self) -> list[tuple[Topology, str]]:
        """Every schedule with some optimizer and every optimizer on some schedule: where not all pairs are needed."""
        names = list(self.optimizers)
        count = max(len(self.topologies), len(names))
        return [(self.topologies[i % len(self.topologies)], names[i % len(names)]) for i in range(count)]

    def difference_from(self, plain: Plain, topology: Topology, optimizer: str) -> float:
        """How far its matrix form on that topology is from a plain recursion, relatively, on a curved problem."""
        problem = Quadratics.draw(topology.size, COLUMNS, 10, self.seed).together().curved()
        expected = plain(problem, self.optimizers[optimizer])
        found = self.matrix_form(problem, topology, optimizer, 10)
        return float(np.abs(found - expected).max() / np.abs(expected).max())


def accepts(algorithm: Any, optimizer: LocalOptimizer) -> bool:
    """Whether an algorithm may be run with a local optimizer: some are another algorithm with the wrong one."""
    try:
        check_optimizer(algorithm, optimizer.factory([torch.nn.Parameter(torch.zeros(1))]))
    except AlgorithmError:
        return False
    return True


def default_optimizers(algorithm: Any) -> dict[str, LocalOptimizer]:
    """Plain SGD, one with momentum and decay, and an Adam; others in place of those it may not be run with."""
    usual, rest = ("sgd", "momentum with decay", "adam"), ("adamw", "nesterov")
    return {k: OPTIMIZERS[k] for k in [k for k in (*usual, *rest) if accepts(algorithm, OPTIMIZERS[k])][:3]}


def default_topologies(algorithm: Any, n: int) -> tuple[Topology, ...]:
    """Hard schedules that it says it can run on: directed ones show a transposed matrix, changing ones a stale one."""
    static, promise = bool(getattr(algorithm, "static", False)), getattr(algorithm, "promise", "doubly")
    found = [directed(n), named("ring", n)]
    if not static:
        found.append(named("one-peer-exponential", n))
    if promise == "column":
        found.append(pushing(n, static=static))
    if promise == "row":
        found.append(listening(n, static=static))
    return tuple(found)


def alone(problem: Quadratics, optimizer: LocalOptimizer) -> np.ndarray:
    """Every worker by itself with the plain local optimizer."""
    move, points = optimizer.recursion(), [problem.x0]
    for t in range(len(problem.noise)):
        points.append(move(t, points[-1], problem.gradient(t, points[-1]), learning_rate(t)))
    return np.stack(points)


def centralized(problem: Quadratics, optimizer: LocalOptimizer) -> np.ndarray:
    """One machine with the mean of all gradients."""
    move, points = optimizer.recursion(), [problem.x0]
    for t in range(len(problem.noise)):
        g = np.broadcast_to(problem.gradient(t, points[-1]).mean(axis=0), problem.x0.shape)
        points.append(move(t, points[-1], g, learning_rate(t)))
    return np.stack(points)
