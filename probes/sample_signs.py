r"""Random signs that differ from sample to sample: the noise of a trace averages over the data as well.

Where samples do not interact, $R = \sum_n R_n$, and signs $z_n$ drawn for each sample on its own give

$$ \mathbb E \sum_n z_n^\top R_n z_n = \operatorname{tr} R , \qquad
\operatorname{Var} = 2 \sum_n \lVert \operatorname{offdiag} R_n \rVert_F^2 , $$

in place of the square of the sum. To move every sample's own copy of a weight by $Z_n$ is to move what its layer made
at the positions t by $\epsilon_{nt} = Z_n r_{nt}$, r being what the layer read; only the covariance of these matters,
$\mathbb E\,\epsilon_{nt}\epsilon_{nt'}^\top = (r_{nt}\cdot r_{nt'})\, I$. So with $A_n A_n^\top$ the Gram matrix of
the $r_{nt}$ and S signs, $\epsilon_n = A_n S_n$ serves, and no copy of a weight is ever made: a probe is one double
backward pass down to what the layers made. A bias adds signs that are the same at all positions; where there is only
one, weight and bias together are one movement with $A_n^2 = \lVert r_n\rVert^2 + 1$, in these shares.

R is what the curvature of the model adds to the Gauss-Newton matrix (see `model_curvature`). In a network that is
piecewise linear (ReLU) it vanishes: the outputs are linear in all $\epsilon$ together. One normal vector that R maps to
nothing at all tells so, with probability one, and then nothing is sampled.

The whole of it is ours, as far as we know. It needs layers whose use of their weights is understood (see `taps`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.gauss_newton_trace import Apart
from dissensus.probes.graphs import Pullback, saved_bytes
from dissensus.probes.model_curvature import weighted_outputs
from dissensus.probes.taps import Tap


@dataclass(frozen=True)
class _Moved:
    """A layer, the factor A (n, t, r) of its movements (None: alike at all positions), and whose they are."""

    tap: int
    factor: Tensor | None
    shares: dict[str, Tensor | None]
    """For every parameter its share of the movement (n,); None for all of it."""


class _Kept:
    """The graph of one batch, and how probes move its layers."""

    def __init__(self, batch: Apart) -> None:
        names = set(batch.landscape.names)
        astray = sorted(names - batch.understood)
        if astray:
            raise ProbeError(f"the use of {astray[0]!r} is not understood sample by sample")
        if batch.parts.aside:
            raise ProbeError("a part of the loss reads parameters without the model")
        taps = [tap for tap in batch.taps if tap.weight in names or tap.bias in names]
        slopes = torch.autograd.grad(
            weighted_outputs(batch.parts),
            [tap.made for tap in taps],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        reached = _reached(list(slopes), [tap.made for tap in taps], batch.draw)
        self.taps, self.count = [taps[index] for index in reached], batch.count
        self.moved = _movements(taps, names, reached)
        self.made = [tap.made for tap in self.taps]
        self.slope = torch.cat([slopes[index].reshape(-1) for index in reached]) if reached else None
        self._back = None if self.slope is None else Pullback(self.slope, self.made)

    def samples(self, count: int, names: list[str], generator: torch.Generator) -> tuple[np.ndarray, float]:
        """Quadratic forms (count, names) of fresh probes, and the size of what was added up in them."""
        out, size = np.zeros((count, len(names))), 0.0
        if self._back is None or self.slope is None:
            return out, size
        sizes = [made.numel() for made in self.made]
        vectors = self.slope.new_empty(count, sum(sizes))
        wholes, moves = vectors.split(sizes, dim=1), list[tuple[_Moved, Tensor]]()
        for move in self.moved:
            tap, made, whole = self.taps[move.tap], self.made[move.tap], wholes[move.tap]
            n, t, p = _positions(tap, made, self.count)
            signs = _signs((count, n, 1 if move.factor is None else move.factor.shape[2], p), generator).to(made)
            if move.factor is None:
                moved = signs.expand(count, n, t, p)
            else:
                moved = signs.mul_(move.factor) if t == 1 else move.factor @ signs
            moved = _shaped(tap, moved, made).reshape(count, -1)
            if moves and moves[-1][0].tap == move.tap:  # a bias moves what its weight has moved
                whole += moved
            else:
                whole.copy_(moved)
            moves.append((move, moved))
        images = self._back(vectors).split(sizes, dim=1)
        for move, moved in moves:
            terms = moved.mul(images[move.tap])
            forms = terms.reshape(count, self.count, -1).sum(2).double()
            size += float(terms.abs_().sum()) / count
            for name, share in move.shares.items():
                found = forms.sum(1) if share is None else forms @ share.double()
                out[:, names.index(name)] += found.cpu().numpy()
        return out, size


class SampleSigns:
    """Samples of the trace of H - G, parameter by parameter; a probe of all data counts as one product."""

    def __init__(self, operator: GaussNewton, *, look: bool = True) -> None:
        """Looks at every batch once (or is shown each by `take`); a model that cannot be taken apart is refused."""
        self._operator, self.names = operator, list(operator.landscape.names)
        self.products = 0
        self.nothing = True
        """Whether H - G has no curvature within the samples of any batch seen: its trace is zero."""
        self._kept: dict[int, _Kept] = {}
        self._room = operator._memory
        for index in range(len(operator.landscape.batches)) if look else ():
            self._batch(index)

    def draw(self, count: int, generator: torch.Generator) -> tuple[np.ndarray, float]:
        """Samples (count, parameters), and the size that rounding refers to."""
        total, size = np.zeros((count, len(self.names))), 0.0
        for index, weight in enumerate(self._operator.landscape.weights):
            kept = self._batch(index)
            width = max(1, self._room // (8 * 8 * max(sum(made.numel() for made in kept.made), 1)))
            for start in range(0, count, width):
                stop = min(start + width, count)
                found, part = kept.samples(stop - start, self.names, generator)
                total[start:stop] += weight * found
                size += weight * part * (stop - start) / count
        if not np.isfinite(total).all():
            raise ProbeError("a sample of the trace is not finite: the model has no second derivative at this point")
        self.products += count
        return total, size

    def take(self, index: int, batch: Apart) -> _Kept:
        """Looks at a batch that was taken apart, and keeps its graph where the memory allows."""
        made = _Kept(batch)
        self.nothing = self.nothing and made.slope is None
        if made.slope is None or len(self._operator.landscape.weights) == 1:
            self._kept[index] = made
        else:
            held = saved_bytes(made.slope)
            if held <= self._room // 2:
                self._kept[index] = made
                self._room -= held
        return made

    def _batch(self, index: int) -> _Kept:
        if index in self._kept:
            return self._kept[index]
        with self._operator.landscape.scope():
            return self.take(index, Apart(self._operator, index))


_BITS = torch.from_numpy(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1)
"""The eight signs of every byte."""


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent signs, eight from a random byte."""
    count = math.prod(shape)
    drawn = torch.randint(0, 256, (-(-count // 8),), generator=generator, dtype=torch.int32)
    return _BITS.index_select(0, drawn).flatten()[:count].reshape(shape)


def _reached(slopes: list[Tensor], made: list[Tensor], draw: torch.Generator) -> list[int]:
    """The layers that the slopes depend on (not the last one, say; none where the network is piecewise linear).

    A normal vector misses no row of a matrix but with probability zero; and the matrix is symmetric.
    """
    moving = [slope for slope in slopes if slope.requires_grad]
    if not moving:
        return []
    vectors = [torch.randn(slope.shape, generator=draw, dtype=slope.dtype).to(slope.device) for slope in moving]
    found = torch.autograd.grad(moving, made, vectors, retain_graph=True, allow_unused=True)
    return [index for index, piece in enumerate(found) if piece is not None and bool((piece != 0).any())]


def _movements(taps: list[Tap], names: set[str], reached: list[int]) -> list[_Moved]:
    """How the layers that are reached are moved, numbered as in `reached`."""
    uses = [name for tap in taps for name in (tap.weight, tap.bias) if name in names]
    for name in uses:
        if uses.count(name) > 1:
            raise ProbeError(f"{name!r} is used {uses.count(name)} times")
    found = []
    for number, index in enumerate(reached):
        tap = taps[index]
        if tap.kind != "embedding" and tap.read.shape[1] == 1 and {tap.weight, tap.bias} <= names:
            squared = tap.read.square().sum((1, 2))
            whole = squared + 1
            shares: dict[str, Tensor | None] = {tap.weight: squared / whole, tap.bias: 1 / whole}
            found.append(_Moved(number, whole.sqrt()[:, None, None], shares))
            continue
        if tap.weight in names:
            found.append(_Moved(number, _factor(tap), {tap.weight: None}))
        if tap.bias in names:
            found.append(_Moved(number, None, {tap.bias: None}))
    return found


def _factor(tap: Tap) -> Tensor:
    """A with A A^T the Gram matrix of what each sample's positions read, as narrow as can be."""
    read = tap.read
    if tap.kind == "embedding":
        first = (read[:, :, None] == read[:, None, :]).int().argmax(2)  # the first position with the same row
        return torch.nn.functional.one_hot(first, read.shape[1]).to(tap.made.dtype)
    _, t, q = read.shape
    if t == 1:
        return torch.linalg.vector_norm(read, dim=2, keepdim=True)
    return read if q <= t else torch.linalg.qr(read.mT).R.mT


def _positions(tap: Tap, made: Tensor, samples: int) -> tuple[int, int, int]:
    """Samples, positions and channels of what a layer made."""
    channels = made.shape[1] if tap.kind == "convolution" else made.shape[-1]
    return samples, made.numel() // (samples * channels), channels


def _shaped(tap: Tap, moved: Tensor, made: Tensor) -> Tensor:
    """Movements (k, n, t, p) in the shape of what the layer made."""
    moved = moved.transpose(2, 3) if tap.kind == "convolution" else moved
    return moved.reshape(len(moved), *made.shape)
