"""DSGD broken on purpose: the order, the factor, what is written to, and what it says of itself."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from dissensus.algorithms.protocol import Await, Gradient, Local, Mix, Post, Step, toward
from dissensus.algorithms.recursions.dsgd import Dsgd, ordered, whole
from dissensus.algorithms.recursions.dsgd_ac import DsgdAc, Peak
from dissensus.testing.mutants.mutant import broken


def _decaying(t: int, lr: float) -> float:
    del lr
    return 1.0 / (1 + t / 4)


@broken("awc for atc", "mixes the point and moves it, where the order says move first", "matrix form", order="atc")
class _SwappedForAtc(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, "awc", local, whole)), state


@broken("atc for awc", "mixes after the move, where the order says adapt while communicate", "matrix form")
class _SwappedForAwc(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, "atc", local, whole)), state


@broken("gradient at the mixed point", "takes the gradient where it should only have moved to", "matrix form")
class _GradientAtTheMixedPoint(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, "cta", local, whole)), state


@broken("gradient at the own point", "combine then adapt with the gradient of before", "matrix form", order="cta")
class _GradientAtTheOwnPoint(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, "awc", local, whole)), state


@broken("gamma a step late", "mixes with the factor of the step before", "matrix form", gamma=_decaying)
class _GammaLate(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        assert callable(self.gamma)
        gamma = self.gamma(max(0, local.t - 1), local.lr)
        return (yield from ordered(x, self.order, local, lambda _: gamma)), state


@broken("adaptive factor a step late", "looks at the learning rate after mixing", "matrix form")
class _AdaptiveGammaLate(DsgdAc):
    def step(self, x: Tensor, state: Peak, local: Local) -> Step:
        late, _ = self._gamma(max(0, local.t - 1), float(state.lr[0, 0]) or local.lr, state)
        _, after = self._gamma(local.t, local.lr, state)
        return (yield from ordered(x, self.order, local, lambda _: late)), after


@broken("gamma twice", "adapts the mixture, and what came out of it once more", "matrix form", gamma=0.5)
class _GammaTwice(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        once = toward(x, (yield Mix(x)), 0.5)
        return local.move(toward(x, once, 0.5), g), state


@broken(
    "gamma on the self weight twice",
    "what gamma takes from the neighbours is given to the own point two times",
    "consensus stays",
    "mean is kept",
    "matrix form",
    gamma=0.5,
)
class _SelfWeightTwice(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        mixed = 0.5 * (yield Mix(x)) + 2 * 0.5 * x
        return local.move(mixed, g), state


@broken("gamma ignored", "mixes fully whatever gamma says", "matrix form", "gamma = 0", gamma=0.5)
class _GammaIgnored(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, self.order, local, whole)), state


@broken("first step scaled", "the first step is ten times as long", "matrix form", "one worker")
class _FirstStepScaled(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x)), g if local.t else 10.0 * g), state


@broken("sign of the gradient", "climbs", "matrix form", "one worker")
class _Climbs(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x)), -g), state


@broken("nobody heard", "moves its own point and never mixes", "matrix form")
class _Deaf(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        yield Mix(x)
        return local.move(x, g), state


@broken("x written to", "moves its argument in place", "purity")
class _WritesX(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move(x.copy_((yield Mix(x))), g), state


@broken("reads what it handed on", "says in_place and looks back at the point it has sent", "handed on")
class _LooksBack(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        mixed = yield Mix(x)
        return local.move(x + (mixed - x), g), state


@broken("looks at gradients", "says in_place and computes with a gradient", "handed on")
class _LooksAtGradients(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x)), 1.0 * g), state


@broken("message written to", "decays what it has posted while that is on its way", "purity")
class _WritesMessage(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        message = x.clone()
        ticket = yield Post(message)
        g = yield Gradient(x)
        message.mul_(0.5)
        return local.move((yield Await(ticket)), g), state


@broken("generator advanced", "draws a number it does not need from the global generator", "purity")
class _DrawsGlobally(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        torch.rand(1)
        return (yield from ordered(x, self.order, local, whole)), state


_COUNTED: list[int] = []


@broken(
    "memory outside of the state",
    "counts its steps in a list of the module",
    "purity",
    "layouts",
    "resuming",
    gamma=0.5,
)
class _Counts(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        _COUNTED.append(1)
        return (yield from ordered(x, self.order, local, lambda _: (0.618 * len(_COUNTED)) % 1.0)), state


@broken("a leader", "lets worker 0 move twice as far", "rows apart", "relabelling", "identical workers", "matrix form")
class _Leader(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        twice = torch.cat([2.0 * g[:1], g[1:]])
        return local.move((yield Mix(x)), twice), state


@broken("reads other rows", "averages the rows it happens to sit beside", "rows apart", "locality", "matrix form")
class _ReadsRows(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move(x.mean(dim=0, keepdim=True).expand_as(x), g), state


@broken("couples columns", "normalises the whole gradient and calls itself columnwise", "columns apart", "matrix form")
class _CouplesColumns(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x)), g / g.norm(dim=1, keepdim=True)), state


@broken("single precision inside", "computes in float32 what it got in float64", "matrix form")
class _SinglePrecision(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        g = yield Gradient(x)
        return local.move((yield Mix(x.float().to(x.dtype))), g), state


@broken("double precision out", "returns float64 whatever came in", "state has rows")
class _DoublePrecision(Dsgd):
    def step(self, x: Tensor, state: Any, local: Local) -> Step:
        return (yield from ordered(x, self.order, local, whole)).double(), state


@broken("promises push-sum", "says it runs on column stochastic rounds and does not de-bias", "consensus stays")
class _PromisesColumn(Dsgd):
    promise: ClassVar[Any] = "column"
