r"""Exact quadratics, for checking by outsiders: what goes in is four arrays, what comes out is every point.

Worker i has $f_i(x) = \tfrac12 x^\top A_i x - b_i^\top x$ and, at step t, the gradient

$$ g_i^t(x) = A_i x - b_i + \xi_i^t $$

in full, with `noise[t]` = $\xi^t$ added wherever an algorithm takes a gradient at step t (both times if it takes two),
and nothing added if there is no noise. The joint optimum is $x^\star = \bar A^{-1} \bar b$ where $\bar A$ is positive
definite. The recursion runs on the engine that trains everything else: what holds here holds there.

    problem = Problem.load("problem.npz")  # A (n, d, d), b (n, d), x0 (d,) or (n, d), perhaps noise (T, n, d)
    ring = topology("ring", problem.size)
    x = solve(problem, algorithm=algorithm("dsgd", order="atc"), topology=ring, lr=0.1, steps=100)
    x.shape                                # (101, n, d)

Reference: ours; the format of the file is this docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.gradients import Route
from dissensus.algorithms.engines.moves import OptimizerFactory
from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import planned
from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.problem_file import (
    NAMES,
    REQUIRED,
    check_shapes,
    check_symmetric,
    numbers,
    read_arrays,
    write_arrays,
)
from dissensus.theory.topology import Topology

DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True, eq=False)
class Problem:
    """n quadratics on d coordinates, where the workers start, and the noise of their gradients. Held in float64."""

    A: np.ndarray
    """(n, d, d), each symmetric."""
    b: np.ndarray
    """(n, d)."""
    x0: np.ndarray
    """(n, d); a common start (d,) is accepted and spread over the workers."""
    noise: np.ndarray | None = None
    """(T, n, d), or none: then gradients are exact."""

    def __post_init__(self) -> None:
        single = getattr(self.A, "dtype", None) == np.float32
        for name in NAMES:
            if name in REQUIRED or getattr(self, name) is not None:
                object.__setattr__(self, name, numbers(name, getattr(self, name)))
        check_shapes(self.A, self.b, self.x0, self.noise)
        check_symmetric(self.A, float(np.finfo(np.float32 if single else np.float64).eps))
        object.__setattr__(self, "x0", np.broadcast_to(self.x0, self.b.shape).copy())

    @property
    def size(self) -> int:
        """The number of workers, n."""
        return self.A.shape[0]

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return self.A.shape[1]

    def gradient(self, t: int, x: np.ndarray) -> np.ndarray:
        """The gradients of all workers at the rows of x (or all at one point) with the noise of step t, (n, d)."""
        exact = np.einsum("nij,nj->ni", self.A, np.broadcast_to(x, self.b.shape)) - self.b
        return exact if self.noise is None else exact + self.noise[t]

    def losses(self, x: np.ndarray) -> np.ndarray:
        """f_i at row i of x, or every f_i at one point, (n,)."""
        rows = np.broadcast_to(x, self.b.shape)
        return np.einsum("ni,nij,nj->n", rows, self.A, rows) / 2.0 - (self.b * rows).sum(axis=1)

    def loss(self, x: np.ndarray) -> float:
        """The mean of `losses`: at one point (d,), the joint objective."""
        return float(self.losses(x).mean())

    @cached_property
    def optimum(self) -> np.ndarray | None:
        """Where the joint objective is smallest, (d,); none if the mean of A is not positive definite."""
        mean = self.A.mean(axis=0)
        values = np.linalg.eigvalsh(mean)
        if values[0] <= np.finfo(float).eps * self.dimension * abs(values).max():
            return None
        return np.linalg.solve(mean, self.b.mean(axis=0))

    @classmethod
    def load(cls, path: str | Path) -> Problem:
        """Reads a problem from an .npz file; arrays of other names in it are left alone."""
        arrays = read_arrays(Path(path))
        try:
            return cls(**arrays)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Writes the problem, whole or not at all; `load` gives it back to the bit."""
        arrays = {name: getattr(self, name) for name in NAMES}
        write_arrays(Path(path), {name: value for name, value in arrays.items() if value is not None})

    @classmethod
    def draw(
        cls,
        n: int,
        d: int,
        *,
        seed: int = 0,
        heterogeneity: float = 0.0,
        noise: float = 0.0,
        steps: int = 0,
        conditioning: float = 10.0,
    ) -> Problem:
        r"""Random quadratics whose optimum, heterogeneity, noise and condition are what is asked for.

        With $H$ and $H_i$ rotated at random, of spectrum spaced evenly in the logarithm from $1/\kappa$ to 1,

        $$ A_i = \frac{H + \zeta H_i}{1 + \zeta}, \qquad b_i = A_i x^\star - c_i, \qquad \sum_i c_i = 0, \qquad
           \frac1n \sum_i \|c_i\|^2 = \zeta^2, $$

        so $\nabla f_i(x^\star) = c_i$: $\zeta^2$ is the mean square gradient of the workers at the joint optimum, and
        at $\zeta = 0$ all workers have the same objective. Every eigenvalue of every A_i lies in $[1/\kappa, 1]$.

        Args:
            n: workers.
            d: coordinates.
            seed: decides all numbers; noise of more steps begins with the noise of fewer.
            heterogeneity: ζ.
            noise: standard deviation of every coordinate of the gradient noise, independent over workers and steps.
            steps: how many steps of noise.
            conditioning: κ.
        """
        for name, value, least in (("n", n, 1), ("d", d, 1), ("heterogeneity", heterogeneity, 0), ("noise", noise, 0)):
            if not value >= least:
                raise ConfigError(f"{name} must be at least {least}, got {value!r}")
        if not 1.0 <= conditioning < np.inf:
            raise ConfigError(f"conditioning is a condition number: at least 1, got {conditioning!r}")
        if n == 1 and heterogeneity > 0:
            raise ConfigError(f"heterogeneity = {heterogeneity!r} needs at least 2 workers: one differs from nobody")
        if noise > 0 and steps < 1:
            raise ConfigError(f"noise = {noise!r} needs steps: how many steps of noise to draw")
        rng = numpy_stream(seed, "problem")
        spectrum = conditioning ** -np.linspace(0.0, 1.0, d)
        common, own = _rotated(rng, spectrum, 1), _rotated(rng, spectrum, n)
        a = (common + heterogeneity * own) / (1.0 + heterogeneity)
        optimum, start, c = rng.normal(size=d), rng.normal(size=d), rng.normal(size=(n, d))
        if heterogeneity > 0:
            c -= c.mean(axis=0)
            c *= heterogeneity / np.sqrt((c**2).sum() / n)
        else:
            c = np.zeros((n, d))
        drawn = noise * numpy_stream(seed, "problem", "noise").normal(size=(steps, n, d)) if noise > 0 else None
        return cls(a, np.einsum("nij,j->ni", a, optimum) - c, start, drawn)


