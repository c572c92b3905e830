r"""The trace of the Gauss-Newton matrix, exactly, at one backward pass for each output of the model.

Where samples do not interact, $\operatorname{tr} J^\top HJ = \sum_n \operatorname{tr} J_n^\top H_n J_n$ with $H_n$, the
Hessian of the loss by the outputs of sample n. There are two ways to it, each with one backward pass of all samples
together for an output:

- $\sum_{cc'} H_{ncc'} \langle g_{nc}, g_{nc'} \rangle$ with the gradients $g_{nc}$ of the outputs. What reached the
  layers is mixed by $H_n$, and no eigenproblem is solved: the way for networks that make little of each sample;
- $\sum_c \lambda_{nc} \lVert J_n^\top q_{nc}\rVert^2$ with the eigenpairs of $H_n$, of which many may vanish.

The inner products of the samples' gradients come from what the layers read and what reached them (see `taps`), and no
gradient of a sample is formed. Parameters used in another way are differentiated sample by sample with `vmap`.

All that is checked, on random vectors: that no sample reaches another (BatchNorm in training does), and that the
factors add up to the gradient that autograd finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.batches import samples
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, exact
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.graphs import Pullback
from dissensus.probes.operator import dtype_name
from dissensus.probes.sample_jacobians import APART, SampleJacobians
from dissensus.probes.split import Split, split
from dissensus.probes.taps import Tap, Taps, curved, factors, inner, summed
from dissensus.probes.untouched import undisturbed

MOST_OUTPUTS = 256
"""Outputs of a sample beyond which the exact trace is refused: each is a backward pass through all data."""

HALVES = 4
"""Random halves of the samples between which nothing may pass."""

SURE = 16
"""As many halves where a vector says that samples meet, which may be rounding: one pair in 2^16 would be missed."""

MIXED = 1000
"""Numbers that the layers make of a sample up to which mixing is cheaper than the eigenvectors of H_n."""

Looker = Callable[[int, "Apart"], None]


def gauss_newton_trace(operator: GaussNewton, *, most_outputs: int = MOST_OUTPUTS, name: str = "trace") -> Estimate:
    """The exact trace; `num_matvecs` is the number of backward passes through all data, each less than a product."""
    layers, passes = _measured(operator, most_outputs)
    return _exact(name, sum(layers.values()), operator, passes)


def gauss_newton_layer_traces(
    operator: GaussNewton, *, most_outputs: int = MOST_OUTPUTS, look: Looker | None = None
) -> dict[str, Estimate]:
    """The exact trace of the diagonal block of every chosen parameter, all from the passes of one trace.

    `look` is shown every batch taken apart, with its number, while its forward pass is there.
    """
    layers, passes = _measured(operator, most_outputs, look)
    return {name: _exact(f"trace of {name}", value, operator, passes) for name, value in layers.items()}


def _exact(name: str, value: float, operator: GaussNewton, passes: int) -> Estimate:
    notes = (f"method: {passes} backward passes, one per output", *operator.notes)
    return exact(name, value, num_matvecs=passes, dtype=dtype_name(operator.dtype), notes=notes)


@undisturbed()
def _measured(operator: GaussNewton, most: int, look: Looker | None = None) -> tuple[dict[str, float], int]:
    """The trace of every parameter's block, and the largest number of passes a batch took."""
    landscape = operator.landscape
    totals, passes = dict.fromkeys(landscape.names, 0.0), 0
    for index, weight in enumerate(landscape.weights):
        with landscape.scope():
            batch = Apart(operator, index, most)
            for name, value in batch.traces().items():
                totals[name] += weight * value
            if look is not None:
                look(index, batch)
        passes = max(passes, batch.passes)
    if not np.isfinite(list(totals.values())).all():
        raise ProbeError("the trace of the Gauss-Newton matrix is not finite: outputs or their loss overflow")
    return totals, passes


