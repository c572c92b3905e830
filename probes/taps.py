r"""What linear layers, convolutions and embeddings hold of per-sample gradients, without forming them.

Such a layer uses its weight as a sum of products over positions t, so the gradient of sample n is
$g_n = \sum_t \ell_{nt} r_{nt}^\top$: for y = W x the left factor is the gradient by y and the right one is x; for an
embedding the left one marks the row looked up. Then $\langle g_n, g'_n\rangle = \sum_{tt'} (\ell_{nt}\cdot\ell'_{nt'})
(r_{nt}\cdot r'_{nt'})$, from two small matrices or from $g_n, g'_n$ themselves, whichever is cheaper. Weights used
several times (tied) have their positions joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dissensus.probes.landscape import Landscape

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Tap:
    """One use of a weight (and maybe of a bias): its kind, what the layer read, and what it made."""

    kind: str
    weight: str
    bias: str
    read: Tensor
    made: Tensor


class Taps(TorchFunctionMode):
    """Listens to a forward pass at `flat`; `found` then holds every use of a chosen weight that it understands."""

    def __init__(self, landscape: Landscape, flat: Tensor, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.found: list[Tap] = []
        pieces = landscape.split(flat.detach())
        self._names = {(piece.data_ptr(), piece.shape): name for name, piece in pieces.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs what was called, and keeps input and output of layers with chosen weights."""
        made = func(*args, **(kwargs or {}))
        heard = _heard(func, args, kwargs or {})
        if heard is None:
            return made
        kind, weight, bias, read = heard
        names = self._named(weight), self._named(bias)
        rows = _by_sample(kind, read, self.samples)
        if not any(names) or rows is None or not made.requires_grad:
            return made
        self.found.append(Tap(kind, *names, rows, made))
        return made.clone()  # what follows may write into it

    def _named(self, parameter: Any) -> str:
        return self._names.get((parameter.data_ptr(), parameter.shape), "") if isinstance(parameter, Tensor) else ""


def factors(taps: list[Tap], gradients: Sequence[Tensor], samples: int) -> dict[str, list[Pair]]:
    """Left (k, n, t, p) and right (k, n, t, q) factors of every weight and bias, a pair for each use.

    `gradients` holds, for every tap, a block (k, ...) of gradients by what the layer made. The left factor of an
    embedding is the row looked up, (1, n, t), and where one factor is the same for all k its first dimension is 1.
    """
    pairs: dict[str, list[Pair]] = {}
    for tap, gradient in zip(taps, gradients, strict=True):
        if tap.kind == "convolution":
            left = gradient.flatten(3).transpose(2, 3)
        else:
            left = gradient.reshape(len(gradient), samples, -1, gradient.shape[-1])
        right = tap.read[None]
        if tap.weight:
            pairs.setdefault(tap.weight, []).append((right, left) if tap.kind == "embedding" else (left, right))
        if tap.bias:
            added = left if left.shape[2] == 1 else left.sum(2, keepdim=True)
            pairs.setdefault(tap.bias, []).append((added, left.new_ones(1, samples, 1, 1)))
    return pairs


def inner(pairs: list[Pair], others: list[Pair], shape: torch.Size) -> Tensor:
    """The inner products (k, n) of per-sample gradients given by their factors with others of the same uses."""
    if all(left.dim() == 3 for left, _ in pairs):
        rows = torch.cat([left for left, _ in pairs], 2)
        right, other = (torch.cat([right for _, right in side], 2) for side in (pairs, others))
        return ((rows[..., :, None] == rows[..., None, :]) * (right @ other.mT)).sum((2, 3))
    (left, right), (left_2, right_2) = _stacked(pairs, shape), _stacked(others, shape)
    t, p, q = left.shape[2], left.shape[3], right.shape[3]
    if t == 1:
        return (left * left_2).sum((2, 3)) * (right * right_2).sum((2, 3))
    if t * (p + q) < p * q:
        return ((left @ left_2.mT) * (right @ right_2.mT)).sum((2, 3))
    return ((left.mT @ right) * (left_2.mT @ right_2)).sum((2, 3))