class Point(nn.Module):
    """A vector that is trained."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self) -> Tensor:
        """The vector."""
        return self.x


def quadratic_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """f_i(x) + ξ_i'x of one worker, whose gradient is A_i x - b_i + ξ_i."""
    x = model()
    value = 0.5 * x @ (batch["A"] @ x) - batch["b"] @ x
    return value + batch["noise"] @ x if "noise" in batch else value


def engine_for(
    problem: Problem,
    *,
    algorithm: Algorithm,
    topology: Topology,
    lr: float | Callable[[int], float],
    optimizer: OptimizerFactory | None = None,
    dtype: Literal["float64", "float32"] | torch.dtype = "float64",
    gradients: Route = "vmap",
    seed: int = 0,
    wire: Wire | None = None,
    device: torch.device | None = None,
) -> StackedEngine:
    """The engine that runs an algorithm on the problem, at its start.

    Args:
        problem: the quadratics.
        algorithm: the algorithm.
        topology: who mixes with whom, as many workers as the problem has.
        lr: the learning rate, or a function of the step.
        optimizer: the local move, `partial(torch.optim.SGD, momentum=0.9)`; the algorithm's own unless given.
        dtype: in which the whole recursion runs.
        gradients: `vmap`, or `loop`: one worker after the other.
        seed: what compressors and the like draw from; the problem itself draws nothing.
        wire: the processes that share the workers; all are here unless given.
        device: where they are.
    """
    if topology.size != problem.size:
        raise ConfigError(
            f"the problem is one of {problem.size} workers, but topology {topology.name!r} has {topology.size}"
        )
    kind = DTYPES.get(str(dtype).removeprefix("torch."))
    if kind is None:
        raise ConfigError(f"dtype must be float64 or float32, got {dtype!r}")
    return StackedEngine(
        Point(problem.dimension, kind).to(device=device),
        quadratic_loss,
        algorithm=algorithm,
        topology=topology,
        optimizer=optimizer,
        lr=lr,
        seed=seed,
        gradients=gradients,
        start=torch.from_numpy(problem.x0),
        wire=wire,
    )


def walk(problem: Problem, engine: StackedEngine, steps: int) -> Iterator[np.ndarray]:
    """The deployed points (n, d) before the first step, then after every one of `steps`, in every process."""
    check_steps(problem, steps)
    here = slice(engine.workers.start, engine.workers.stop)
    fixed, noise = {"A": problem.A[here], "b": problem.b[here]}, problem.noise
    kind = {"dtype": engine.columns.dtype, "device": engine.columns.device}
    batch = {key: torch.from_numpy(value).to(**kind) for key, value in fixed.items()}
    yield engine.snapshot().x.cpu().numpy()
    for _ in range(steps):
        if noise is not None:
            batch["noise"] = torch.from_numpy(noise[engine.t, here]).to(**kind)
        engine.step(batch)
        yield engine.snapshot().x.cpu().numpy()


def solve(
    problem: Problem,
    *,
    algorithm: Algorithm,
    topology: Topology,
    lr: float | Callable[[int], float],
    steps: int,
    **options: Any,
) -> np.ndarray:
    """Runs an algorithm on the problem and returns all deployed points, (steps + 1, n, d), from the start on.

    The whole schedule is known here, so an algorithm that depends on it is told (`registry.planned`). `options` are
    those of `engine_for`.
    """
    check_steps(problem, steps)
    engine = engine_for(problem, algorithm=planned(algorithm, lr, steps), topology=topology, lr=lr, **options)
    return np.stack(list(walk(problem, engine, steps)))


def own_optimizer(algorithm: Algorithm) -> str:
    """The name of the local optimizer of an algorithm where none is asked for."""
    return getattr(algorithm, "optimizer", "sgd")


def check_steps(problem: Problem, steps: int) -> None:
    """Refuses a number of steps that the problem has no noise for."""
    if steps < 0:
        raise ConfigError(f"steps must be at least 0, got {steps}")
    if problem.noise is not None and len(problem.noise) < steps:
        raise ConfigError(f"noise holds {len(problem.noise)} steps, but {steps} are asked for")


def _rotated(rng: np.random.Generator, spectrum: np.ndarray, count: int) -> np.ndarray:
    """Symmetric matrices (count, d, d) of this spectrum in random orthonormal frames."""
    frames, _ = np.linalg.qr(rng.normal(size=(count, len(spectrum), len(spectrum))))
    turned = (frames * spectrum) @ frames.swapaxes(1, 2)
    return (turned + turned.swapaxes(1, 2)) / 2.0
