r"""The gradient noise of one worker's batch, resolved by curvature.

With $g_b$ the gradient of a batch of a worker's size, $g$ the full gradient and
$S = \mathbb E\,(g_b-g)(g_b-g)^\top$, the spectral measure $\mu$ of the noise with respect to H is defined by

$$ \int f\,d\mu = \mathbb E\,(g_b-g)^\top f(H)\,(g_b-g) = \operatorname{tr}(S f(H)) , $$

of total $\operatorname{tr} S$.

Stationary disagreement, envelope and alignment are integrals of closed forms over it. Lanczos started at a vector s
gives the Gauss quadrature of $s^\top f(H)\,s$: after m steps exact for polynomials of degree up to 2m - 1. The starts
are the leading principal directions of the batch noise, $S = \sum_i \sigma_i^2 u_iu_i^\top$, each with its weight
$\sigma_i^2$; the rest of S is met by random sums of what is left, $m^{-1/2}\sum_b \pm(g_b-g)$, whose mean square is
that rest exactly. (Ours; on a trained digit classifier 8 starts leave 1 % error where 8 single noise vectors leave
16 %. The quadrature is Golub and Welsch 1969.)

The gradient noise scale is $B\operatorname{tr}S/\lVert g\rVert^2$ with B the samples in a batch (McCandlish et al.
2018, arXiv:1812.06162, "simple" noise scale).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.probes.curvature import Curvature
from dissensus.probes.disagreement import displacements
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, from_samples, t_quantile
from dissensus.probes.krylov import Krylov, quadrature
from dissensus.probes.landscape import Landscape, Loss, Patterns
from dissensus.probes.operator import Matrix, Operator, dtype_name
from dissensus.probes.untouched import Mode, undisturbed


@dataclass(frozen=True, eq=False)
class NoiseMeasure:
    """The spectral measure of gradient noise: sum_j w_j f(h_j) ~ E[s' f(H) s]."""

    nodes: np.ndarray
    """Curvatures h_j, float64."""
    weights: np.ndarray
    """Their weights w_j >= 0; they add up to `total`."""
    total: float
    """tr S."""
    variance: Estimate
    """tr S with its error, over all batches."""
    gradient_norm2: float
    """‖g‖² of the full gradient (without bias; it may come out negative when noise hides the gradient)."""
    batch_size: int
    """Samples in a batch."""
    principal: int
    """The first rows of nodes.reshape(vectors, -1): principal directions; the rest are random sums."""
    vectors: int
    """How many starts the measure is made of."""

    @property
    def noise_scale(self) -> float:
        """The batch size at which noise and gradient are equally strong; infinite where the gradient is hidden."""
        return self.batch_size * self.total / self.gradient_norm2 if self.gradient_norm2 > 0 else math.inf

    def integral(self, f: Callable[[np.ndarray], np.ndarray], confidence: float = 0.95) -> Estimate:
        """tr(S f(H)) for a function of curvature.

        Its error joins that of tr S (relative, over batches) and that of the random sums (where there are two or more).
        """
        rows = (self.weights * np.asarray(f(self.nodes), dtype=np.float64)).reshape(self.vectors, -1).sum(1)
        rest, value = rows[self.principal :], float(rows.sum())
        stderr = abs(value) * self.variance.stderr / self.total if self.total > 0 else 0.0
        if len(rest) > 1:
            stderr = math.hypot(stderr, math.sqrt(len(rest)) * float(rest.std(ddof=1)))
        half = t_quantile(confidence, self.variance.samples - 1) * stderr
        return replace(
            self.variance,
            name="noise integral",
            value=value,
            stderr=stderr,
            interval=(value - half, value + half),
            interval_method=f"t over {self.variance.samples} batches and {len(rest)} random sums",
            confidence=confidence,
        )

    def compressed(self, count: int) -> NoiseMeasure:
        """The Gauss quadrature of this measure with `count` nodes: the same integrals up to degree 2 count - 1."""
        if count < 1:
            raise ProbeError(f"a measure needs at least one node, got {count}")
        if self.total == 0 or len(self.nodes) <= count:
            return self
        space = Krylov(Matrix(np.diag(self.nodes)), torch.as_tensor(np.sqrt(self.weights))).run(count)
        alpha, beta = space.tridiagonal()
        nodes, weights = quadrature(alpha[0], beta[0])
        return replace(self, nodes=nodes, weights=weights * self.total, vectors=1, principal=1)

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        scale = self.noise_scale
        return {
            "nodes": self.nodes.tolist(),
            "weights": self.weights.tolist(),
            "total": self.total,
            "variance": self.variance.to_dict(),
            "gradient_norm2": self.gradient_norm2,
            "noise_scale": scale if math.isfinite(scale) else None,
            "batch_size": self.batch_size,
            "principal": self.principal,
            "vectors": self.vectors,
        }


def noise_measure(
    model: nn.Module,
    loss: Loss,
    sample_batches: Sequence[Any],
    seed: int = 0,
    *,
    batches: Sequence[Any] | None = None,
    steps: int = 12,
    vectors: int = 8,
    parameters: Patterns = None,
    mode: Mode = "eval",
    dtype: torch.dtype | None = None,
    operator: Operator | None = None,
    confidence: float = 0.95,
) -> NoiseMeasure:
    """The gradient noise at the model's point, of batches the size that one worker sees.

    `sample_batches` are such batches, at least two and all of one size. `batches` is the full data that H and the full
    gradient are taken on; without it the sample batches themselves are, and the bias of sharing them is removed
    (m/(m-1)). `operator` is H where it exists already (at the same point, on the full data). The measure is made of
    `vectors` starts of `steps` Lanczos steps each, scaled so that its total is tr S over all sample batches.
    """
    common: dict[str, Any] = {"parameters": parameters, "mode": mode, "dtype": dtype, "seed": seed}
    workers = Landscape(model, loss, sample_batches, **common)
    if steps < 1 or vectors < 1:
        raise ProbeError(f"steps and vectors must be at least 1, got steps={steps}, vectors={vectors}")
    if len(workers.batches) < 2:
        raise ProbeError("noise is a difference between batches; give at least two sample_batches")
    if max(workers.weights) > min(workers.weights) * (1 + 1e-9):
        raise ProbeError("sample_batches differ in size, and with it in noise; give batches of the size a worker sees")
    gradients = workers.gradients()
    full = workers if batches is None else Landscape(model, loss, batches, **common)
    hessian = operator or Curvature(model, loss, sample_batches if batches is None else batches, **common)
    return measure_of(
        hessian,
        gradients,
        gradients.mean(0) if batches is None else full.gradient(),
        shared=batches is None,
        batch_size=workers.most_samples,
        steps=steps,
        vectors=vectors,
        seed=seed,
        confidence=confidence,
    )


@undisturbed()
def measure_of(
    operator: Operator,
    gradients: Tensor,
    center: Tensor,
    *,
    shared: bool,
    batch_size: int,
    steps: int = 12,
    vectors: int = 8,
    seed: int = 0,
    confidence: float = 0.95,
) -> NoiseMeasure:
    """The measure from batch gradients (m, d) and the full gradient (d,); `shared`: is that their own mean?"""
    m, before = len(gradients), operator.products
    noise = displacements(gradients) if shared else (gradients - center).double()
    squares = noise.square().sum(1).cpu().numpy() * (m / (m - 1) if shared else 1.0)
    starts, energies, principal = _starts(noise, vectors, seed)
    space = Krylov(operator, starts.to(dtype=operator.dtype, device=operator.device))
    if squares.sum() > 0:
        space.run(min(steps, operator.size))
        rules = [quadrature(a, b) for a, b in zip(*space.tridiagonal(), strict=True)]
    else:
        rules = [(np.zeros(1), np.ones(1))] * len(starts)
    energies = energies * (squares.mean() / max(energies.sum(), 1e-300))
    variance = from_samples(
        "gradient noise tr S",
        squares,
        of="batches",
        num_matvecs=operator.products - before,
        seed=seed,
        dtype=dtype_name(operator.dtype),
        confidence=confidence,
    )
    return NoiseMeasure(
        nodes=np.concatenate([nodes for nodes, _ in rules]),
        weights=np.concatenate([part * weights for part, (_, weights) in zip(energies, rules, strict=True)]),
        total=variance.value,
        variance=variance,
        gradient_norm2=float(center.double().square().sum()) - (variance.value / m if shared else 0.0),
        batch_size=batch_size,
        principal=principal,
        vectors=len(starts),
    )


def _starts(noise: Tensor, vectors: int, seed: int) -> tuple[Tensor, np.ndarray, int]:
    """Start vectors (k, d), the share of tr S that each stands for, and how many are principal directions.

    A quarter of the starts (at least two, where there are four or more) goes to random sums of what the principal
    directions leave over; none where they leave nothing over.
    """
    m = len(noise)
    squares, left = torch.linalg.eigh(noise @ noise.T / m)
    squares, left = squares.flip(0).clamp(min=0), left.flip(1)
    rank = int((squares > 1e-12 * squares[0]).sum())
    random = 0 if rank <= vectors else max(vectors // 4, min(2, vectors // 2), 1 if vectors == 1 else 0)
    principal = max(min(rank, vectors) - random, 0)
    directions = left[:, :principal].T @ noise / (m * squares[:principal, None]).sqrt().clamp(min=1e-300)
    energies = squares[:principal].cpu().numpy()
    if random == 0:
        return (directions, energies, principal) if principal else (noise[:1], np.ones(1), 1)
    rest = noise - (noise @ directions.T) @ directions
    bits = torch.randint(0, 2, (random, m), generator=torch.Generator().manual_seed(seed))
    sums = (2 * bits - 1).to(noise) @ rest / m**0.5
    parts = sums.square().sum(1).cpu().numpy()
    left_over = float(squares[principal:].sum())
    return torch.cat([directions, sums]), np.concatenate([energies, parts * left_over / parts.sum()]), principal
