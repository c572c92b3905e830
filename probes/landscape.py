r"""The loss as a pure function of a flat vector: $L(\theta) = \sum_b w_b\,\ell_b(\theta)$, exactly, over all batches.

Any `nn.Module` and any `loss(model, batch) -> scalar` will do. The loss is taken to be a mean over the samples of the
batch, so the weight of a batch is its number of samples (the last, short batch counts less); for another meaning (a
mean over tokens, say) give `weights`. A flat vector holds the chosen parameters in the order of
`model.named_parameters()`, every tied weight once. By default those that require a gradient are chosen; glob patterns
choose by name.

Everything is copied when the landscape is made: it goes on speaking of that point whatever happens to the model later.
Buffers are the model's, and stay what they are however often the loss is evaluated. In mode "train" layers such as
BatchNorm and dropout do what they do in training, with random numbers that are fixed per batch.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from dissensus.probes.errors import ProbeError
from dissensus.probes.untouched import Mode, reseed, undisturbed, untouched

Loss = Callable[[Any, Any], Tensor]
Patterns = str | Sequence[str] | None


class Landscape:
    """A loss over weighted batches as a function of the flat vector of chosen parameters."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        parameters: Patterns = None,
        mode: Mode = "eval",
        dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        if mode not in ("eval", "train"):
            raise ProbeError(f"mode must be 'eval' or 'train', got {mode!r}")
        self.model, self.seed = unwrapped(model), seed
        self.mode: Mode = mode
        self._bound = _Bound(self.model, loss)
        with self.scope():
            self.batches = _listed(batches)
            if dtype is not None:
                self.batches = [tree_map(lambda leaf: _cast(leaf, dtype), batch) for batch in self.batches]
        self.weights = _weights(self.batches, weights)
        """The share of each batch; they sum to one."""
        self.most_samples = max(_leading(batch) for batch in self.batches)
        """The longest first dimension of a batch."""
        everything = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.names = _chosen(self.model, parameters)
        """The names of the chosen parameters, in order."""
        self.shapes = {name: everything[name].shape for name in self.names}
        self._dtypes = {name: dtype or everything[name].dtype for name in self.names}
        self._sizes = [everything[name].numel() for name in self.names]
        self._fixed = {name: _cast(p, dtype) for name, p in everything.items() if name not in self.shapes}
        self._buffers = {name: _cast(b.detach().clone(), dtype) for name, b in self.model.named_buffers()}
        self.total_size = sum(p.numel() for p in everything.values())
        """The length of a row that holds all parameters, chosen or not."""
        self._columns = _columns(everything, self.shapes)
        self.point = torch.cat([_cast(everything[name], dtype).reshape(-1) for name in self.names])
        """The point looked at, (d,)."""
        self._check()

    @property
    def size(self) -> int:
        """The number d of chosen parameters."""
        return self.point.numel()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Inside, losses may be evaluated; afterwards the model and all random states are as before."""
        with untouched(self.model, self.mode):
            yield

    def at(self, index: int, flat: Tensor) -> Tensor:
        """The loss of batch `index` at the flat vector: differentiable, and pure inside `scope()`."""
        reseed(self.seed + index)
        state = {**self._fixed, **{name: buffer.clone() for name, buffer in self._buffers.items()}, **self.split(flat)}
        return functional_call(self._bound, {f"model.{name}": t for name, t in state.items()}, (self.batches[index],))

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector (d,) as the named parameters it holds."""
        pieces = zip(self.names, flat.split(self._sizes), strict=True)
        return {name: piece.view(self.shapes[name]).to(self._dtypes[name]) for name, piece in pieces}

    def losses(self, flat: Tensor | None = None) -> list[float]:
        """The loss of every batch at a point (default: the point looked at)."""
        flat = self.point if flat is None else flat
        with self.scope(), torch.no_grad():
            return [float(self.at(index, flat)) for index in range(len(self.batches))]

    def value(self, flat: Tensor | None = None) -> float:
        """The loss over all batches at a point."""
        return sum(w * value for w, value in zip(self.weights, self.losses(flat), strict=True))

    def gradients(self, flat: Tensor | None = None) -> Tensor:
        """The gradient of every batch at a point, (batches, d)."""
        flat = self.point if flat is None else flat
        rows = []
        with self.scope():
            for index in range(len(self.batches)):
                leaf = flat.detach().clone().requires_grad_()
                (row,) = torch.autograd.grad(self.at(index, leaf), leaf, allow_unused=True, materialize_grads=True)
                rows.append(row)
        return torch.stack(rows)

    def gradient(self, flat: Tensor | None = None) -> Tensor:
        """The gradient over all batches at a point, (d,)."""
        rows = self.gradients(flat)
        with undisturbed():
            return torch.tensor(self.weights, dtype=rows.dtype, device=rows.device) @ rows

    def select(self, x: Tensor) -> Tensor:
        """Rows of chosen parameters from rows of chosen or of all parameters, in the dtype of the point."""
        if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[0] == 0:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ProbeError(f"x must be a tensor of shape (n, d), one row per worker, got {shape}")
        if x.shape[1] == self.total_size:
            x = torch.cat([x[:, start:stop] for start, stop in self._columns], dim=1)
        elif x.shape[1] != self.size:
            both = f"{self.size} chosen" + (f" or {self.total_size}" if self.size != self.total_size else "")
            raise ProbeError(
                f"x has rows of {x.shape[1]} numbers, the model has {both} parameters: flatten them in the order of "
                "model.named_parameters()"
            )
        return x.detach().to(self.point)

    def _check(self) -> None:
        """One look at the first batch, twice: a scalar, finite, repeatable, and touched by the parameters."""
        with self.scope():
            first = self.at(0, self.point.clone().requires_grad_())
            if not isinstance(first, Tensor) or first.numel() != 1 or first.dim() > 1:
                what = f"a tensor of shape {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
                raise ProbeError(f"loss(model, batch) must return one number as a tensor, got {what}; average it")
            value = float(first.detach())
            if not math.isfinite(value):
                raise ProbeError(f"loss(model, batch) is {value} on batch 0 at this point: nothing to look at")
            if not first.requires_grad:
                raise ProbeError(
                    "the loss does not depend on the chosen parameters: let loss(model, batch) use the model it is "
                    "given, without detach, .item() or no_grad, and choose parameters that it uses"
                )
            again = float(self.at(0, self.point).detach())
        if abs(value - again) > 100 * torch.finfo(first.dtype).eps * abs(value):
            raise ProbeError(
                f"loss(model, batch) gave {value:.9g} and then {again:.9g} on the same batch: it draws "
                "random numbers of its own; give it fixed data (no shuffling or augmentation inside the loss)"
            )


