"""Which parameters of a loop are exchanged: those that are trained, and they may change on the way.

A parameter that is frozen leaves, one that is thawed joins, on all processes at the same step. For that buckets are
laid out anew, where nothing of the step has been taken from them yet: before its gradient is asked for, or when it is
over.
"""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.fused import Fused, bucket_bytes
from dissensus.algorithms.engines.distributed.worker import LoopWorker
from dissensus.algorithms.errors import AlgorithmError

_REQUIRES_GRAD = attrgetter("requires_grad")


class Trained:
    """What is trained of a model by an optimizer."""

    def __init__(self, inner: torch.optim.Optimizer, model: nn.Module, worker: LoopWorker, fused: Fused | None) -> None:
        self._inner, self._model, self._worker, self._fused = inner, model, worker, fused
        self._frozen: list[Tensor] = []
        self._exchanged: list[Tensor] = []
        self.check()

    @property
    def changed(self) -> bool:
        """Whether something was frozen or thawed since the buckets were laid out."""
        return any(map(_REQUIRES_GRAD, self._frozen)) or not all(map(_REQUIRES_GRAD, self._exchanged))

    def check(self) -> None:
        """Refuses an optimizer of another model."""
        known = {id(p) for p in self._model.parameters()}
        if not all(id(p) in known for g in self._inner.param_groups for p in g["params"]):
            raise AlgorithmError("the optimizer holds a parameter that is not the model's: wrap both of the same model")

    def lay_out(self) -> None:
        """Gives what is trained its buckets."""
        named, groups = self._named(), self._inner.param_groups
        self._frozen = [p for g in groups for p in g["params"] if not p.requires_grad]
        self._exchanged = [p for _, p in named]
        with torch.no_grad():
            self._worker.adopt(named if self._fused is None else named[::-1], self._fused and bucket_bytes(named))
        if self._fused is not None:
            self._fused.attach()

    def before_closure(self) -> None:
        """Before the loop computes a gradient that it is asked for."""
        if self.changed and not self._worker.is_ready:
            self.lay_out()

    def before_forward(self) -> None:
        """The parameters go to where the gradient is taken, if they are not there yet.

        A model that is frozen as a whole is used by somebody else meanwhile: nobody leaves.
        """
        if self.changed and self._named() and not self._worker.is_ready:
            self.lay_out()
        self._worker.ready()

    def before_finish(self) -> bool:
        """Before the step goes on from its gradient; whether to lay out anew has to wait until it is over."""
        if not self.changed:
            return False
        if self._worker.elsewhere or self._worker.is_ready:
            return True
        self._worker.ahead()
        self.lay_out()
        return False

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters of the optimizer that are trained, by the model's names, in the order of the model."""
        held = {id(p) for g in self._inner.param_groups for p in g["params"] if p.requires_grad}
        return [(name, p) for name, p in self._model.named_parameters() if id(p) in held]
