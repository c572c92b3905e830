r"""Against the physical limit: a step of n workers beside one model's gradient on all their samples.

The yardstick is the same arithmetic in its best shape: an ordinary module, forward and backward over n b samples in one
batch, and the same `torch.optim` class on one (n, d) tensor whose gradient is already there. It mixes nothing, keeps
one point instead of n, and copies nothing together; no simulation can be expected to reach it.

Ours is also taken apart, in an engine of its own beside the one that is timed: how long the algorithm waited for
gradients, for the exchange and for the move, by the clock, and what is left of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, cast

import torch
from torch import Tensor

from dissensus.algorithms import algorithm
from dissensus.algorithms.protocol import Algorithm, Await, Gradient, Local, Mean, Mix, Post, Request
from dissensus.experiments.bench.simulate_agreement import TOLERANCE, Ours, agreement, difference_to_big_step
from dissensus.experiments.bench.simulate_models import Case, starting_points
from dissensus.experiments.bench.simulate_rivals import BigStep, OptimizerFactory, PythonLoop
from dissensus.experiments.bench.timing import Share, race, spread
from dissensus.experiments.threads import threads
from dissensus.theory.registry import topology

RATIO = {"mlp": 1.5, "convolution": 2.0, "transformer": 2.0}
"""What a step may cost in units of the big step, where that takes at least `LONG` seconds."""

LONG, DISPATCH = 0.005, 0.003
"""Below so many seconds of the big step, ours may take so many more."""


class Observed:
    """An algorithm with a clock beside it: which part of a step's time went into answering what it asked for.

    An engine may run one recursion for every strip of columns, in lockstep, and answer several requests at once. So the
    time goes, at every moment, to the request that was made last, whoever made it, and the parts add up to the step.
    """

    def __init__(self, inner: Algorithm) -> None:
        self._inner = inner
        self.parts: dict[str, list[float]] = {"gradients": [], "mixing": [], "move": [], "rest": []}
        self._spent, self._now, self._since = dict.fromkeys(self.parts, 0.0), "rest", 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, x: Tensor, state: Any, local: Local) -> Generator[Any, Any, Any]:
        """The step of the algorithm, which tells the clock what it waits for."""
        running, answer = self._inner.step(x, state, cast(Local, _ObservedLocal(local, self))), None
        while True:
            self.turn("rest")
            try:
                request = running.send(answer)
            except StopIteration as end:
                return end.value
            self.turn(_part_of(request))
            answer = yield request

    def turn(self, part: str) -> None:
        """From now on, time goes to this part."""
        now = time.perf_counter()
        self._spent[self._now] += now - self._since
        self._now, self._since = part, now

    def whole(self, run: Callable[[], Any]) -> None:
        """Runs a step of the engine and keeps where its time went."""
        self._spent, self._now, self._since = dict.fromkeys(self.parts, 0.0), "rest", time.perf_counter()
        run()
        self.turn("rest")
        for part, seconds in self._spent.items():
            self.parts[part].append(seconds)


class _ObservedLocal:
    """What the workers can do by themselves, which tells the clock of a move."""

    def __init__(self, inner: Local, observed: Observed) -> None:
        self._inner, self._observed = inner, observed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        """The move."""
        self._observed.turn("move")
        moved = self._inner.move(x, g)
        self._observed.turn("rest")
        return moved


def _part_of(request: Request) -> str:
    if isinstance(request, Gradient):
        return "gradients"
    return "mixing" if isinstance(request, Mix | Post | Await | Mean) else "rest"


def against_the_limit(
    case: Case, workers: int, optimizer: str, factory: OptimizerFactory, count: int, seconds: float, least: int
) -> dict[str, Any]:
    """One row: the big step and ours, in turn, with so many threads."""
    batch, start = case.samples(workers), starting_points(case, workers)
    with threads(count):
        observed = Observed(algorithm("dsgd"))
        ours = Ours(case, workers, factory, batch, start=start)
        beside = Ours(case, workers, factory, batch, start=start, algorithm=observed)
        loop = PythonLoop(case, topology("ring", workers), factory, batch, start)
        agreed = agreement(loop, {"ours": ours, "ours, observed": beside}, start)
        to_big = difference_to_big_step(case)
        del loop
        big = BigStep(case, workers, factory, batch)
        contenders = {"big step": big.step, "ours": ours.step, "ours, observed": lambda: observed.whole(beside.step)}
        with Share() as share:
            times = race(contenders, seconds, least=least)
    laps = {name: spread(t) for name, t in times.items()}
    return {
        "part": "limit",
        "case": case.name,
        "kind": case.kind,
        "n": workers,
        "b": case.batch,
        "d": ours.d,
        "optimizer": optimizer,
        "threads": count,
        "route": ours.engine.route,
        "cores_had": share.cores,
        "seconds": laps,
        "parts_of_big_step": {k: spread(t[-len(times["big step"]) :]) for k, t in big.parts.items()},
        "parts_of_ours": {k: spread(t[-len(times["ours, observed"]) :]) for k, t in observed.parts.items()},
        **verdict(case, laps),
        "difference": agreed["difference"] | {"big step": to_big},
        "agree": agreed["agree"] and (to_big is None or to_big < TOLERANCE[torch.float64]),
    }


def verdict(case: Case, laps: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The ratio or the difference to the big step, which of them is limited, and whether the limit is met."""
    median, least = ({k: laps[k][kind] for k in ("big step", "ours")} for kind in ("median", "min"))
    ratio, fastest = median["ours"] / median["big step"], least["ours"] / least["big step"]
    more, more_of_fastest = median["ours"] - median["big step"], least["ours"] - least["big step"]
    long = median["big step"] >= LONG
    limit = RATIO[case.kind]
    return {
        "ratio": ratio,
        "ratio_of_fastest": fastest,
        "more_seconds": more,
        "more_seconds_of_fastest": more_of_fastest,
        "limit": f"{limit} x" if long else f"{1000 * DISPATCH:g} ms more",
        "met": ratio <= limit if long else more <= DISPATCH,
        "met_by_fastest": fastest <= limit if long else more_of_fastest <= DISPATCH,
    }