class _Bound(nn.Module):
    """A module around the model whose forward is the loss, so that all tensors can be swapped at once."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # in a tuple: a loss that is itself a module stays outside

    def forward(self, batch: Any) -> Tensor:
        return self._loss[0](self.model, batch)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a compiled or a data-parallel one."""
    if not isinstance(model, nn.Module):
        raise ProbeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        else:
            return model


def _listed(batches: Sequence[Any]) -> list[Any]:
    if isinstance(batches, (Tensor, dict)) or (
        isinstance(batches, tuple) and all(isinstance(b, Tensor) for b in batches)
    ):
        raise ProbeError(f"batches must be a list of batches, got one {type(batches).__name__}; write [batch]")
    listed = list(batches)
    if not listed:
        raise ProbeError("batches is empty; give at least one batch")
    return listed


def _weights(batches: list[Any], weights: Sequence[float] | None) -> list[float]:
    given = (
        [float(_samples(i, batch)) for i, batch in enumerate(batches)] if weights is None else [*map(float, weights)]
    )
    if len(given) != len(batches):
        raise ProbeError(f"weights has {len(given)} entries for {len(batches)} batches; give one per batch")
    for index, weight in enumerate(given):
        if not 0 < weight < float("inf"):
            raise ProbeError(f"the weight of batch {index} is {weight}; weights are positive numbers (of samples)")
    return [weight / sum(given) for weight in given]


def _samples(index: int, batch: Any) -> int:
    sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if len(sizes) != 1:
        found = f"its tensors begin with {sorted(sizes)}" if sizes else "it holds no tensor with a first dimension"
        raise ProbeError(f"the number of samples of batch {index} is unclear: {found}; give weights=[...] per batch")
    return sizes.pop()


def _leading(batch: Any) -> int:
    return max((t.shape[0] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > 0), default=1)


def _chosen(model: nn.Module, patterns: Patterns) -> list[str]:
    known = dict(model.named_parameters())
    if not known:
        raise ProbeError("the model has no parameters to look at")
    if patterns is None:
        names = [name for name, p in known.items() if p.requires_grad]
        if not names:
            raise ProbeError("no parameter requires a gradient (all are frozen); choose some with parameters='*'")
    else:
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in wanted:
            if not fnmatch.filter(known, pattern):
                raise ProbeError(f"no parameter is called {pattern!r}; there are {', '.join(known)}")
        names = [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]
    for name in names:
        if not known[name].is_floating_point():
            raise ProbeError(f"parameter {name!r} is {known[name].dtype}: only real floating-point ones have curvature")
    return names


def _columns(everything: dict[str, Tensor], chosen: dict[str, Any]) -> list[tuple[int, int]]:
    spans, start = [], 0
    for name, p in everything.items():
        if name in chosen:
            spans.append((start, start + p.numel()))
        start += p.numel()
    return spans


def _cast(leaf: Any, dtype: torch.dtype | None) -> Any:
    return leaf.to(dtype) if dtype is not None and isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
