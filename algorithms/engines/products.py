r"""The three products of n linear layers at once: all workers in one batched call, or worker by worker in a faster one.

    forward(x, w, b)[i]  = x[i] w[i]^T + b[i]       (n, r, in), (n, out, in), (n, out) -> (n, r, out)
    backward(g, w)[i]    = g[i] w[i]                (n, r, out), (n, out, in)          -> (n, r, in)
    gradient(g, x)[i]    = g[i]^T x[i]              (n, r, out), (n, r, in)            -> (n, out, in)

A batched product is one call, made by the BLAS that torch was built with. Of the two libraries in its builds for x86
that is MKL; the other, oneDNN, takes one product at a time, but was twice as fast at a large one on the AMD processor
where this was measured (others were not). So it pays where a product is worth the call: those of 32 samples by weights
of 784 by 256 took 0.55 of the time.

Which of the two makes a product depends on shapes and on the number of threads alone, never on a clock: a run that is
resumed is the same to the bit. Both add up the same numbers in another order.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

WORTH_A_CALL = 3 << 20
"""Multiplications per thread from which on a product is made alone: a call costs ten microseconds more than a share
of a batched one."""
FAR = 1 << 23
"""So many numbers lie in the memory behind the caches. Several threads write them best when each has rows of its own,
as in a batched product; there a gradient is made alone from twice as many multiplications on."""
FEWEST_ROWS, NARROWEST = 16, 64
"""Products of fewer samples, or of narrower weights, are not faster."""
MARGIN = 1e3
"""Room for rounding between a norm as it is computed and what overflows."""
FEW_ROWS = 48
"""With fewer samples than that the weights go first, and what comes out is turned round."""


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layers' outputs."""
    if not _alone(x, weight):
        across = weight.transpose(1, 2)
        return torch.bmm(x, across) if bias is None else torch.baddbmm(bias[:, None], x, across)
    product = _product()
    if x.shape[1] >= FEW_ROWS:
        offsets = [None] * len(x) if bias is None else bias.unbind()
        return torch.stack([product(a, w, b) for a, w, b in zip(x.unbind(), weight.unbind(), offsets, strict=True)])
    turned = torch.stack([product(w, a, None) for a, w in zip(x.unbind(), weight.unbind(), strict=True)])
    out = turned.transpose(1, 2)
    return out.contiguous() if bias is None else torch.add(out, bias[:, None], out=x.new_empty(out.shape))


def backward(g: Tensor, weight: Tensor) -> Tensor:
    """The gradients of the layers' inputs."""
    if not _alone(g, weight):
        return torch.bmm(g, weight)
    product = _product()
    across = weight.transpose(1, 2).unbind()
    return torch.stack([product(a, w, None) for a, w in zip(g.unbind(), across, strict=True)])


def gradient(g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradients of the weights, written to `out` if it is given, however it lies in memory."""
    across = g.transpose(1, 2)
    out = x.new_empty(len(x), across.shape[1], x.shape[2]) if out is None else out
    shared = torch.get_num_threads() > 1 and out.numel() > FAR
    if not _alone(x, out, 2 if shared else 1):
        return torch.bmm(across, x, out=out)
    product = _product()
    for place, a, b in zip(out.unbind(), across.unbind(), x.transpose(1, 2).unbind(), strict=True):
        place.copy_(product(a, b, None))
    return out


def stays_finite(g: Tensor, x: Tensor) -> bool:
    """Whether `gradient(g, x)` can hold nothing but finite numbers, told without looking at it; "no" says nothing.

    By Cauchy and Schwarz no number in it, nor any sum on the way to it, exceeds the product of the norms of g and x.
    """
    if not (g.is_contiguous() and x.is_contiguous()):
        return False
    of_g, of_x = (math.sqrt(torch.dot(v.view(-1), v.view(-1))) for v in (g, x))
    return of_g * of_x < torch.finfo(g.dtype).max / MARGIN  # a norm that is not a number is smaller than nothing


def _alone(rows: Tensor, weight: Tensor, dear: int = 1) -> bool:
    """Whether the products of these rows and weights are made worker by worker, where a call is so much dearer."""
    r, (out, into) = rows.shape[1], weight.shape[1:]
    return (
        r * out * into >= dear * WORTH_A_CALL * torch.get_num_threads()
        and r >= FEWEST_ROWS
        and min(out, into) >= NARROWEST
        and weight.dtype == rows.dtype == torch.float32
        and weight.device.type == "cpu"
        and _product() is not None
    )


@cache
def _product() -> Any:
    """(a, w, bias) -> a w^T + bias by oneDNN, for matrices laid out in any way; None where that cannot be had."""
    if not torch.backends.mkldnn.is_available() or "AVX512" not in torch.backends.cpu.get_cpu_capability():
        return None
    known = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    call = getattr(known, "default", None)
    return None if call is None else lambda a, w, bias: call(a, w, bias, "none", [], "")
