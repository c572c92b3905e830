r"""The gradients of n workers at n points: one `vmap` over the workers, or a loop over them, with equal results.

Both routes compute $\nabla f_i(x_i; \text{batch}_i)$ for every worker i with its own parameters, its own buffers
(BatchNorm keeps per-worker statistics, exactly) and its own random numbers: worker i at step t draws dropout masks from
the stream `("dropout", t, i)` and from nothing else, so that the masks do not depend on the route, on the number of
workers beside it, or on what was drawn before. The global generator is left as it was found.

Parameters are read where they lie and gradients are written where they stay: no route asks for memory of the size of
the workers. `auto` tries both routes on the first batch, `vmap` with all workers at once and with few, and keeps the
fastest. A step may be cut into micro-batches: the gradient is then their mean, and BatchNorm sees one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.batches import micro_batches, of_leaves, rows_of
from dissensus.algorithms.engines.randomness import PerWorker, global_state, without_drawing
from dissensus.algorithms.engines.slots import Slots
from dissensus.algorithms.engines.vectorised import Sinks, Vectorised, by_rows
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.streams import stream_seed

Route = Literal["vmap", "loop"]
Loss = Callable[[nn.Module, Any], Tensor]
Stacked = dict[str, Tensor]
"""Parameters or buffers of all workers by name, (n, ...) each."""

FEW = (16, 4)
"""How many workers `auto` tries in one vmap, besides all of them: what they compute may then stay in the cache."""
LAPS, PATIENCE = 3, 0.3
"""`auto` runs a route so often, or for so many seconds."""


class Found(NamedTuple):
    """What one evaluation leaves beside the gradients: losses (n,), and the buffers afterwards."""

    losses: Tensor
    buffers: Stacked
    finite: frozenset[str] = frozenset()
    """Parameters whose gradients are known to be finite, though nobody has looked at them."""


@dataclass
class GradientRoute:
    """Evaluates the gradients of stacked workers by one of the two routes."""

    model: nn.Module
    """A model of its own: the loop puts the workers' parameters into it."""
    loss: Loss
    seed: int
    route: Route | Literal["auto"] = "auto"
    chunk: int | None = None
    """How many workers go through one vmap; all of them unless told otherwise."""
    accumulate: int = 1
    autocast: torch.dtype | None = None
    first: int = 0
    """The number of the worker in the first row."""
    _draws: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.route not in ("auto", "vmap", "loop"):
            raise AlgorithmError(f"gradients must be 'auto', 'vmap' or 'loop', got {self.route!r}")
        if self.chunk is not None and self.chunk < 1:
            raise AlgorithmError(f"chunk must be at least 1 worker, got {self.chunk}")
        if self.accumulate < 1:
            raise AlgorithmError(f"accumulate must be at least 1 micro-batch, got {self.accumulate}")
        if self.autocast not in (None, torch.bfloat16):
            raise AlgorithmError(
                f"autocast must be torch.bfloat16, got {self.autocast}: other precisions need their losses scaled"
            )
        self._slots = Slots(self.model)
        self._parameters = dict(self.model.named_parameters())
        self._scratch: Stacked = {}

    def __call__(self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, int]) -> Found:
        """Writes the gradients at the parameters `at` into `out`; `key` is (step, evaluations before in this step)."""
        if self.accumulate == 1:
            return self._evaluate(at, out, buffers, batch, key)
        if not self._scratch:
            self._scratch = {name: torch.empty_like(v) for name, v in out.items()}
        losses: list[Tensor] = []
        for k, part in enumerate(micro_batches(batch, self.accumulate)):
            found = self._evaluate(at, self._scratch if k else out, buffers, part, (*key, k))
            buffers = found.buffers
            losses.append(found.losses)
            for name, v in out.items() if k else ():
                v += self._scratch[name]
        for v in out.values():
            v /= self.accumulate
        return Found(torch.stack(losses).mean(dim=0), buffers)

    def _evaluate(self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, ...]) -> Found:
        if self.route == "auto":
            self.route, self.chunk = self._fastest(at, out, buffers, batch, key)
        if self.route == "loop":
            return self._loop(at, out, buffers, batch, key)
        try:
            return self._vmap(at, out, buffers, batch, key, self.chunk)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise AlgorithmError(
                f'the loss cannot be vectorised over workers ({str(error).splitlines()[0]}); use gradients="loop"'
            ) from error

    def _seeds(self, key: tuple[int, ...], lo: int, hi: int) -> list[int]:
        return [stream_seed(self.seed, "dropout", *key, self.first + i) for i in range(lo, hi)]

    def _casting(self, value: Tensor) -> Any:
        return nullcontext() if self.autocast is None else torch.autocast(value.device.type, self.autocast)

    def _loop(self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, ...]) -> Found:
        first = next(iter(at.values()))
        if not self._draws:
            found = without_drawing(lambda: self._loop_once(at, out, buffers, batch, lambda _: None), first.device)
            if found is not None:
                return found
            self._draws = True
        seeds = self._seeds(key, 0, len(first))
        with global_state(first.device) as reseed:
            return self._loop_once(at, out, buffers, batch, lambda i: reseed(seeds[i]))

    def _loop_once(self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, ready: Callable[[int], Any]) -> Found:
        inputs, losses = [self._parameters[name] for name in at], []
        rows = zip(*(v.unbind() for v in at.values()), strict=True)
        places = zip(*(v.unbind() for v in out.values()), strict=True)
        after = {name: b.clone() for name, b in buffers.items()}
        for i, (own, room) in enumerate(zip(rows, places, strict=True)):
            ready(i)
            for p, value in zip(inputs, own, strict=True):
                p.data = value
            torch.clear_autocast_cache()  # an autocast around us would go on with its casts of the worker before
            mine = {name: b[i] for name, b in after.items()}
            with self._slots.holding(mine), self._casting(own[0]):
                loss = self._loss(rows_of(batch, i))
                for name, b in mine.items():
                    left = self._slots.left(name)
                    if left is not b and left is not None:
                        b.copy_(left.detach())
            grads = torch.autograd.grad(loss, inputs, materialize_grads=True)
            for place, g in zip(room, grads, strict=True):
                place.copy_(g)
            losses.append(loss.detach())
        return Found(torch.stack(losses), after)

    def _vmap(
        self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, ...], chunk: int | None
    ) -> Found:
        n = len(next(iter(at.values())))
        if chunk is None or chunk >= n:
            return self._vmap_range(at, out, buffers, batch, key, 0)
        parts = []
        for lo in range(0, n, chunk):
            rows = slice(lo, lo + chunk)
            here, there, own, part = rows_of((at, out, buffers, batch), rows)
            parts.append(self._vmap_range(here, there, own, part, key, lo))
        after = {name: torch.cat([p.buffers[name] for p in parts]) for name in buffers}
        finite = frozenset.intersection(*(p.finite for p in parts))
        return Found(torch.cat([p.losses for p in parts]), after, finite)

    def _vmap_range(
        self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, ...], lo: int
    ) -> Found:
        """The workers lo, lo + 1, ... in one vmap; once more under `PerWorker` if random numbers are drawn."""
        first = next(iter(at.values()))
        if not self._draws:
            found = without_drawing(lambda: self._vmap_once(at, out, buffers, batch), first.device)
            if found is not None:
                return found
            self._draws = True
        with global_state(first.device), PerWorker(self._seeds(key, lo, lo + len(first)), first.device):
            return self._vmap_once(at, out, buffers, batch)

    def _vmap_once(self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any) -> Found:
        split = {name: v.detach().requires_grad_() for name, v in at.items()}
        after = {name: b.clone() for name, b in buffers.items()}
        leaves: list[Tensor] = []
        of_leaves(batch, lambda leaf: leaves.append(leaf) or leaf)
        held = {**split, **after}
        sinks = Sinks(split, out)
        mode, casting = Vectorised(sinks), self._casting(next(iter(split.values())))

        def one(*own: Tensor) -> tuple[Any, ...]:
            given = iter(own[len(held) :])
            with self._slots.holding(dict(zip(held, own, strict=False))), mode, casting:
                value = self._loss(of_leaves(batch, lambda _: next(given)))
                return value, *(self._slots.left(name) for name in after)

        losses, *left = by_rows(one, *held.values(), *leaves)
        # the workers share no parameter, so the gradient of the sum holds each worker's own gradient in its row
        inputs, each = list(split.values()), torch.ones_like(losses)
        grads = torch.autograd.grad(losses, inputs, each, materialize_grads=True)
        for (name, place), g in zip(out.items(), grads, strict=True):
            if g.data_ptr() != place.data_ptr():
                place.copy_(g)
                sinks.finite.discard(name)  # something was added to what had been written
        finite = frozenset(sinks.finite)
        return Found(losses.detach(), {name: b.detach() for name, b in zip(after, left, strict=True)}, finite)

    def _loss(self, batch: Any) -> Tensor:
        """The loss of the model with what hangs in it on the batch of one worker."""
        value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.ndim != 0:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise AlgorithmError(f"loss(model, batch) must return a scalar tensor, got {got}; take the mean")
        return value

    def _fastest(
        self, at: Stacked, out: Stacked, buffers: Stacked, batch: Any, key: tuple[int, ...]
    ) -> tuple[Route, int | None]:
        """The route that is fastest on this very batch; the loop where the model cannot be vmapped."""
        first = next(iter(at.values()))
        n = len(first)
        if n == 1:
            return "loop", self.chunk
        sizes = [self.chunk] if self.chunk is not None else [None, *(k for k in FEW if k < n)]
        best: tuple[float, Route, int | None] = (_clock(self._loop, first, at, out, buffers, batch, key), "loop", None)
        for size in sizes:
            try:
                seconds = _clock(self._vmap, first, at, out, buffers, batch, key, size, worth=2 * best[0])
            except AlgorithmError:
                raise
            except RuntimeError:
                break
            best = min(best, (seconds, "vmap", size), key=lambda found: found[0])
        return best[1], best[2] if best[1] == "vmap" else self.chunk


def _clock(run: Callable[..., Found], where: Tensor, *arguments: Any, worth: float = float("inf")) -> float:
    """The shortest of a few runs in seconds, after one that is not counted; only that one if it is slower than that."""
    laps: list[float] = []
    while len(laps) <= LAPS and sum(laps[1:]) < PATIENCE:
        started = time.perf_counter()
        run(*arguments)
        if where.is_cuda:
            torch.cuda.synchronize(where.device)
        laps.append(time.perf_counter() - started)
        if laps[0] > max(worth, PATIENCE):
            return laps[0]
    return min(laps[1:])
