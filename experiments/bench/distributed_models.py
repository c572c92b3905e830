r"""What the benchmark of the distributed engine trains: perceptrons of four sizes, and time that computing takes.

Where the wire is what is measured, computing may not burn the cores that carry the packets. So a part of it is slept
through: a pause after every layer, a third of the time on the way forward and two thirds on the way back, each just
before the gradients of its layer are ready. With `sigma`, the time of a step is multiplied by
$\exp(\sigma z - \sigma^2/2)$, log-normal with mean one, drawn from (step, worker) and so the same for every contender.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dissensus.experiments.bench.simulate_models import Batch

OptimizerFactory = Callable[[Iterable[Any]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "adam": partial(torch.optim.Adam, lr=0.001),
}
"""By name; all of them move every number for itself."""


def factor(sigma: float, step: int, worker: int) -> float:
    """How many times as long as on average this step takes this worker."""
    z = random.Random(1_000_003 * step + worker).gauss(0.0, 1.0)
    return math.exp(sigma * z - 0.5 * sigma**2)


class Pace:
    """How long the computing of one worker's steps takes beside what it really computes."""

    def __init__(self, seconds: float = 0.0, sigma: float = 0.0, worker: int = 0) -> None:
        self._seconds, self._sigma, self._worker = seconds, sigma, worker
        self._step, self.now = 0, 0.0

    def begin(self) -> None:
        """Another step begins."""
        self.now = self._seconds * factor(self._sigma, self._step, self._worker)
        self._step += 1

    def spend(self, share: float) -> None:
        """Sleeps for this share of the step's time."""
        if self.now:
            time.sleep(share * self.now)


@dataclass(frozen=True)
class Perceptron:
    """Linear layers of these widths with ReLU between them, and the batch of one worker."""

    name: str
    widths: tuple[int, ...]
    batch: int
    double: bool = False
    """Whether it is computed in double precision."""

    @property
    def d(self) -> int:
        """The number of parameters."""
        return sum(a * b + b for a, b in itertools.pairwise(self.widths))

    def model(self, pace: Pace | None = None) -> nn.Module:
        """The model at its start, the same at every call, with the pauses of this pace."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            linear: list[nn.Module] = [nn.Linear(a, b) for a, b in itertools.pairwise(self.widths)]
        layers: list[nn.Module] = []
        for layer in linear:
            layers += [layer, _Pause(pace, 1.0 / len(linear)), nn.ReLU()] if pace else [layer, nn.ReLU()]
        model = nn.Sequential(*layers[:-1])
        return model.double() if self.double else model

    def samples(self, worker: int) -> Batch:
        """The batch of a worker."""
        g = torch.Generator().manual_seed(1 + worker)
        inputs = torch.randn(self.batch, self.widths[0], generator=g)
        labels = torch.randint(self.widths[-1], (self.batch,), generator=g)
        return inputs.double() if self.double else inputs, labels

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy."""
        return functional.cross_entropy(model(batch[0]), batch[1])


MODELS = {
    model.name: model
    for model in (
        Perceptron("0.1M", (128, 256, 256, 10), 16),
        Perceptron("2.4M", (632,) * 7, 8),
        Perceptron("5M", (912,) * 7, 64),
        Perceptron("50M", (2048,) * 13, 16),
    )
}
"""By how many parameters they have, about."""

TINY = Perceptron("tiny", (5, 7, 3), 4, double=True)
"""For what is compared with a recursion in double precision before anything is timed."""


class _Pause(nn.Module):
    def __init__(self, pace: Pace, share: float) -> None:
        super().__init__()
        self.pace, self.share = pace, share

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers, a little later."""
        return _Later.apply(x, self.pace, self.share)  # type: ignore[no-any-return]


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace, share: float) -> Tensor:  # type: ignore[override]
        """A third of the share."""
        ctx.pace, ctx.share = pace, share
        pace.spend(share / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Two thirds of it."""
        ctx.pace.spend(2 * ctx.share / 3)
        return gradient, None, None
