r"""The Frobenius norm of an operator from its products: $\lVert H\rVert_F^2 = \mathbb E\,\lVert Hz\rVert^2$.

With Q orthonormal rows and $P = I - Q^\top Q$, $\lVert H\rVert_F^2 = \lVert HQ^\top\rVert_F^2 + \mathbb E\,\lVert HPz
\rVert^2$ exactly, so a short Lanczos run takes out the outliers that make the norm and its noise. The interval is made
for the square and its ends are rooted; the target is for the norm itself.

Reference: the estimator is Hutchinson's (1990) for H squared.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from dissensus.probes.estimate import Estimate
from dissensus.probes.krylov import Krylov, gaussian, rademacher
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.sampling import FIRST_LOT, Drawn, Target, check_budget, check_rtol, draw_until, estimate
from dissensus.probes.untouched import undisturbed

DEFLATE = 20
"""Lanczos vectors taken out first, on at most a third of the budget."""


@undisturbed()
def frobenius_norm(
    operator: Operator, *, rtol: float = 0.05, max_matvecs: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Estimate:
    """The Frobenius norm to a relative accuracy `rtol`, or as good as `max_matvecs` products make it."""
    check_rtol(rtol)
    check_budget(max_matvecs, FIRST_LOT, "frobenius")
    before, signs = operator.products, torch.Generator().manual_seed(seed)
    space = Krylov(operator, gaussian(torch.Generator().manual_seed(seed + 0x5EED), operator))
    known, scale = 0.0, 0.0  # squares are taken of numbers near one: 1e-30 squared is nothing in float32
    rank = min(DEFLATE, max_matvecs // 3, max_matvecs - FIRST_LOT, operator.size)
    lengths: list[float] = []
    while space.steps < rank and not space.closed:
        lengths.append(float(torch.linalg.vector_norm(space.extend().double())))
    basis = space.basis[0] if space.steps else None
    scale = max(lengths, default=0.0) or 1.0
    known = float(np.square(np.array(lengths) / scale).sum())

    def draw(count: int) -> tuple[np.ndarray, float]:
        z = rademacher(signs, count, operator)
        z = z if basis is None else z - (z @ basis.T) @ basis
        found = (operator.matvec(z).double() / scale).square().sum(1).cpu().numpy()
        return found, float(found.mean())

    left = lambda: max_matvecs - (operator.products - before)  # noqa: E731
    # a relative error of the norm is half of that of its square, to first order; a little less to be safe
    target = Target((1 - rtol / 2) * 2 * rtol if rtol < 1 else rtol, confidence, left, 1, 0.0)
    drawn = draw_until(Drawn(target, known), draw)
    spent, dtype = operator.products - before, dtype_name(operator.dtype)
    square = estimate(drawn, "Frobenius norm", num_matvecs=spent, seed=seed, dtype=dtype)
    root = math.sqrt(max(square.value, 0.0))
    low, high = (scale * math.sqrt(max(end, 0.0)) for end in square.interval)
    floor = torch.finfo(operator.dtype).eps * scale * root
    return replace(
        square,
        value=scale * root,
        stderr=max(scale * square.stderr / (2 * root), floor) if root > 0 else 0.0,
        interval=(min(low, scale * root - floor), max(high, scale * root + floor)),
        converged=(high - low) / 2 <= rtol * scale * root,
        notes=(f"method: random signs after deflating {space.steps} Lanczos vectors",),
    )
