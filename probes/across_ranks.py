r"""An operator whose data are spread over the processes of a group: $A = \sum_r \omega_r A_r$, the same on every rank.

Every rank builds its own operator on its own batches. A product is one local product and one all-reduce, so every rank
must ask for the same products in the same order; vectors are taken from the first rank, since a last bit that differs
between ranks would otherwise grow in every iteration.
"""

from __future__ import annotations

import atexit
import functools
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dissensus.probes.batch_sum import finite
from dissensus.probes.errors import ProbeError
from dissensus.probes.operator import Operator, check_vectors
from dissensus.probes.untouched import undisturbed


@functools.cache
def _let_gloo_finish() -> None:
    """A thread of gloo may hold tensors of the last sum; were Python gone before it lets go, torch would abort."""
    atexit.register(time.sleep, 0.02)


class AcrossRanks:
    """The weighted mean of an operator over a process group; `samples` is this rank's weight: how many it holds."""

    def __init__(self, operator: Operator, samples: float, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ProbeError(
                "AcrossRanks: torch.distributed is not initialised; call init_process_group, or use the operator alone"
            )
        if not samples > 0:
            raise ProbeError(f"AcrossRanks: samples must be positive on every rank, got {samples!r}")
        _let_gloo_finish()
        self._operator, self._group, self._products = operator, group, 0
        facts = torch.tensor([float(operator.size), samples], dtype=torch.float64, device=operator.device)
        everyone = [torch.zeros_like(facts) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everyone, facts, group=group)
        sizes = [int(other[0]) for other in everyone]
        if len(set(sizes)) > 1:
            raise ProbeError(f"AcrossRanks: the ranks have {sizes} parameters; build the same model on every rank")
        self.share = samples / sum(float(other[1]) for other in everyone)
        """The weight of this rank's data."""

    @property
    def size(self) -> int:
        """The length d of the vectors."""
        return self._operator.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self._operator.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are."""
        return self._operator.device

    @property
    def products(self) -> int:
        """How many vectors were multiplied by the whole operator so far."""
        return self._products

    @undisturbed()
    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d); called on every rank."""
        check_vectors("AcrossRanks", self, v)
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        shared = v.detach().clone().contiguous()
        dist.broadcast(shared, first, group=self._group)
        failed: ProbeError | None = None
        try:
            total = self._operator.matvec(shared) * self.share
        except ProbeError as failure:  # the others are on their way into the sum: nobody may stay away from it
            failed, total = failure, torch.full_like(shared, torch.nan)
        dist.all_reduce(total, group=self._group)
        if failed is not None:
            raise failed
        if not finite(total):
            raise ProbeError("AcrossRanks: the product failed on another rank, whose own error says why")
        self._products += 1 if v.dim() == 1 else v.shape[0]
        return total
