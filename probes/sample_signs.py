r"""Random signs that differ from sample to sample: the noise of a trace averages over the data as well.

Where samples do not interact, $R = \sum_n R_n$, and signs $z_n$ drawn for each sample on its own give

$$ \mathbb E \sum_n z_n^\top R_n z_n = \operatorname{tr} R , \qquad
\operatorname{Var} = 2 \sum_n \lVert \operatorname{offdiag} R_n \rVert_F^2 , $$

in place of the square of the sum. To move every sample's own copy of a weight by $Z_n$ is to move what its layer made
at the positions t by $\epsilon_{nt} = Z_n r_{nt}$, r being what the layer read; only the covariance of these matters,
$\mathbb E\,\epsilon_{nt}\epsilon_{nt'}^\top = (r_{nt}\cdot r_{nt'})\, I$. So with $A_n A_n^\top$ the Gram matrix of
the $r_{nt}$ and S signs, $\epsilon_n = A_n S_n$ serves, and no copy of a weight is ever made: a probe is one double
backward pass down to what the layers made. A bias adds signs that are the same at all positions.

R is what the curvature of the model adds to the Gauss-Newton matrix (see `model_curvature`). In a network that is
piecewise linear (ReLU) it vanishes for every probe: the outputs are linear in all $\epsilon$ together.

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
from dissensus.probes.gauss_newton_trace import MOST_OUTPUTS, _Batch
from dissensus.probes.graphs import Pullback, saved_bytes
from dissensus.probes.model_curvature import weighted_outputs
from dissensus.probes.taps import Tap


@dataclass(frozen=True)
class _Moved:
    """A weight or bias, the layer it moves, and the factor A (n, t, r) of its movements; None for a bias."""

    name: str
    tap: int
    factor: Tensor | None


class _Kept:
    """The graph of one batch, and how probes move its layers."""

    def __init__(self, operator: GaussNewton, index: int) -> None:
        batch = _Batch(operator, index, MOST_OUTPUTS)
        names = set(operator.landscape.names)
        astray = sorted(names - batch._understood())
        if astray:
            raise ProbeError(f"the use of {astray[0]!r} is not understood sample by sample")
        if batch.parts.aside:
            raise ProbeError("a part of the loss reads parameters without the model")
        self.taps = [tap for tap in batch.taps if tap.weight in names or tap.bias in names]
        self.moved = _movements(self.taps, names)
        self.made = [tap.made for tap in self.taps]
        slopes = torch.autograd.grad(
            weighted_outputs(batch.parts), self.made, create_graph=True, allow_unused=True, materialize_grads=True
        )
        slope = torch.cat([s.reshape(-1) for s in slopes])
        self.reached, self.back = _reached(slope, self.made)
        self.count = batch.count
        self.bytes = saved_bytes(slope)

    def samples(self, count: int, names: list[str], generator: torch.Generator) -> tuple[Tensor, float]:
        """Quadratic forms (count, names) of fresh probes, and the size of what was added up in them."""
        moves: list[tuple[_Moved, Tensor]] = []
        whole = [torch.zeros((count, *made.shape), dtype=made.dtype, device=made.device) for made in self.made]
        for move in self.moved:
            if move.tap not in self.reached:
                continue
            made = self.made[move.tap]
            flat = _positions(self.taps[move.tap], made, self.count)
            n, t, p = flat
            shape = (count, n, 1 if move.factor is None else move.factor.shape[2], p)
            signs = _signs(shape, generator).to(made)
            moved = signs.expand(count, n, t, p) if move.factor is None else move.factor @ signs
            moved = _shaped(self.taps[move.tap], moved, made)
            whole[move.tap] += moved
            moves.append((move, moved))
        out = torch.zeros(count, len(names), dtype=torch.float64, device=self.made[0].device)
        if self.back is None:
            return out, 0.0
        rows = self.back(torch.cat([w.reshape(count, -1) for w in whole], dim=1))
        pieces = rows.split([self.made[index].numel() for index in self.reached], dim=1)
        images = dict(zip(self.reached, pieces, strict=True))
        size = 0.0
        for move, moved in moves:
            terms = moved.reshape(count, -1).double() * images[move.tap].double()
            out[:, names.index(move.name)] += terms.sum(1)
            size += float(terms.abs().sum(1).mean())
        return out, size


class SampleSigns:
    """Samples of the trace of H - G, parameter by parameter; a probe of all data counts as one product."""

    def __init__(self, operator: GaussNewton) -> None:
        """Looks at every batch once; a model that cannot be taken apart is refused."""
        self._operator, self.names = operator, list(operator.landscape.names)
        self.products = 0
        self._kept: dict[int, _Kept] = {}
        self._room = operator._memory
        for index in range(len(operator.landscape.batches)):
            self._batch(index)

    def draw(self, count: int, generator: torch.Generator) -> tuple[np.ndarray, float]:
        """Samples (count, parameters), and the size that rounding refers to."""
        total, size = np.zeros((count, len(self.names))), 0.0
        for index, weight in enumerate(self._operator.landscape.weights):
            kept = self._batch(index)
            width = max(1, self._room // (8 * 8 * sum(made.numel() for made in kept.made)))
            for start in range(0, count, width):
                stop = min(start + width, count)
                found, part = kept.samples(stop - start, self.names, generator)
                total[start:stop] += weight * found.cpu().numpy()
                size += weight * part * (stop - start) / count
        if not np.isfinite(total).all():
            raise ProbeError("a sample of the trace is not finite: the model has no second derivative at this point")
        self.products += count
        return total, size

    def _batch(self, index: int) -> _Kept:
        if index in self._kept:
            return self._kept[index]
        with self._operator.landscape.scope():
            made = _Kept(self._operator, index)
        if made.bytes <= self._room // 2 or len(self._operator.landscape.weights) == 1:
            self._kept[index] = made
            self._room -= min(made.bytes, self._room // 2)
        return made


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent signs, eight from a random byte."""
    count = math.prod(shape)
    drawn = torch.randint(0, 256, (-(-count // 8),), generator=generator, dtype=torch.uint8).numpy()
    return torch.from_numpy(np.unpackbits(drawn, count=count).astype(np.float32)).mul_(2).sub_(1).reshape(shape)


def _reached(slope: Tensor, made: list[Tensor]) -> tuple[list[int], Pullback | None]:
    """The layers that the slopes depend on (not the last one, say), and the way back to them."""
    if not slope.requires_grad:
        return [], None
    found = torch.autograd.grad(slope.sum(), made, retain_graph=True, allow_unused=True)
    reached = [index for index, piece in enumerate(found) if piece is not None]
    return reached, Pullback(slope, [made[index] for index in reached]) if reached else None


def _movements(taps: list[Tap], names: set[str]) -> list[_Moved]:
    uses = [name for tap in taps for name in (tap.weight, tap.bias) if name in names]
    for name in uses:
        if uses.count(name) > 1:
            raise ProbeError(f"{name!r} is used {uses.count(name)} times")
    found = []
    for index, tap in enumerate(taps):
        if tap.weight in names:
            found.append(_Moved(tap.weight, index, _factor(tap)))
        if tap.bias in names:
            found.append(_Moved(tap.bias, index, None))
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
