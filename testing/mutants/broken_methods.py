"""The other methods broken on purpose: what is averaged, tracked, remembered, de-biased, compressed."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dissensus.algorithms.protocol import Gradient, Local, Mean, Mix, Step
from dissensus.algorithms.recursions.allreduce import AllReduce
from dissensus.algorithms.recursions.choco_sgd import ChocoSgd, Known
from dissensus.algorithms.recursions.gradient_tracking import GradientTracking, Tracker
from dissensus.algorithms.recursions.local_sgd import LocalSgd
from dissensus.algorithms.recursions.qg_dsgdm import QgDsgdm, QuasiGlobal
from dissensus.algorithms.recursions.sgp import PushSum, Sgp
from dissensus.testing.mutants.mutant import broken


@broken("sum for mean", "adds the gradients up", "matrix form", "large batch")
class _SumForMean(AllReduce):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move(x, len(x) * (yield Mean(g))), state


@broken("averages a step late", "counts its period from the first step instead of to its end", "matrix form")
class _AveragesLate(LocalSgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        moved = local.move(x, g)
        if local.t % self.period == 0:
            moved = yield Mean(moved)
        return moved, state


@broken("tracker not initialised", "starts from y = 0 instead of the first gradient", "matrix form", "one worker")
class _TrackerFromZero(GradientTracking):
    def step(self, x: Tensor, state: Tracker, local: Local) -> Step:
        g = yield Gradient(x)
        y = state.received + (g - state.gradient if local.t else torch.zeros_like(g))
        return local.move((yield Mix(x)), y), Tracker((yield Mix(y)), g)


@broken("tracker forgets", "adds the new gradient without taking the old one away", "matrix form", "one worker")
class _TrackerForgets(GradientTracking):
    def step(self, x: Tensor, state: Tracker, local: Local) -> Step:
        g = yield Gradient(x)
        y = state.received + g
        return local.move((yield Mix(x)), y), Tracker((yield Mix(y)), g)


@broken("tracker not mixed", "keeps its y to itself", "matrix form")
class _TrackerAlone(GradientTracking):
    def step(self, x: Tensor, state: Tracker, local: Local) -> Step:
        g = yield Gradient(x)
        y = state.received + g - state.gradient
        return local.move((yield Mix(x)), y), Tracker(y, g)


@broken("tracker's memory swapped", "gives back its two memories in the wrong order", "matrix form")
class _TrackerSwapped(GradientTracking):
    def step(self, x: Tensor, state: Tracker, local: Local) -> Step:
        g = yield Gradient(x)
        y = state.received + g - state.gradient
        return local.move((yield Mix(x)), y), Tracker(g, (yield Mix(y)))


class _Forgetful(NamedTuple):
    received: Tensor
    steps: Tensor


@broken("state without rows", "carries a scalar from step to step", "state has rows", "rows apart")
class _ScalarState(GradientTracking):
    def init(self, x: Tensor) -> Any:
        return _Forgetful(torch.zeros_like(x), torch.zeros((), dtype=x.dtype))

    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x)), g), _Forgetful(state.received, state.steps + 1)


class _Seen(NamedTuple):
    """What a worker has at hand when it updates its quasi-global momentum."""

    x: Tensor
    half: Tensor
    mixed: Tensor
    m: Tensor
    rate: float | Tensor


class _QuasiGlobal(QgDsgdm):
    def _next(self, seen: _Seen) -> Tensor:
        raise NotImplementedError

    def step(self, x: Tensor, state: QuasiGlobal, local: Local) -> Step:
        g = yield Gradient(x)
        half = local.move(x, self.beta * state.momentum + g)
        mixed = yield Mix(half)
        if local.lr == 0.0:
            return mixed, state
        return mixed, QuasiGlobal(self._next(_Seen(x, half, mixed, state.momentum, local.rate)))


@broken(
    "displacement before mixing",
    "remembers where its own move went, not where mixing took it",
    "matrix form",
    original=QgDsgdm,
)
class _BeforeMixing(_QuasiGlobal):
    def _next(self, seen: _Seen) -> Tensor:
        return (1 - self.nu) * seen.m + self.nu * (seen.x - seen.half) / seen.rate


@broken(
    "sign of the quasi-global momentum", "remembers the displacement the wrong way", "matrix form", original=QgDsgdm
)
class _WrongSign(_QuasiGlobal):
    def _next(self, seen: _Seen) -> Tensor:
        return (1 - self.nu) * seen.m + self.nu * (seen.mixed - seen.x) / seen.rate


@broken("displacement not divided", "forgets the learning rate in the displacement", "matrix form", original=QgDsgdm)
class _NotDivided(_QuasiGlobal):
    def _next(self, seen: _Seen) -> Tensor:
        return (1 - self.nu) * seen.m + self.nu * (seen.x - seen.mixed)


@broken("nu for 1 - nu", "swaps what is kept with what is taken", "matrix form", original=QgDsgdm)
class _SwappedNu(_QuasiGlobal):
    def _next(self, seen: _Seen) -> Tensor:
        return self.nu * seen.m + (1 - self.nu) * (seen.x - seen.mixed) / seen.rate


@broken(
    "heavy ball for quasi-global", "carries its own momentum on, as plain SGD does", "matrix form", original=QgDsgdm
)
class _HeavyBall(_QuasiGlobal):
    def _next(self, seen: _Seen) -> Tensor:
        return (seen.x - seen.half) / seen.rate


@broken("push-sum weight not mixed", "keeps every weight at one", "consensus stays", "sums are kept", "matrix form")
class _WeightNotMixed(Sgp):
    def step(self, x: Tensor, state: PushSum, local: Local) -> Step:
        g = yield Gradient(x / state.weight)
        return (yield Mix(local.move(x, g))), state


@broken("de-biasing forgotten", "deploys x instead of x / w", "consensus stays", "sums are kept", "matrix form")
class _NotDebiased(Sgp):
    def deployed(self, x: Tensor, state: PushSum) -> Tensor:
        del state
        return x


@broken("gradient at the biased point", "takes gradients at x instead of at x / w", "matrix form")
class _BiasedGradient(Sgp):
    def step(self, x: Tensor, state: PushSum, local: Local) -> Step:
        g = yield Gradient(x)
        mixed = yield Mix(local.move(x, g))
        return mixed, PushSum((yield Mix(state.weight)))


@broken("de-biased twice", "pushes x / w instead of x", "consensus stays", "sums are kept", "matrix form")
class _PushesDebiased(Sgp):
    def step(self, x: Tensor, state: PushSum, local: Local) -> Step:
        z = x / state.weight
        g = yield Gradient(z)
        mixed = yield Mix(local.move(z, g))
        return mixed, PushSum((yield Mix(state.weight)))


@broken("x-hat not updated", "forgets that the others now know more of it", "matrix form")
class _HatNotUpdated(ChocoSgd):
    def step(self, x: Tensor, state: Known, local: Local) -> Step:
        g = yield Gradient(x)
        x_new = local.move(x, g) + self.consensus_step * (state.mixture - state.own)
        q = x_new - state.own
        return x_new, Known(state.own, state.mixture + (yield Mix(q)))


@broken("mixture starts over", "takes the mixture of the last message for that of all", "matrix form")
class _MixtureOfTheLast(ChocoSgd):
    def step(self, x: Tensor, state: Known, local: Local) -> Step:
        g = yield Gradient(x)
        x_new = local.move(x, g) + self.consensus_step * (state.mixture - state.own)
        q = _largest(x_new - state.own, self.ratio)
        return x_new, Known(state.own + q, (yield Mix(q)))


@broken("compresses the point", "compresses x itself instead of what is new in it", "matrix form", ratio=0.4)
class _CompressesPoint(ChocoSgd):
    def step(self, x: Tensor, state: Known, local: Local) -> Step:
        g = yield Gradient(x)
        x_new = local.move(x, g) + self.consensus_step * (state.mixture - state.own)
        q = _largest(x_new, self.ratio)
        return x_new, Known(state.own + q, state.mixture + (yield Mix(q)))


@broken("compresses all workers together", "sends the largest of all messages", "rows apart", "matrix form", ratio=0.4)
class _CompressesTogether(ChocoSgd):
    def step(self, x: Tensor, state: Known, local: Local) -> Step:
        g = yield Gradient(x)
        x_new = local.move(x, g) + self.consensus_step * (state.mixture - state.own)
        q = _largest((x_new - state.own).reshape(1, -1), self.ratio).reshape(x.shape)
        return x_new, Known(state.own + q, state.mixture + (yield Mix(q)))


@broken("compresses buckets", "compresses whole messages and calls itself columnwise", "columns apart", ratio=0.4)
class _CompressesBuckets(ChocoSgd):
    columnwise: ClassVar[bool] = True


@broken("promises changing rounds", "remembers W times what was sent, and says W may change", "matrix form", ratio=0.4)
class _PromisesChange(ChocoSgd):
    static: ClassVar[bool] = False


def _largest(rows: Tensor, ratio: float) -> Tensor:
    """The largest numbers of every row; the rest is zero."""
    k = max(1, round(ratio * rows.shape[1]))
    kept = rows.abs().topk(k, dim=1).indices
    return torch.zeros_like(rows).scatter(1, kept, rows.gather(1, kept))
