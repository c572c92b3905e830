"""A loop's worker in a run that outlives its processes: its memory starts anew, and neighbours take all of it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dissensus.algorithms.engines.distributed.handshake import compare

if TYPE_CHECKING:
    from dissensus.algorithms.engines.distributed.front_door import Decentralized


class LoopHost:
    """What `Surviving` asks of the front door (`handing_over.Host`)."""

    def __init__(self, opt: Decentralized, facts: Mapping[str, Any]) -> None:
        self._opt, self.facts = opt, facts

    @property
    def parts(self) -> int:
        """The buckets."""
        return len(self._opt.held.buckets)

    @property
    def isolated(self) -> bool:
        """Whether this worker is cut off from the others."""
        return self._opt.held.isolated

    def align(self, source: int) -> None:
        """Makes workers equal that stay so: where they are, and what their optimizers remember."""
        if not getattr(self._opt.algorithm, "equal", False):
            return
        about: Any = {"what": "start of a new group", "step": self._opt.t}
        for point in self._opt.held.points:
            self._opt.wire.broadcast(point, source, **about)
        # what was lost may have been the first gradient of a parameter, which then has a memory in some processes only
        parameters = [p for _, p in self._opt.named]
        memories = self._opt.wire.told([self._opt.state.get(p, {}) for p in parameters], source, **about)
        for p, memory in zip(parameters, memories, strict=True):
            self._opt.state[p] = memory
            if not memory:
                del self._opt.state[p]

    def reform(self, k: int) -> None:
        """Lets the algorithm's memory of bucket k start anew."""
        self._opt.held.reform(k)

    def give(self, step: int, to: int) -> Any:
        """Parameters, buffers, the memory of optimizer and algorithm; parameters that are not trained as well."""
        state = self._opt.state_dict()
        state["dissensus"] |= {"t": step, "worker": to, "isolated": None}
        return {"model": self._tensors(), "optimizer": state}

    def welcome(self, facts: Mapping[str, Any]) -> None:
        """Refuses another model, algorithm, topology or option."""
        compare(self._opt.worker, self.facts, facts, "the others")

    @torch.no_grad()
    def receive(self, given: Any) -> None:
        """Takes that over."""
        for name, value in self._tensors().items():
            value.copy_(given["model"][name])
        self._opt.load_state_dict(given["optimizer"])

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._opt.model
        return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