class Apart:
    """One batch, its outputs (samples, outputs each), and the listening forward pass. Lives inside `scope()`."""

    def __init__(self, operator: GaussNewton, index: int, most: int = MOST_OUTPUTS) -> None:
        self.landscape, self.index, self.memory = operator.landscape, index, operator._memory
        self.batch = self.landscape.batches[index]
        self.count = samples(index, self.batch)
        self.leaf = self.landscape.point.clone().requires_grad_()
        with Taps(self.landscape, self.leaf, self.count) as listening:
            self.parts: Split = split(self.landscape, self.batch, self.leaf, index)
        self.taps: list[Tap] = listening.found
        for output in self.parts.outputs:
            if output.dim() == 0 or output.shape[0] != self.count:
                raise ProbeError(
                    f"the model returns a tensor of shape {tuple(output.shape)} for the {self.count} samples of batch "
                    f"{index}: the exact trace needs a row per sample; use hessian_trace on the operator"
                )
        self.widths = [output.numel() // self.count for output in self.parts.outputs]
        self.outputs = torch.cat([output.reshape(self.count, -1) for output in self.parts.outputs], 1)
        if self.outputs.shape[1] > most:
            raise ProbeError(
                f"the model has {self.outputs.shape[1]} outputs per sample, each a backward pass in the exact trace, "
                f"and most_outputs is {most}; raise that, or use hessian_trace on the operator"
            )
        self.draw = torch.Generator().manual_seed(self.landscape.seed)
        self.passes = 0

    def traces(self) -> dict[str, float]:
        """The trace of the block of every parameter."""
        totals = dict.fromkeys(self.landscape.names, 0.0)
        curves = self._curves()
        if curves is None:
            return totals
        mixed = self._mixes(curves)
        if mixed:
            self.passes = self.outputs.shape[1]
            for name, value in self._mixed(curves).items():
                totals[name] = value
        rest = [name for name in self.landscape.names if name not in self.understood]
        if mixed and not rest:
            return totals
        vectors, signs = _eigen(curves)
        self.passes = max(self.passes, len(vectors))
        taps = [] if mixed else self._known_taps()
        if taps and len(vectors):
            for lo, gradients in self._gradients(taps, vectors):
                for name, pairs in factors(taps, gradients, self.count).items():
                    if name in self.understood:
                        found = inner(pairs, pairs, self.landscape.shapes[name])
                        totals[name] += float((found.double() * signs[lo : lo + len(found)]).sum())
        if rest and len(vectors):
            for name, value in self._one_by_one(rest, vectors, signs).items():
                totals[name] = value
        return totals

    def _curves(self) -> Tensor | None:
        """H_n of every sample (n, outputs, outputs), or None where the loss is linear in the outputs."""
        width = self.outputs.shape[1]
        slopes = torch.autograd.grad(self.parts.loss, self.parts.free, create_graph=True, materialize_grads=True)
        slope = torch.cat([s.reshape(self.count, -1) for s in slopes], 1)
        if not slope.requires_grad:
            return None
        back = Pullback(slope.reshape(-1), self.parts.free)

        def images(vectors: Tensor) -> Tensor:
            flat = back(vectors.flatten(1)).split([w * self.count for w in self.widths], 1)
            pieces = [piece.reshape(len(vectors), self.count, -1) for piece in flat]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)

        inside, vectors = self._halves(1)
        found = images(torch.cat([self._units, vectors]))
        meets = _outside(found[width:], inside)
        if not meets and not _combines(vectors, found[:width], found[width:], self.draw):
            inside, vectors = self._halves(SURE)
            meets = _outside(images(vectors), inside)
        if meets:
            raise ProbeError(
                f"the loss of batch {self.index} has curvature between samples, so its trace is no sum over them; "
                "use hessian_trace on the operator"
            )
        curves = found[:width].transpose(0, 1)
        return (curves + curves.mT) / 2

    @property
    def _units(self) -> Tensor:
        """The unit vectors of the outputs (outputs, n, outputs), for all samples alike."""
        width = self.outputs.shape[1]
        units = torch.eye(width, dtype=self.outputs.dtype, device=self.outputs.device)
        return units[:, None, :].expand(width, self.count, width)

    def _mixes(self, curves: Tensor) -> bool:
        """Whether mixing what the units become is the cheaper way: few hidden numbers, and no output that H ignores."""
        width, made = curves.shape[1], sum(tap.made.numel() for tap in self.taps)
        fits = width + 2 <= self._at_once(made)
        return 0 < made <= MIXED * self.count and fits and bool(curves.abs().amax((0, 2)).all())

    def _mixed(self, curves: Tensor) -> dict[str, float]:
        r"""The traces $\sum_{cc'} H_{cc'} \langle g_c, g_{c'} \rangle$ of the parameters that are understood."""
        width = len(curves[0])
        inside, vectors = self._halves(1)
        ((_, pulled),) = self._gradients(self.taps, torch.cat([self._units, vectors]))
        halves = [gradient[width:] for gradient in pulled]
        units = [gradient[:width] for gradient in pulled]
        blocks: Iterable[tuple[int, list[Tensor]]] = [(0, halves)]
        if not all(_combines(vectors, unit, half, self.draw) for unit, half in zip(units, halves, strict=True)):
            inside, vectors = self._halves(SURE)
            blocks = self._gradients(self.taps, vectors)
        self.understood = self._understood(vectors, inside, blocks)
        found = curved(self.taps, units, curves, self.landscape.shapes)
        return {name: float(each.sum(dtype=torch.float64)) for name, each in found.items() if name in self.understood}

    def _known_taps(self) -> list[Tap]:
        return [tap for tap in self.taps if tap.weight in self.understood or tap.bias in self.understood]

    def _halves(self, count: int) -> tuple[Tensor, Tensor]:
        """Random halves of the samples with what they leave, as ones, and a random block that is zero outside."""
        half = torch.stack([torch.randperm(self.count, generator=self.draw) < self.count // 2 for _ in range(count)])
        inside = torch.cat([half, ~half])[..., None].to(self.outputs)
        vectors = torch.randn((len(inside), *self.outputs.shape), generator=self.draw, dtype=self.outputs.dtype)
        return inside, vectors.to(self.outputs.device) * inside

    @cached_property
    def understood(self) -> set[str]:
        """The parameters whose gradient is what the factors say, sample by sample."""
        if not self.taps:
            return set()
        inside, vectors = self._halves(HALVES)
        return self._understood(vectors, inside, self._gradients(self.taps, vectors))

    def _understood(self, vectors: Tensor, inside: Tensor, blocks: Iterable[tuple[int, list[Tensor]]]) -> set[str]:
        """Where nothing reaches out of a half, and the factors of the sum of all vectors make up its gradient."""
        (whole,) = torch.autograd.grad(self.outputs, self.leaf, vectors.sum(0), retain_graph=True)
        truth = self.landscape.split(whole)
        sums, astray = [torch.zeros_like(tap.made) for tap in self.taps], set()
        for lo, gradients in blocks:
            for tap, total, gradient in zip(self.taps, sums, gradients, strict=True):
                total += gradient.sum(0)
                if _outside(gradient.reshape(len(gradient), self.count, -1), inside[lo : lo + len(gradient)]):
                    astray |= {tap.weight, tap.bias}
        found = factors(self.taps, [total[None] for total in sums], self.count)
        return {
            name
            for name, pairs in found.items()
            if name not in astray and _same(summed(pairs, self.landscape.shapes[name]), truth[name])
        }

    def _at_once(self, size: int) -> int:
        """Vectors that are pulled back together to so many numbers."""
        return max(1, self.memory // (4 * size * self.outputs.element_size()))

    def _gradients(self, taps: list[Tap], vectors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
        """Blocks of vectors pulled back to what the layers made, with the number of their first vector."""
        made = [tap.made for tap in taps]
        back = Pullback(self.outputs.reshape(-1), made)
        width = self._at_once(sum(t.numel() for t in made))
        for lo in range(0, len(vectors), width):
            yield lo, back.apart(vectors[lo : lo + width].reshape(-1, self.outputs.numel()))

    def _one_by_one(self, names: list[str], vectors: Tensor, signs: Tensor) -> dict[str, float]:
        """The traces of some parameters from the Jacobian of each sample, which must add up to that of the batch."""
        draw = torch.randn((1, *self.outputs.shape), generator=self.draw, dtype=self.outputs.dtype).to(vectors)
        jacobians = SampleJacobians(self.landscape, self.parts.calls, names, self.count, self.index)
        totals = dict.fromkeys(names, 0.0)
        sums = {name: torch.zeros(self.landscape.shapes[name]).to(self.outputs) for name in names}
        outputs = []
        for lo, z, rows in jacobians.pulled(torch.cat([vectors, draw]), self.memory // 4):
            outputs.append(z)
            for name, row in zip(names, rows, strict=True):
                norms = row[:, :-1].double().flatten(2).square().sum(2)
                totals[name] += float((norms * signs.T[lo : lo + len(z)]).sum())
                sums[name] += row[:, -1].sum(0)
        (truth,) = torch.autograd.grad(self.outputs, self.leaf, draw[0], retain_graph=True)
        pieces = self.landscape.split(truth)
        agree = all(_same(sums[name], pieces[name]) for name in names)
        if not (agree and _same(torch.cat(outputs), self.outputs.detach())):
            raise ProbeError(APART.format(index=self.index, why="alone, a sample gives another output"))
        return totals


def _eigen(curves: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (k, n, outputs) and signs (k, n) with H_n = the sum over k of sign * vector vector^T."""
    values, q = torch.linalg.eigh(curves.double())
    order = values.abs().argsort(dim=1, descending=True)
    values, q = values.gather(1, order), q.gather(2, order[:, None, :].expand_as(q))
    largest = values.abs().amax(0)
    keep = int((largest > torch.finfo(curves.dtype).eps * largest.amax()).sum())
    vectors = (q * values.abs().sqrt()[:, None, :]).permute(2, 0, 1)[:keep]
    return vectors.to(curves.dtype), values.sign().T[:keep]


def _outside(images: Tensor, inside: Tensor) -> bool:
    """Whether images (k, n, ...) of vectors that are zero outside of some samples are not."""
    return bool((images * (1 - inside)).any())


def _combines(vectors: Tensor, units: Tensor, images: Tensor, draw: torch.Generator) -> bool:
    """Whether images, of these vectors, are those of the units combined sample by sample.

    Both are looked at along one normal vector. It tells any two samples that meet, with probability one, but rounding
    may say so, too: only a yes is trusted.
    """
    size = images.numel() // (len(images) * vectors.shape[1])
    along = torch.randn(size, generator=draw, dtype=images.dtype).to(images.device)
    seen, unit = (rows.reshape(len(rows), -1, size) @ along for rows in (images, units))
    return _same(seen.sum(0), (vectors.sum(0) * unit.T).sum(1))


def _same(found: Tensor, truth: Tensor) -> bool:
    """Whether two thirds of the digits agree: rounding stays below, another function is far above."""
    return float((found - truth).norm()) <= torch.finfo(truth.dtype).eps ** (2 / 3) * float(truth.norm())
