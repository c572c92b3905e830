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
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dissensus.probes.batches import Batches, admitted, cast, leading, shares
from dissensus.probes.errors import ProbeError
from dissensus.probes.untouched import Mode, reseed, undisturbed, untouched

Loss = Callable[[Any, Any], Tensor]
SeenAs = Callable[[nn.Module], Any]
Choice = Callable[[str, nn.Parameter], bool]
Patterns = str | Sequence[str] | Choice | None
"""Which parameters: glob patterns of names, or a predicate of name and parameter; None for those that are trained."""


class Landscape:
    """A loss over weighted batches as a function of the flat vector of chosen parameters."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Batches,
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
            self.batches = admitted(batches, dtype)
            self.weights = shares(self.batches, weights)
            """The share of each batch; they sum to one."""
            self.most_samples = max(leading(self.batches[index]) for index in range(len(self.batches)))
            """The longest first dimension of a batch."""
            everything = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            self.names = _chosen(self.model, parameters)
            """The names of the chosen parameters, in order."""
            self.shapes = {name: everything[name].shape for name in self.names}
            self._dtypes = {name: dtype or everything[name].dtype for name in self.names}
            self._sizes = [everything[name].numel() for name in self.names]
            self._fixed = {name: cast(p, dtype) for name, p in everything.items() if name not in self.shapes}
            self._buffers = {name: cast(b.detach().clone(), dtype) for name, b in self.model.named_buffers()}
            self.total_size = sum(p.numel() for p in everything.values())
            """The length of a row that holds all parameters, chosen or not."""
            self._columns = _columns(everything, self.shapes)
            self.point = torch.cat([cast(everything[name], dtype).reshape(-1) for name in self.names])
            """The point looked at, (d,)."""
            self.notes: tuple[str, ...] = ()
            """What a reader has to know of numbers from here."""
            self._differentiates = False
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

    def at(self, index: int, flat: Tensor, seen_as: SeenAs | None = None) -> Tensor:
        """The loss of batch `index` at the flat vector: differentiable, and pure inside `scope()`.

        `seen_as` may put something in front of the model that the loss then calls in its place.
        """
        return self.on(self.batches[index], flat, seen_as, seed=index)

    def on(self, batch: Any, flat: Tensor, seen_as: SeenAs | None = None, seed: int = 0) -> Tensor:
        """The loss of any batch at the flat vector, like `at`."""
        reseed(self.seed + seed)
        return self.called(self._bound, flat, batch, seen_as)

    def called(self, bound: nn.Module, flat: Tensor, *given: Any) -> Any:
        """Calls a module that holds the model as `.model`, with the model's parameters at the flat vector."""
        state = {**self._fixed, **{name: buffer.clone() for name, buffer in self._buffers.items()}, **self.split(flat)}
        return functional_call(bound, {f"model.{name}": t for name, t in state.items()}, given)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector (d,) as the named parameters it holds."""
        pieces = zip(self.names, flat.split(self._sizes), strict=True)
        return {name: piece.view(self.shapes[name]).to(self._dtypes[name]) for name, piece in pieces}

    def losses(self, flat: Tensor | None = None) -> list[float]:
        """The loss of every batch at a point (default: the point looked at)."""
        flat = self.point if flat is None else flat
        with self.scope():
            return [float(self.valued(index, flat)) for index in range(len(self.batches))]

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

    def valued(self, index: int, flat: Tensor) -> Tensor:
        """The loss of batch `index` at the flat vector as a number, and no graph kept. Call it inside `scope()`.

        A loss that differentiates on its own (a penalty on gradients) is given a point that it can differentiate.
        """
        if self._differentiates:
            return self.at(index, flat.detach().clone().requires_grad_()).detach()
        with torch.no_grad():
            return self.at(index, flat)

    def _again(self) -> float:
        try:
            return float(self.valued(0, self.point))
        except RuntimeError:
            self._differentiates = True
            return float(self.valued(0, self.point))

    def _check(self) -> None:
        """One look at the first batch, twice, inside `scope()`: one number, finite, repeatable, moved by parameters."""
        with _Attention() as seen, _overwriting():
            first = self.at(0, self.point.clone().requires_grad_())
        if seen.attends:
            self.notes = ("attention runs on torch's mathematical kernel, which can be differentiated twice",)
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
        again = self._again()
        if abs(value - again) > 100 * torch.finfo(first.dtype).eps * abs(value):
            raise ProbeError(
                f"loss(model, batch) gave {value:.9g} and then {again:.9g} on the same batch: it draws "
                "random numbers of its own; give it fixed data (no shuffling or augmentation inside the loss)"
            )


@contextmanager
def _overwriting() -> Iterator[None]:
    try:
        yield
    except RuntimeError as failure:
        said = str(failure).splitlines()[0]
        if "inplace" not in said and "in-place" not in said:
            raise
        raise ProbeError(
            f"the loss writes in place where it has to be differentiated ({said[:120]}); look for layers that write "
            "over their parameters in forward, such as nn.Embedding(max_norm=...)"
        ) from failure


class _Attention(TorchFunctionMode):
    """Notices scaled dot-product attention, alone or inside torch's own layers."""

    _KINDS = (functional.scaled_dot_product_attention, functional.multi_head_attention_forward)
    attends = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.attends = self.attends or func in self._KINDS
        return func(*args, **(kwargs or {}))


class _Bound(nn.Module):
    """A module around the model whose forward is the loss, so that all tensors can be swapped at once."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # in a tuple: a loss that is itself a module stays outside

    def forward(self, batch: Any, seen_as: SeenAs | None = None) -> Tensor:
        return self._loss[0](self.model if seen_as is None else seen_as(self.model), batch)


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


def _chosen(model: nn.Module, patterns: Patterns) -> list[str]:
    known = dict(model.named_parameters())
    if not known:
        raise ProbeError("the model has no parameters to look at")
    if patterns is None:
        names = [name for name, p in known.items() if p.requires_grad]
        if not names:
            raise ProbeError("no parameter requires a gradient (all are frozen); choose some with parameters='*'")
    elif callable(patterns):
        names = [name for name, p in known.items() if patterns(name, p)]
        if not names:
            raise ProbeError(f"the predicate of parameters chose none of {', '.join(known)}")
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
