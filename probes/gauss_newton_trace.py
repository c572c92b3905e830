r"""The trace of the Gauss-Newton matrix, exactly, at one backward pass for each output of the model.

Where samples do not interact, $\operatorname{tr} J^\top HJ = \sum_n \operatorname{tr} J_n^\top H_n J_n = \sum_{nc}
\lambda_{nc} \lVert J_n^\top q_{nc}\rVert^2$ with the eigenpairs $\lambda, q$ of $H_n$, the Hessian of the loss by the
outputs of sample n. One backward pass takes $q_{nc}$ of all samples together; the norms of the samples' gradients then
come from what the layers read and what reached them (see `taps`), and no gradient of a sample is formed. Parameters
used in another way are differentiated sample by sample with `vmap`.

All that is checked, on random vectors: that no sample reaches another (BatchNorm in training does), and that the
factors add up to the gradient that autograd finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from dissensus.probes.taps import Tap, Taps, factors, squares, summed
from dissensus.probes.untouched import undisturbed

MOST_OUTPUTS = 256
"""Outputs of a sample beyond which the exact trace is refused: each is a backward pass through all data."""

HALVES = 4
"""Random halves of the samples between which nothing may pass."""

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
        vectors, signs = self._factors()
        self.passes = len(vectors)
        totals = dict.fromkeys(self.landscape.names, 0.0)
        if not len(vectors):
            return totals
        known = self.understood
        taps = [tap for tap in self.taps if tap.weight in known or tap.bias in known]
        if taps:
            for lo, gradients in self._gradients(taps, vectors):
                for name, pairs in factors(taps, gradients, self.count).items():
                    if name in known:
                        found = squares(pairs, self.landscape.shapes[name])
                        totals[name] += float((found.double() * signs[lo : lo + len(found)]).sum())
        rest = [name for name in self.landscape.names if name not in known]
        if rest:
            for name, value in self._one_by_one(rest, vectors, signs).items():
                totals[name] = value
        return totals

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Vectors (k, n, outputs) and signs (k, n) with H_n = the sum over k of sign * vector vector^T."""
        width, dtype = self.outputs.shape[1], self.outputs.dtype
        slopes = torch.autograd.grad(self.parts.loss, self.parts.free, create_graph=True, materialize_grads=True)
        slope = torch.cat([s.reshape(self.count, -1) for s in slopes], 1)
        if not slope.requires_grad:  # the loss is linear in the outputs
            return self.outputs.new_zeros(0, self.count, width), self.outputs.new_zeros(0, self.count)
        half, vectors = self._halves()
        units = torch.eye(width, dtype=dtype, device=self.outputs.device)[:, None, :].expand(width, self.count, width)
        flat = Pullback(slope.reshape(-1), self.parts.free)(torch.cat([units, vectors]).flatten(1))
        pieces = [
            piece.reshape(len(flat), self.count, -1) for piece in flat.split([w * self.count for w in self.widths], 1)
        ]
        images = torch.cat(pieces, 2)
        for inside, image in zip(half, images[width:], strict=True):
            if image[~inside].any():
                raise ProbeError(
                    f"the loss of batch {self.index} has curvature between samples, so its trace is no sum over them; "
                    "use hessian_trace on the operator"
                )
        blocks = images[:width].double().permute(1, 0, 2)  # rows of all H_n
        blocks = (blocks + blocks.mT) / 2
        values, q = torch.linalg.eigh(blocks)
        order = values.abs().argsort(dim=1, descending=True)
        values, q = values.gather(1, order), q.gather(2, order[:, None, :].expand_as(q))
        largest = values.abs().amax(0)
        keep = int((largest > torch.finfo(dtype).eps * largest.amax()).sum())
        vectors = (q * values.abs().sqrt()[:, None, :]).permute(2, 0, 1)[:keep]
        return vectors.to(dtype), values.sign().T[:keep]

    def _halves(self) -> tuple[Tensor, Tensor]:
        """Random halves of the samples, and a random block that is zero outside of them."""
        half = torch.stack([torch.randperm(self.count, generator=self.draw) < self.count // 2 for _ in range(HALVES)])
        half = torch.cat([half, ~half])
        vectors = torch.randn((len(half), *self.outputs.shape), generator=self.draw, dtype=self.outputs.dtype)
        return half.to(self.outputs.device), (vectors * half[..., None]).to(self.outputs.device)

    def _reaching(self) -> set[int]:
        """The taps where what a layer made for one sample reaches the outputs of another, by their number."""
        half, vectors = self._halves()
        found = set()
        for lo, gradients in self._gradients(self.taps, vectors):
            for number, gradient in enumerate(gradients):
                outside = ~half[lo : lo + len(gradient)]
                if gradient.reshape(len(gradient), self.count, -1)[outside].any():
                    found.add(number)
        return found

    @cached_property
    def understood(self) -> set[str]:
        """The parameters whose gradient is what the factors say."""
        if not self.taps:
            return set()
        astray = {name for number in self._reaching() for name in (self.taps[number].weight, self.taps[number].bias)}
        u = torch.randn(self.outputs.shape, generator=self.draw, dtype=self.outputs.dtype).to(self.outputs.device)
        made = [tap.made for tap in self.taps]
        *gradients, whole = torch.autograd.grad(
            self.outputs, [*made, self.leaf], u, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        pieces = self.landscape.split(whole)
        found = factors(self.taps, [gradient[None] for gradient in gradients], self.count)
        return {
            name
            for name, pairs in found.items()
            if name not in astray and _same(summed(pairs, self.landscape.shapes[name]), pieces[name])
        }

    def _gradients(self, taps: list[Tap], vectors: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
        """Blocks of vectors pulled back to what the layers made, with the number of their first vector."""
        made = [tap.made for tap in taps]
        sizes = [t.numel() for t in made]
        back = Pullback(self.outputs.reshape(-1), made)
        width = max(1, self.memory // (4 * sum(sizes) * self.outputs.element_size()))
        for lo in range(0, len(vectors), width):
            rows = back(vectors[lo : lo + width].reshape(-1, self.outputs.numel()))
            yield (
                lo,
                [row.reshape(len(rows), *t.shape) for row, t in zip(rows.split(sizes, 1), made, strict=True)],
            )

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


def _same(found: Tensor, truth: Tensor) -> bool:
    """Whether two thirds of the digits agree: rounding stays below, another function is far above."""
    return float((found - truth).norm()) <= torch.finfo(truth.dtype).eps ** (2 / 3) * float(truth.norm())
