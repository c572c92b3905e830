"""Engines broken in what they remember and show: buffers, masks, generators, saved states, views, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.stacked import StepRecord
from dissensus.algorithms.errors import AlgorithmError
from dissensus.testing.mutants.altered import Altered, broken_engine


@broken_engine("buffers shared", "averages the BatchNorm statistics of the workers at every step", "own modules")
class _SharesBuffers(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        mean = {k: b.mean(0).expand_as(b).clone() if b.is_floating_point() else b for k, b in self.buffers.items()}
        self.reload(buffers=mean)
        return record


@broken_engine("buffers frozen", "throws away what the models left in their buffers", "own modules")
class _FreezesBuffers(Altered):
    def step(self, batch: Any) -> StepRecord:
        before = self.buffers
        record = super().step(batch)
        self.reload(buffers=before)
        return record


@broken_engine("trains in eval mode", "normalises with the running statistics while it trains", "own modules")
class _TrainsInEval(Altered):
    def losing(self, loss: Any) -> Any:
        return lambda model, batch: loss(model.eval(), batch)


@broken_engine("dropout mask shared", "draws one mask a step and gives it to all workers", "own masks")
class _SharesMasks(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"gradients": "loop", "chunk": None}

    def losing(self, loss: Any) -> Any:
        def reseeded(model: nn.Module, batch: Any) -> Tensor:
            torch.manual_seed(self.t)
            return loss(model, batch)

        return reseeded


@broken_engine("dropout mask kept", "starts every step at the same place of the stream", "own masks")
class _KeepsMasks(Altered):
    def step(self, batch: Any) -> StepRecord:
        t, self.t = self.t, 0
        record = super().step(batch)
        self.t = t + 1
        return record


@broken_engine("seed ignored", "draws the same numbers whatever its seed", "own masks")
class _IgnoresSeed(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"seed": 0}


@broken_engine("seed taken from outside", "takes its seed from the global generator", "generators")
class _SeedFromOutside(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"seed": int(torch.initial_seed()) % 2**31}


@broken_engine("generator advanced by a step", "draws from the global generator", "generators")
class _AdvancesGenerator(Altered):
    def step(self, batch: Any) -> StepRecord:
        torch.rand(1)
        return super().step(batch)


@broken_engine("single precision between steps", "keeps its points in float32", "recursions", "own modules")
class _SinglePrecision(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        x = self.state_dict()["x"]
        self.reload(x=x.float().to(x.dtype))
        return record


@broken_engine("memory reset at resume", "starts the optimizers anew when it loads", "resuming")
class _ForgetsMemory(Altered):
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        fresh = self.state_dict()["optimizer"]
        super().load_state_dict({**saved, "optimizer": fresh})


@broken_engine("phase reset at resume", "counts its steps from zero when it loads", "resuming")
class _ForgetsPhase(Altered):
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict({**saved, "t": 0})


@broken_engine("state reset at resume", "starts the algorithm's state anew when it loads", "resuming")
class _ForgetsState(Altered):
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict({**saved, "state": self.state_dict()["state"]})


@broken_engine("buffers reset at resume", "keeps the buffers of a fresh model when it loads", "resuming")
class _ForgetsBuffers(Altered):
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict({**saved, "buffers": self.buffers})


@broken_engine("seed reset at resume", "goes on with a seed of its own when it loads", "resuming")
class _ForgetsSeed(Altered):
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        super().load_state_dict({**saved, "seed": self.seed})


@broken_engine("resumes from the mean", "saves the average for every worker", "resuming")
class _SavesMean(Altered):
    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "x": saved["x"].mean(dim=0).expand_as(saved["x"]).clone()}


@broken_engine("worker 0 for the consensus", "shows one worker where the average was asked for", "views")
class _ShowsWorkerZero(Altered):
    @contextmanager
    def consensus(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        with super().consensus(*args, **options) as model:
            nn.utils.vector_to_parameters(self.x[0], model.parameters())
            yield model


@broken_engine("mean of worker 0", "calls the first worker the mean", "views")
class _MeanOfOne(Altered):
    @property
    def mean(self) -> Tensor:
        return self.x[0]


@broken_engine("view in train mode", "hands the average out as it was trained", "views")
class _ViewTrains(Altered):
    @contextmanager
    def consensus(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        with super().consensus(*args, **options) as model:
            yield model.train()


@broken_engine("buffers not restored", "lets an evaluation's statistics into the training", "views")
class _BuffersNotRestored(Altered):
    @contextmanager
    def consensus(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        with super().consensus(*args, **options) as model:
            yield model
        after = self.buffers
        for name, b in model.named_buffers():
            after[name][0] = b
        self.reload(buffers=after)


@broken_engine("parameters not restored", "goes on from the average it was looked at", "views")
class _GoesOnFromTheMean(Altered):
    @contextmanager
    def consensus(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        with super().consensus(*args, **options) as model:
            yield model
        x = self.state_dict()["x"]
        self.reload(x=x.mean(dim=0).expand_as(x).clone())


@broken_engine("generators not restored", "leaves the global generators where an evaluation left them", "views")
class _GeneratorsNotRestored(Altered):
    @contextmanager
    def consensus(self, *args: Any, **options: Any) -> Iterator[nn.Module]:
        with super().consensus(*args, **options) as model:
            yield model
            after = torch.get_rng_state()
        torch.set_rng_state(after)


@broken_engine("average of reset buffers", "shows the average with the statistics of a fresh model", "views")
class _FreshBuffers(Altered):
    @contextmanager
    def consensus(self, *_: Any, **__: Any) -> Iterator[nn.Module]:
        with super().consensus("frozen") as model:
            yield model


@broken_engine("handed out, not copied", "hands out a state that goes on changing", "arguments")
class _HandsOut(Altered):
    def state_dict(self) -> dict[str, Any]:
        self.shown = super().state_dict()
        return self.shown

    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        if hasattr(self, "shown"):
            self.shown["x"].copy_(super().state_dict()["x"])
        return record


@broken_engine("not a number, unsaid", "goes on when a loss is not a number", "not a number")
class _SaysNothing(Altered):
    def step(self, batch: Any) -> StepRecord:
        try:
            return super().step(batch)
        except AlgorithmError:
            self.t += 1
            return StepRecord(self.t - 1, 0.0, torch.full((self.size,), torch.nan), {})


@broken_engine("not a number, somebody", "does not say which worker it was", "not a number")
class _NamesNobody(Altered):
    def step(self, batch: Any) -> StepRecord:
        try:
            return super().step(batch)
        except AlgorithmError as error:
            raise AlgorithmError("some loss is not a number") from error
