r"""The gradients of n workers at n points: one `vmap` over the workers, or a loop over them, with equal results.

Both routes compute $\nabla f_i(x_i; \text{batch}_i)$ for every worker i with its own parameters, its own buffers
(BatchNorm keeps per-worker statistics, exactly) and its own random numbers: worker i at step t draws dropout masks from
the stream `("dropout", t, i)` and from nothing else, so that the masks do not depend on the route, on the number of
workers beside it, or on what was drawn before. The global generator is left as it was found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.randomness import PerWorker, global_state
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.streams import stream_seed

Route = Literal["vmap", "loop"]
Loss = Callable[[nn.Module, Any], Tensor]
Buffers = dict[str, Tensor]


class Gradients(NamedTuple):
    """What one evaluation returns: gradients (n, d), losses (n,), and the buffers afterwards, (n, ...) each."""

    rows: Tensor
    losses: Tensor
    buffers: Buffers


class _Objective(nn.Module):
    """The loss of a model on a batch as a module, so that `functional_call` can put parameters in its place."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.ndim != 0:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise AlgorithmError(f"loss(model, batch) must return a scalar tensor, got {got}; take the mean")
        return value


@dataclass
class GradientRoute:
    """Evaluates the gradients of stacked workers by one of the two routes."""

    model: nn.Module
    loss: Loss
    columns: Columns
    seed: int
    route: Route | Literal["auto"] = "auto"
    chunk: int | None = None
    """How many workers go through one vmap; all of them unless told otherwise."""
    _draws: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.route not in ("auto", "vmap", "loop"):
            raise AlgorithmError(f"gradients must be 'auto', 'vmap' or 'loop', got {self.route!r}")
        if self.chunk is not None and self.chunk < 1:
            raise AlgorithmError(f"chunk must be at least 1 worker, got {self.chunk}")
        self._objective = _Objective(self.model, self.loss)

    def __call__(self, points: Tensor, buffers: Buffers, batch: Any, key: tuple[int, int]) -> Gradients:
        """The gradients at the rows of `points`; `key` is (step, how many evaluations came before in this step)."""
        if self.route == "auto":
            self.route = self._faster(points, buffers, batch, key)
        if self.route == "loop":
            return self._loop(points, buffers, batch, key)
        try:
            return self._vmap(points, buffers, batch, key)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise AlgorithmError(
                f'the loss cannot be vectorised over workers ({str(error).splitlines()[0]}); use gradients="loop"'
            ) from error

    def _seeds(self, key: tuple[int, int], lo: int, hi: int) -> list[int]:
        return [stream_seed(self.seed, "dropout", *key, i) for i in range(lo, hi)]

    def _loop(self, points: Tensor, buffers: Buffers, batch: Any, key: tuple[int, int]) -> Gradients:
        rows, losses = torch.empty_like(points), []
        after: dict[str, list[Tensor]] = {name: [] for name in buffers}
        with global_state(points.device) as reseed:
            for i, seed in enumerate(self._seeds(key, 0, len(points))):
                reseed(seed)
                worker = {name: b[i].clone() for name, b in buffers.items()}
                split = {n: p.detach().requires_grad_() for n, p in self.columns.unflatten(points[i]).items()}
                value = self._call(split, worker, _map(batch, lambda leaf, i=i: leaf[i]))
                grads = torch.autograd.grad(value, list(split.values()), materialize_grads=True)
                torch.cat([g.reshape(-1) for g in grads], out=rows[i])
                losses.append(value.detach())
                for name, b in worker.items():
                    after[name].append(b)
        return Gradients(rows, torch.stack(losses), {name: torch.stack(b) for name, b in after.items()})

    def _vmap(self, points: Tensor, buffers: Buffers, batch: Any, key: tuple[int, int]) -> Gradients:
        n = len(points)
        chunk = self.chunk or n
        if chunk >= n:
            return self._vmap_range(points, buffers, batch, key, 0)
        parts = []
        for lo in range(0, n, chunk):
            some = slice(lo, lo + chunk)
            own = {k: b[some] for k, b in buffers.items()}
            parts.append(self._vmap_range(points[some], own, _map(batch, lambda leaf, s=some: leaf[s]), key, lo))
        return Gradients(
            torch.cat([p.rows for p in parts]),
            torch.cat([p.losses for p in parts]),
            {k: torch.cat([p.buffers[k] for p in parts]) for k in buffers},
        )

    def _vmap_range(self, points: Tensor, buffers: Buffers, batch: Any, key: tuple[int, int], lo: int) -> Gradients:
        """The workers lo, lo + 1, ... in one vmap; once more under `PerWorker` if random numbers are drawn."""
        with global_state(points.device) as reseed:
            if not self._draws:
                reseed(0)
                before = torch.get_rng_state()
                found = self._vmap_once(points, buffers, batch)
                if torch.equal(before, torch.get_rng_state()):
                    return found
                self._draws = True
            with PerWorker(self._seeds(key, lo, lo + len(points)), points.device):
                return self._vmap_once(points, buffers, batch)

    def _vmap_once(self, points: Tensor, buffers: Buffers, batch: Any) -> Gradients:
        split = {n: p.detach().requires_grad_() for n, p in self.columns.unflatten(points).items()}
        after = {name: b.clone() for name, b in buffers.items()}

        def one(parameters: Mapping[str, Tensor], own: Buffers, leaf: Any) -> tuple[Tensor, Buffers]:
            kept = dict(own)
            return self._call(parameters, kept, leaf), kept

        losses, after = torch.vmap(one, randomness="different")(split, after, batch)
        # the workers share no parameter, so the gradient of the sum holds each worker's own gradient in its row
        grads = torch.autograd.grad(losses.sum(), list(split.values()), materialize_grads=True)
        rows = torch.cat([g.reshape(len(points), -1) for g in grads], dim=1)
        return Gradients(rows, losses.detach(), {k: b.detach() for k, b in after.items()})

    def _call(self, parameters: Mapping[str, Tensor], buffers: Buffers, batch: Any) -> Tensor:
        """The loss with these parameters and buffers; `buffers` holds what the model left in them afterwards."""
        given = {f"model.{k}": v for k, v in (*parameters.items(), *buffers.items())}
        value = torch.func.functional_call(self._objective, given, (batch,))
        for name in buffers:
            buffers[name] = given[f"model.{name}"]
        return value

    def _faster(self, points: Tensor, buffers: Buffers, batch: Any, key: tuple[int, int]) -> Route:
        """The route that is faster on this very batch; the loop where the model cannot be vmapped."""
        if len(points) == 1:
            return "loop"
        routes: dict[Route, Callable[..., Gradients]] = {"loop": self._loop, "vmap": self._vmap}
        best: dict[Route, float] = {}
        for name, run in routes.items():
            try:
                run(points, buffers, batch, key)
            except AlgorithmError:
                raise
            except RuntimeError:
                if name == "loop":
                    raise
                continue
            laps = []
            for _ in range(3):
                started = time.perf_counter()
                run(points, buffers, batch, key)
                if points.is_cuda:
                    torch.cuda.synchronize(points.device)
                laps.append(time.perf_counter() - started)
            best[name] = min(laps)
        return min(best, key=lambda name: best[name])


def _map(batch: Any, of: Callable[[Tensor], Tensor]) -> Any:
    """The same batch with `of` applied to its tensors."""
    if isinstance(batch, Tensor):
        return of(batch)
    if isinstance(batch, dict):
        return {k: _map(v, of) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(v, of) for v in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(_map(v, of) for v in batch)
    raise AlgorithmError(f"a batch is made of tensors in tuples, lists and dicts, got {type(batch).__name__}")


def check_batch(batch: Any, size: int) -> None:
    """Refuses a batch without a leading worker dimension of that size."""

    def look(leaf: Tensor) -> Tensor:
        if leaf.ndim == 0 or leaf.shape[0] != size:
            raise AlgorithmError(
                f"every tensor of a batch needs the worker dimension first, ({size}, ...), got {tuple(leaf.shape)}"
            )
        return leaf

    _map(batch, look)
