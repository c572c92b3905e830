r"""The density of an operator's eigenvalues: stochastic Lanczos quadrature, the outlying ones taken out first.

A Lanczos run of r vectors Q comes first ($T = QHQ^\top$, $P = I - Q^\top Q$). The spectrum of H is taken as that of
$QHQ^\top$ on the span of Q, r eigenvalues counted once each, beside that of PHP, which random probes $z_p$ measure by
their Gauss quadratures (nodes $\theta_{pj}$ with weights $\tau_{pj}^2$):

$$ \phi = \frac1d \sum_{i\le r} \delta_{\theta_i} + \frac{d-r}{d}\, \frac1m \sum_{p\le m} \sum_j \tau_{pj}^2\,
\delta_{\theta_{pj}} . $$

What is neglected, $H - QQHQQ - PHP$, couples the last Lanczos vector to the next: a matrix of rank two with
eigenvalues $\pm\beta_r$. So no count of eigenvalues below any point is off by more than one, and the Wasserstein
distance by no more than $2\beta_r/d$ (interlacing; Lidskii). The probes then spend nothing on the outliers, which stand
as lines of their own. Error bars of moments are over probes; those of shares and quantiles also hold what so few steps
cannot tell (see `counting`).

Reference: Golub and Meurant (2010) for the quadrature; Lin, Saad and Yang, Approximating spectral densities of large
matrices (2016, arXiv:1308.5467); the deflated form and its bound are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dissensus.probes.counting import share_below
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, from_samples, t_quantile
from dissensus.probes.krylov import Krylov, gaussian, quadrature, rademacher, ritz
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.untouched import undisturbed

LINE = 1e-2
"""A Lanczos value whose residual is at most this share of it is an eigenvalue, and a line if outside the bulk."""
ZERO = 1e-5
"""Nodes within this share of the largest one count as zero, neither positive nor negative."""


@dataclass(frozen=True, eq=False)
class Density:
    """A spectral density as nodes with weights that sum to one; mean and quantiles with their error over probes."""

    size: int
    """d, the number of eigenvalues."""
    lines: np.ndarray
    """Outlying eigenvalues, largest first: each has weight 1/d, and is among `taken`."""
    taken: np.ndarray
    """The Ritz values of the Lanczos run, weight 1/d each."""
    rules: tuple[tuple[np.ndarray, np.ndarray], ...] = field(repr=False)
    """Per probe, nodes and weights (summing to one) of what is left."""
    coupling: float
    """beta_r: the neglected coupling between both parts."""
    num_matvecs: int
    seed: int
    dtype: str
    confidence: float = 0.95

    @property
    def nodes(self) -> np.ndarray:
        """All nodes, ascending."""
        return self._measure[0]

    @property
    def weights(self) -> np.ndarray:
        """Their weights, summing to one."""
        return self._measure[1]

    @property
    def _measure(self) -> tuple[np.ndarray, np.ndarray]:
        share = self._rest / max(len(self.rules), 1)
        nodes = np.concatenate([self.taken, *(n for n, _ in self.rules)])
        weights = np.concatenate([np.full(len(self.taken), 1 / self.size), *(share * w for _, w in self.rules)])
        order = np.argsort(nodes, kind="stable")
        return nodes[order], weights[order]

    @property
    def _rest(self) -> float:
        return 1 - len(self.taken) / self.size

    def mean_of(self, f: Any, name: str) -> Estimate:
        """The mean of f over all eigenvalues, `tr f(H) / d`, for a function f of arrays."""
        known = float(np.sum(f(self.taken))) / self.size if len(self.taken) else 0.0
        samples = [self._rest * float(w @ f(n)) for n, w in self.rules]
        common = {"num_matvecs": self.num_matvecs, "seed": self.seed, "dtype": self.dtype}
        if not samples:  # everything was taken
            return from_samples(name, [known, known], of="probes", confidence=self.confidence, **common)
        return from_samples(name, samples, offset=known, of="probes", confidence=self.confidence, **common)

    def moment(self, power: int) -> Estimate:
        """The mean of the eigenvalues to a power: the first times d is the trace."""
        return self.mean_of(lambda x: x**power, f"moment {power}")

    def cumulative(self, x: float) -> Estimate:
        """The share of eigenvalues up to x; its interval holds sampling and what the quadrature cannot tell."""
        return self._share(f"share of eigenvalues up to {x:.6g}", x)

    def negative_share(self) -> Estimate:
        """The share of eigenvalues below zero by more than a 1e-5th of the largest one."""
        zero = ZERO * float(np.abs(self.nodes).max())
        return self._share("negative share", -zero if zero > 0 else -1.0, zero)

    def quantile(self, share: float) -> Estimate:
        """The value below which a share of the eigenvalues lies; its interval is that of `cumulative`, read across."""
        if not 0 <= share <= 1:
            raise ProbeError(f"share must lie between 0 and 1, got {share!r}; 0.5 is the median eigenvalue")
        x = self.nodes
        low, value, high, error, half = self._shares(x)
        pick = lambda reached: float(x[int(np.argmax(reached))] if reached.any() else x[-1])  # noqa: E731
        found = pick(value >= share - 1e-12)
        ends = pick(high + half >= share), pick(low - half >= share)
        near = pick(value >= share - error), pick(value >= share + error)
        return self._estimate(f"quantile {share:g}", found, (near[1] - near[0]) / 2, ends)

    def _shares(self, x: np.ndarray, atom: float = 0.0) -> tuple[np.ndarray, ...]:
        """Lower bound, value, upper bound, standard error and half-width of the share up to every point."""
        known = np.searchsorted(np.sort(self.taken), x, side="right") / self.size
        m = len(self.rules)
        if m == 0:
            return known, known, known, np.zeros_like(x), np.zeros_like(x)
        low, value, high = (
            self._rest * np.array(part) for part in zip(*(share_below(r, x, atom) for r in self.rules), strict=True)
        )
        error = value.std(axis=0, ddof=1) / math.sqrt(m) if m > 1 else np.full(len(x), math.nan)
        half = t_quantile(self.confidence, m - 1) * error if m > 1 else np.full(len(x), math.inf)
        return known + low.mean(0), known + value.mean(0), known + high.mean(0), error, half

    def _share(self, name: str, x: float, atom: float = 0.0) -> Estimate:
        low, value, high, error, half = (float(part[0]) for part in self._shares(np.array([x]), atom))
        return self._estimate(name, value, error, (max(low - half, 0.0), min(high + half, 1.0)))

    def _estimate(self, name: str, value: float, stderr: float, interval: tuple[float, float]) -> Estimate:
        m = len(self.rules)
        return Estimate(
            name=name,
            value=value,
            stderr=stderr,
            interval=interval,
            interval_method=f"t over {m} probes and the bracket of the quadrature" if m else "exact",
            samples=m,
            num_matvecs=self.num_matvecs,
            seed=self.seed,
            dtype=self.dtype,
            converged=True,
            confidence=self.confidence,
        )

    def curve(self, points: int = 400, *, width: float | None = None, lines: bool = False) -> dict[str, np.ndarray]:
        """The density as a smooth curve: `x`, `density` (Gaussians of `width` about the nodes) and its `stderr`.

        Without `lines` the outlying eigenvalues are left out of curve and grid, and the curve's mass is what remains.
        `width` is by default a hundredth of the range.
        """
        bulk = self.taken if lines else self.taken[~np.isin(self.taken, self.lines)]
        everything = np.concatenate([bulk, *(n for n, _ in self.rules)])
        low, high = (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 0.0)
        reach = high - low or max(abs(high), 1.0)
        sigma = reach / 100 if width is None else width
        if not sigma > 0:
            raise ProbeError(f"width must be positive, got {width!r}; leave it out for a hundredth of the range")
        x = np.linspace(low - 4 * sigma, high + 4 * sigma, points)

        def bells(nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
            return np.exp(-0.5 * ((x[:, None] - nodes) / sigma) ** 2) @ weights / (sigma * math.sqrt(2 * math.pi))

        fixed = bells(bulk, np.full(len(bulk), 1 / self.size))
        each = np.array([self._rest * bells(n, w) for n, w in self.rules]).reshape(-1, points)
        m = len(each)
        error = each.std(axis=0, ddof=1) / math.sqrt(m) if m > 1 else np.full(points, 0.0 if m == 0 else math.nan)
        return {"x": x, "density": fixed + (each.mean(axis=0) if m else 0.0), "stderr": error}

    def curvatures(self, noise: float = 1.0) -> dict[str, Any]:
        """What `theory.stationary.predict(topology, **these, lr=...)` asks for, with noise alike in all directions.

        `noise` is the variance of one worker's gradient per direction; a node stands for as many of them as it weighs.
        """
        nodes, weights = self._measure
        return {
            "curvatures": nodes,
            "noise": noise * self.size * weights,
            "mean_curvature": float(nodes @ weights),
        }

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        nodes, weights = self._measure
        return {
            "size": self.size,
            "nodes": nodes.tolist(),
            "weights": weights.tolist(),
            "lines": self.lines.tolist(),
            "probes": len(self.rules),
            "coupling": self.coupling,
            "negative_share": self.negative_share().to_dict(),
            "mean": self.moment(1).to_dict(),
            "num_matvecs": self.num_matvecs,
            "seed": self.seed,
            "dtype": self.dtype,
        }


@undisturbed()
def spectral_density(
    operator: Operator,
    *,
    probes: int = 4,
    steps: int = 50,
    deflate: int = 100,
    seed: int = 0,
    confidence: float = 0.95,
) -> Density:
    """The density from `deflate + probes * steps` products: first a Lanczos run, then so many steps from each probe.

    `deflate=0` is the plain quadrature. Where the operator is no larger than `deflate`, all eigenvalues come out.
    """
    for name, value, least in (("probes", probes, 1), ("steps", steps, 1), ("deflate", deflate, 0)):
        if value < least:
            raise ProbeError(f"{name} must be at least {least}, got {value}")
    before, generator = operator.products, torch.Generator().manual_seed(seed)
    taken, errors, coupling, basis = np.zeros(0), np.zeros(0), 0.0, None
    if deflate:
        space = Krylov(operator, gaussian(generator, operator))
        while space.steps < min(deflate, operator.size):
            space.extend()
            if space.closed and not space.restart(gaussian(generator, operator)):
                break
        alpha, beta = space.tridiagonal()
        found = ritz(alpha[0], beta[0])
        taken, errors, coupling, basis = found.values, found.residuals, float(beta[0][-1]), space.basis[0]
    rules: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    if len(taken) < operator.size:
        rest = Krylov(operator, rademacher(generator, probes, operator), basis)
        rest.run(min(steps, operator.size - len(taken)))
        rules = tuple(_until_closed(a, b) for a, b in zip(*rest.tridiagonal(), strict=True))
    low, high = (min(n.min() for n, _ in rules), max(n.max() for n, _ in rules)) if rules else (math.inf, -math.inf)
    outside = ((taken < low) | (taken > high)) & (errors <= LINE * np.abs(taken)) if rules else np.zeros(0, bool)
    lines = np.sort(taken[outside])[::-1] if rules else np.zeros(0)
    return Density(
        size=operator.size,
        lines=lines,
        taken=taken,
        rules=rules,
        coupling=coupling,
        num_matvecs=operator.products - before,
        seed=seed,
        dtype=dtype_name(operator.dtype),
        confidence=confidence,
    )


def _until_closed(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The quadrature of a run, which other runs beside it may have outlasted."""
    ends = np.flatnonzero(beta == 0)
    stop = int(ends[0]) + 1 if len(ends) else len(alpha)
    return quadrature(alpha[:stop], beta[:stop])
