r"""How unequal the workers' parameter norms are: four measures of the spread of values $a_1..a_n \ge 0$.

With mean m and (population) variance s²: coefficient of variation $s/m$, index of dispersion $s^2/m$ (in the unit
of a), Gini coefficient $\sum_{ij}|a_i-a_j| / (2n^2m)$ in [0, 1 - 1/n], quartile coefficient $(Q_3-Q_1)/(Q_3+Q_1)$ with
linearly interpolated quartiles. All are zero when all values are equal.

Norms are blind to direction: workers with equal norms may be far apart, so read these beside the consensus distance.
Reference: the measures that DBench (arXiv:2509.12213) takes over the norms of the replicas' tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor, nn

from dissensus.probes.disagreement import columns
from dissensus.probes.errors import ProbeError


@dataclass(frozen=True)
class Dispersion:
    """Four measures of how unequal non-negative values are; nan where they are all zero."""

    coefficient_of_variation: float
    index_of_dispersion: float
    gini: float
    quartile_coefficient: float

    def to_dict(self) -> dict[str, float]:
        """A plain dictionary for JSON."""
        return asdict(self)


def dispersion(values: Sequence[float] | np.ndarray) -> Dispersion:
    """The dispersion of non-negative values, one per worker. All zero counts as equal: no dispersion."""
    a = np.sort(np.asarray(values, dtype=np.float64))
    if a.ndim != 1 or len(a) == 0:
        raise ProbeError(f"dispersion wants one value per worker, got shape {a.shape}")
    if not np.isfinite(a).all() or a[0] < 0:
        raise ProbeError(f"dispersion is of finite, non-negative values (norms), got {a[0]:g} to {a[-1]:g}")
    n, m = len(a), float(a.mean())
    if m == 0 or a[0] == a[-1]:
        return Dispersion(0.0, 0.0, 0.0, 0.0)
    s = float(a.std())
    gini = float((2 * np.arange(1, n + 1) - n - 1) @ a) / (n * n * m)
    low, high = np.quantile(a, [0.25, 0.75])
    return Dispersion(s / m, s * s / m, gini, float((high - low) / (high + low)) if high > 0 else 0.0)


def norm_dispersion(x: Tensor, model: nn.Module) -> dict[str, Dispersion]:
    """For every parameter tensor, the dispersion over workers of its 2-norm; x (n, d) holds one worker per row."""
    rows = x.detach().double()
    return {name: dispersion(rows[:, span].norm(dim=1).cpu().numpy()) for name, span in columns(x, model).items()}
