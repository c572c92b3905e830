r"""The trace of an operator from its products: Hutchinson's estimator, what makes it noisy taken out first.

For independent random signs z, $\mathbb E\, z^\top H z = \operatorname{tr} H$, with variance
$2(\lVert H\rVert_F^2 - \sum_i H_{ii}^2)$: a few outlying eigenvalues make all the noise. With Q an orthonormal basis
of a Krylov space ($T = Q^\top H Q$) and $P = I - QQ^\top$

$$ \operatorname{tr} H = \operatorname{tr} T + \mathbb E\, (Pz)^\top H (Pz) , $$

where the first part is exact and the second no longer sees the outliers. A handful of pilot probes tells, for every
size of Q and without further products, how many probes the target would take; Q grows as long as that pays. The
estimate is then made of fresh probes: had the pilot a say in it, the size of Q would have been chosen where the pilot's
spread is small by accident, and nominal 95 % intervals would hold in 84 to 92 % of cases.

Sampling stops when the half-width of the t-interval is at most `rtol` times the value, or at `max_matvecs`; never on
the difference of consecutive means. Reference for the deflation: Chen and Hallman, Krylov-aware stochastic trace
estimation (2023, arXiv:2205.01736); sharing the pilot probes and the rule for the size of Q are ours.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, exact, from_samples, t_quantile
from dissensus.probes.krylov import Krylov, gaussian, rademacher
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.untouched import undisturbed

Method = Literal["auto", "hutchinson", "deflated", "exact"]
PILOT = 10
"""Probes that choose the size of Q."""
LEAST = 12
"""The least number of probes that an interval is made of."""
PATIENCE = 10
"""Lanczos steps without a better forecast after which Q has grown enough."""


@undisturbed()
def hessian_trace(
    operator: Operator,
    *,
    rtol: float = 0.05,
    max_matvecs: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    confidence: float = 0.95,
    name: str = "trace",
) -> Estimate:
    """The trace to a relative accuracy `rtol`, or as good as `max_matvecs` products make it (`converged` says which).

    `auto` deflates, and takes one product per coordinate instead where that is cheaper; the method that was used stands
    in `notes`. A trace near zero (an indefinite operator) may never reach a relative target.
    """
    if method not in ("auto", "hutchinson", "deflated", "exact"):
        raise ProbeError(f"unknown method {method!r}; there are 'auto', 'hutchinson', 'deflated', 'exact'")
    if not rtol > 0:
        raise ProbeError(f"rtol must be positive, got {rtol!r}; 0.05 means a twentieth of the trace")
    pilot = 0 if method == "hutchinson" else PILOT
    by_coordinates = method == "exact" or (method == "auto" and operator.size <= PILOT + LEAST)
    least = operator.size if by_coordinates else pilot + LEAST
    if max_matvecs < least:
        raise ProbeError(f"max_matvecs={max_matvecs} is too few for method {method!r}; allow at least {least} products")
    before = operator.products
    if by_coordinates:
        return _coordinates(operator, name, before)
    run = _Run(operator, rtol, max_matvecs, seed, confidence, before)
    if pilot:
        ahead = run.deflate()
        if method == "auto" and ahead >= operator.size and run.left() >= operator.size:
            return replace(_coordinates(operator, name, before), confidence=confidence)
    used = f"method: Hutchinson after deflating {run.rank} Lanczos vectors" if run.rank else "method: Hutchinson"
    return run.finish(name, used)


@undisturbed()
def layer_traces(
    operator: Operator, pieces: dict[str, int], *, probes: int = 32, seed: int = 0, confidence: float = 0.95
) -> dict[str, Estimate]:
    r"""The trace of every diagonal block from the same products: $z_l^\top (Hz)_l$ for each named piece l of a row.

    `pieces` maps names to lengths in the order of the row, for a Curvature `{k: s.numel() for k, s in
    op.landscape.shapes.items()}`.
    """
    if sum(pieces.values()) != operator.size:
        raise ProbeError(
            f"pieces cover {sum(pieces.values())} of {operator.size} parameters; name all of them in order"
        )
    if probes < 2:
        raise ProbeError(f"probes must be at least 2 to have a spread, got {probes}")
    before = operator.products
    z = rademacher(torch.Generator().manual_seed(seed), probes, operator)
    products = (z * operator.matvec(z)).double()
    sums = [piece.sum(1).cpu().numpy() for piece in products.split(list(pieces.values()), dim=1)]
    common = {"num_matvecs": operator.products - before, "seed": seed, "dtype": dtype_name(operator.dtype)}
    return {
        key: from_samples(f"trace of {key}", s, of="probe vectors", confidence=confidence, **common)
        for key, s in zip(pieces, sums, strict=True)
    }


class _Run:
    """The deflated space, the probes drawn in it so far, and what is left of the budget."""

    def __init__(self, operator: Operator, rtol: float, budget: int, seed: int, confidence: float, before: int) -> None:
        self.operator, self.rtol, self.budget, self.seed, self.confidence = operator, rtol, budget, seed, confidence
        self.before, self.rank, self.known = before, 0, 0.0
        self.samples = self.pilot = np.empty(0)
        self._signs = torch.Generator().manual_seed(seed)
        self._space: Krylov | None = None

    def left(self) -> int:
        return self.budget - (self.operator.products - self.before)

    def deflate(self) -> float:
        """Grows Q while (its products + the probes then needed) falls, spending at most a third of the budget.

        With a = Qz and b = (HQ)z the pilot probes are deflated without new products:
        (Pz)'H(Pz) = z'Hz - 2 a'b + a'Ta. Returns how many probes are needed by that forecast.
        """
        pilot = rademacher(self._signs, PILOT, self.operator)
        plain = _forms(pilot, self.operator.matvec(pilot))
        space = Krylov(self.operator, gaussian(torch.Generator().manual_seed(self.seed + 0x5EED), self.operator))
        heads, images = [], []
        ahead = self._needed(plain, 0.0)
        best, best_rank = ahead, 0
        limit = min(self.budget // 3, self.operator.size - 1, self.left() - LEAST)
        while space.steps < limit and not space.closed:
            if space.steps + 1 + LEAST >= best + best_rank or space.steps - best_rank >= PATIENCE:
                break
            image = space.extend()[0]
            heads.append((pilot @ space.newest[0]).double().cpu().numpy())
            images.append((pilot @ image).double().cpu().numpy())
            alpha, beta = space.tridiagonal()
            a, b = np.stack(heads, 1), np.stack(images, 1)
            ta = alpha[0] * a
            ta[:, 1:] += beta[0, :-1] * a[:, :-1]
            ta[:, :-1] += beta[0, :-1] * a[:, 1:]
            self.pilot = plain - 2 * (a * b).sum(1) + (a * ta).sum(1)
            self.known, self.rank, self._space = float(alpha.sum()), space.steps, space
            ahead = self._needed(self.pilot, self.known)
            if ahead + space.steps < best + best_rank:
                best, best_rank = ahead, space.steps
        return ahead

    def finish(self, name: str, used: str) -> Estimate:
        """Draws probes until the interval is narrow enough or the budget is spent."""
        basis = None if self._space is None else self._space.basis[0]
        while not self._narrow() and self.left() > 0:
            count = min(max(len(self.samples) // 4, LEAST if len(self.samples) == 0 else 4), self.left())
            z = rademacher(self._signs, count, self.operator)
            if basis is not None:
                z = z - (z @ basis.T) @ basis
            self.samples = np.concatenate([self.samples, _forms(z, self.operator.matvec(z))])
        return from_samples(
            name,
            self.samples,
            of="probe vectors",
            num_matvecs=self.operator.products - self.before,
            seed=self.seed,
            dtype=dtype_name(self.operator.dtype),
            offset=self.known,
            confidence=self.confidence,
            converged=self._narrow(),
            notes=(used,),
        )

    def _needed(self, pilot: np.ndarray, known: float) -> float:
        """How many probes the target takes if they spread like these."""
        value, spread = abs(known + float(pilot.mean())), float(pilot.std(ddof=1))
        if spread == 0:
            return LEAST
        return max((2 * spread / (self.rtol * value)) ** 2, LEAST) if value > 0 else math.inf

    def _narrow(self) -> bool:
        m = len(self.samples)
        if m < 2:
            return False
        half = t_quantile(self.confidence, m - 1) * float(self.samples.std(ddof=1)) / math.sqrt(m)
        return half <= self.rtol * abs(self.known + float(self.samples.mean()))


def _forms(z: Tensor, image: Tensor) -> np.ndarray:
    """The quadratic forms of the rows."""
    return (z.double() * image.double()).sum(1).cpu().numpy()


def _coordinates(operator: Operator, name: str, before: int) -> Estimate:
    """The sum of the diagonal, a product per coordinate, sixteen at a time."""
    total = 0.0
    for start in range(0, operator.size, 16):
        width = min(16, operator.size - start)
        units = torch.zeros(width, operator.size, dtype=operator.dtype, device=operator.device)
        units[torch.arange(width), start + torch.arange(width)] = 1
        total += float(_forms(units, operator.matvec(units)).sum())
    spent, dtype = operator.products - before, dtype_name(operator.dtype)
    return exact(name, total, num_matvecs=spent, dtype=dtype, notes=("method: one product per coordinate",))