def curved(
    taps: list[Tap], units: Sequence[Tensor], curves: Tensor, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    r"""The numbers $\sum_{cc'} H_{ncc'} \langle g_{nc}, g_{nc'}\rangle$ (n,) of every weight and bias.

    `units` holds, for every tap, the gradients (c, ...) of the outputs by what the layer made, and `curves` the H_n.
    Where a layer is used once and at one position, the left factors say all, for weight and bias together.
    """
    uses = Counter(name for tap in taps for name in (tap.weight, tap.bias))
    found, left = dict[str, Tensor](), list[tuple[Tap, Tensor]]()
    for tap, unit in zip(taps, units, strict=True):
        once = all(uses[name] == 1 for name in (tap.weight, tap.bias) if name)
        if tap.kind != "linear" or tap.read.shape[1] > 1 or not once:
            left.append((tap, unit))
            continue
        rows = unit.flatten(2).transpose(0, 1)
        form = (torch.bmm(curves, rows) * rows).sum((1, 2))
        if tap.weight:
            found[tap.weight] = form * tap.read.square().sum((1, 2))
        if tap.bias:
            found[tap.bias] = form
    others = [tap for tap, _ in left]
    rest = [unit for _, unit in left]
    mixed = [(curves @ unit.reshape(*curves.shape[1::-1], -1).transpose(0, 1)).transpose(0, 1) for unit in rest]
    pairs = factors(others, rest, len(curves))
    twins = factors(others, [m.reshape(u.shape) for m, u in zip(mixed, rest, strict=True)], len(curves))
    return found | {name: inner(pairs[name], twins[name], shapes[name]).sum(0) for name in pairs}


def _stacked(pairs: list[Pair], shape: torch.Size) -> Pair:
    """The positions of all uses one after another, left and right."""
    return _joined([_dense(left, shape, right.dtype) for left, right in pairs]), _joined([right for _, right in pairs])


def summed(pairs: list[Pair], shape: torch.Size) -> Tensor:
    """The gradient of k = 1 summed over samples, in the shape of its parameter."""
    total = 0.0
    for left, right in pairs:
        if left.dim() == 3:
            rows = right.new_zeros(shape[0], right.shape[-1])
            total = total + rows.index_add(0, left.flatten(), right.flatten(0, 2))
        else:
            total = total + left.flatten(0, 2).T @ right.flatten(0, 2)
    return torch.as_tensor(total).reshape(shape)


def _dense(left: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return F.one_hot(left, shape[0]).to(dtype) if left.dim() == 3 else left


def _joined(parts: list[Tensor]) -> Tensor:
    """The positions of several uses one after another."""
    if len(parts) == 1:
        return parts[0]
    k = max(len(part) for part in parts)
    return torch.cat([part.expand(k, -1, -1, -1) for part in parts], 2)


def _heard(func: Any, args: Any, kwargs: Any) -> tuple[str, Any, Any, Any] | None:
    """Kind, weight, bias and what was read (not yet in rows), if the function is a layer that is understood."""
    try:
        if func is F.linear:
            x, weight, bias = _Linear(*args, **kwargs)
            return "linear", weight, bias, x
        if func in (F.embedding, torch.embedding):
            weight, rows = (args[1], args[0]) if func is F.embedding else (args[0], args[1])
            return "embedding", weight, None, rows
        if func is F.conv2d:
            x, weight, bias, stride, padding, dilation, groups = _Convolution(*args, **kwargs)
            if groups == 1 and not isinstance(padding, str) and x.dim() == 4:
                columns = F.unfold(x.detach(), weight.shape[2:], dilation, padding, stride)
                return "convolution", weight, bias, columns.transpose(1, 2)
    except (TypeError, IndexError):
        return None
    return None


class _Linear(NamedTuple):
    input: Tensor
    weight: Tensor
    bias: Tensor | None = None


class _Convolution(NamedTuple):
    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


def _by_sample(kind: str, read: Tensor, samples: int) -> Tensor | None:
    """What was read as (samples, positions, ...), where its rows lie sample after sample."""
    if read.dim() == 0 or read.shape[0] % samples or (kind == "linear" and read.dim() < 2):
        return None
    read = read.detach()
    return read.reshape(samples, -1) if kind == "embedding" else read.reshape(samples, -1, read.shape[-1])
