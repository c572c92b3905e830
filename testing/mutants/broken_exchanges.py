"""Engines broken in how they mix, move and feed: who hears whom and when, decay, rates, clipping, data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.stacked import StepRecord
from dissensus.algorithms.protocol import Mix
from dissensus.testing.mutants.altered import Altered, altered_rounds, broken_engine, walk
from dissensus.testing.mutants.relay import Answer, Relayed
from dissensus.theory.topology import Topology


@broken_engine("W transposed", "every worker mixes what it sends instead of what it hears", "recursions", "own modules")
class _Transposed(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        topology = options["topology"]
        promise = {"column": "row", "row": "column"}.get(topology.promise, "doubly")
        turned = altered_rounds(topology, lambda rounds: [w.T for w in rounds], promise=promise)
        object.__setattr__(turned, "promise", topology.promise)  # it does not know that it turned them
        return options | {"topology": turned}


@broken_engine("round W_0 reused", "mixes every step with the round of the first", "recursions", "own modules")
class _FirstRound(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"topology": altered_rounds(options["topology"], lambda rounds: rounds[:1])}


@broken_engine("rounds a step late", "mixes with the round of the step before", "recursions", "own modules")
class _LateRound(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"topology": altered_rounds(options["topology"], lambda rounds: rounds[-1:] + rounds[:-1])}


@broken_engine("all-to-all for neighbours", "every exchange is an all-reduce", "recursions", "own modules")
class _AllToAll(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        everybody = altered_rounds(options["topology"], lambda rounds: [np.full_like(rounds[0], 1 / len(rounds[0]))])
        return options | {"topology": everybody}


@broken_engine("stale neighbour", "mixes what the neighbours had a step ago", "recursions", "own modules")
class _Stale(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        topology: Topology = options["topology"]
        before: dict[int, Tensor] = {}

        def mixed(t: int, value: Tensor) -> Answer:
            old = before.get(value.shape[1], value)
            before[value.shape[1]] = value.clone()
            own = torch.from_numpy(topology[t].weights.diagonal().copy())[:, None]
            return (yield Mix(old)) + own * (value - old)

        return options | {"algorithm": Relayed(options["algorithm"], mixed=mixed)}


@broken_engine("own value forgotten", "leaves the own point out of the mixture and scales up the rest", "recursions")
class _WithoutItself(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        topology: Topology = options["topology"]

        def mixed(t: int, value: Tensor) -> Answer:
            own = torch.from_numpy(topology[t].weights.diagonal().copy())[:, None]
            return ((yield Mix(value)) - own * value) / (1 - own).clamp(min=0.1)

        return options | {"algorithm": Relayed(options["algorithm"], mixed=mixed)}


@broken_engine("mixing once per param group", "exchanges in a loop over the param groups", "own modules")
class _OncePerGroup(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        of = options.get("groups") or (lambda *_: {})
        count = len({str(of(name, p.shape)) for name, p in self.given.named_parameters()})

        def mixed(t: int, value: Tensor) -> Answer:
            del t
            for _ in range(count):
                value = yield Mix(value)
            return value

        return options | {"algorithm": Relayed(options["algorithm"], mixed=mixed)}


@broken_engine("momentum mixed", "sends the optimizer's memory along with the point", "recursions", "own modules")
class _MixesMomentum(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        w = torch.from_numpy(self.topology[record.t].dense())
        memory = self.state_dict()["optimizer"]
        self.reload(
            optimizer=walk(memory, lambda m: w @ m if m.ndim == 2 and m.is_floating_point() and len(m) == len(w) else m)
        )
        return record


@broken_engine("gradients averaged", "shares gradients as data-parallel training does", "recursions", "own modules")
class _AveragesGradients(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        def gradient(t: int, at: Tensor, g: Tensor) -> Tensor:
            del t, at
            return g.mean(dim=0, keepdim=True).expand_as(g).clone()

        return options | {"algorithm": Relayed(options["algorithm"], gradient=gradient)}


@broken_engine("decay on the wrong group", "swaps the decay of weights and biases", "own modules")
class _WrongGroup(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        of = options.get("groups")
        if of is None:
            return options

        def swapped(name: str, shape: torch.Size) -> Mapping[str, Any]:
            own = dict(of(name, shape))
            return own | {"weight_decay": 0.0 if own.get("weight_decay") else 0.3}

        return options | {"groups": swapped}


@broken_engine("group's learning rate lost", "moves every param group with the rate of the schedule", "own modules")
class _GroupRateLost(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        of = options.get("groups")
        if of is None:
            return options
        return options | {"groups": lambda name, shape: {k: v for k, v in of(name, shape).items() if k != "lr"}}


class _Elsewhere:
    """A local optimizer that decays the point a worker had, not the one it moves from."""

    def __init__(self, local: Any, x: Tensor, decay: float) -> None:
        self._local, self._x, self._decay = local, x, decay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def move(self, x: Tensor, g: Tensor) -> Tensor:
        return self._local.move(x, g + self._decay * (self._x - x))


@broken_engine("decay at the unmixed point", "takes weight decay where the worker was before mixing", "recursions")
class _DecayUnmixed(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        built = options["optimizer"]([nn.Parameter(torch.zeros(1))])
        decay = float(built.defaults.get("weight_decay", 0.0))
        relayed = Relayed(options["algorithm"], local=lambda local, x: _Elsewhere(local, x, decay))
        return options | {"algorithm": relayed}


@broken_engine("learning rate of the previous step", "asks the schedule too late", "recursions", "own modules")
class _LateRate(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        lr = options.get("lr")
        return options | {"lr": (lambda t: lr(max(0, t - 1))) if callable(lr) else lr}


@broken_engine("clip over all workers", "clips the gradients of all workers as if they were one", "clipping")
class _ClipsTogether(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = options.pop("clip", None)
        if bound is None:
            return options

        def gradient(t: int, at: Tensor, g: Tensor) -> Tensor:
            del t, at
            return g * min(1.0, bound / float(g.norm()))

        return options | {"algorithm": Relayed(options["algorithm"], gradient=gradient)}


@broken_engine("clip number by number", "bounds every number of a gradient instead of its norm", "clipping")
class _ClipsNumbers(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = options.pop("clip", None)
        if bound is None:
            return options
        relayed = Relayed(options["algorithm"], gradient=lambda _t, _at, g: g.clamp(-bound, bound))
        return options | {"algorithm": relayed}


@broken_engine("same data on all workers", "gives everybody the batch of worker 0", "recursions", "own modules")
class _SameData(Altered):
    def step(self, batch: Any) -> StepRecord:
        return super().step(walk(batch, lambda b: b[:1].expand_as(b).clone()))


@broken_engine("data of the neighbour", "is off by one in who gets which batch", "recursions", "own modules")
class _NeighboursData(Altered):
    def step(self, batch: Any) -> StepRecord:
        return super().step(walk(batch, lambda b: b.roll(1, 0)))


@broken_engine("chunks start over", "gives every chunk of workers the data of the first", "layouts")
class _ChunksStartOver(Altered):
    def changed(self, options: dict[str, Any]) -> dict[str, Any]:
        self.chunk = options.get("chunk")
        return options

    def step(self, batch: Any) -> StepRecord:
        first = torch.arange(self.size) % (self.chunk or self.size)
        return super().step(walk(batch, lambda b: b[first]))


@broken_engine("losses of another worker", "reports the losses in the wrong order", "own modules")
class _WrongLosses(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        return dataclasses.replace(record, losses=record.losses.roll(1))


@broken_engine("batch written to", "scales the inputs where they lie", "arguments")
class _WritesBatch(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        walk(batch, lambda b: b.mul_(2))
        return record


@broken_engine("template written to", "leaves the average in the model it was given", "arguments")
class _WritesTemplate(Altered):
    def step(self, batch: Any) -> StepRecord:
        record = super().step(batch)
        nn.utils.vector_to_parameters(self.mean, self.given.parameters())
        return record
