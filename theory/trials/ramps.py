r"""Functions of one variable whose derivative is a broken line: every worst case of the descent bounds can be built so.

Worker i's derivative is given at knots, straight between them and constant outside, so that values, minima,
smoothness and the largest heterogeneity are exact: squares of straight lines are largest at the knots.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dissensus.theory.trials.base import Draws


@dataclass(frozen=True, eq=False)
class Ramps:
    """One broken line per worker, on common knots."""

    knots: np.ndarray
    """(m,), ascending."""
    heights: np.ndarray
    """(n, m): every worker's derivative there."""
    size: int = field(init=False)
    dimension: int = field(init=False)
    smoothness: float = field(init=False)
    _areas: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gaps = np.diff(self.knots)
        rises = np.diff(self.heights, axis=1)
        areas = np.cumsum(0.5 * gaps * (self.heights[:, 1:] + self.heights[:, :-1]), axis=1)
        object.__setattr__(self, "size", len(self.heights))
        object.__setattr__(self, "dimension", 1)
        object.__setattr__(self, "smoothness", float(np.abs(rises / gaps).max()))
        object.__setattr__(self, "_areas", np.concatenate([np.zeros((self.size, 1)), areas], axis=1))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Each worker's derivative at its own point."""
        return self._lines(np.asarray(x)[..., 0])[1][..., None]

    def values(self, x: np.ndarray) -> np.ndarray:
        """Areas under the line from the first knot: whole pieces, and the part of the last."""
        x = np.asarray(x)[..., 0]
        at, here = self._lines(x)
        worker = np.broadcast_to(np.arange(self.size), x.shape)
        inside = np.clip(x, self.knots[0], self.knots[-1])
        part = 0.5 * (self.heights[worker, at] + here) * (inside - self.knots[at])
        return self._areas[worker, at] + part + here * (x - inside)

    def _lines(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which piece each point lies on, and the derivative there."""
        inside = np.clip(x, self.knots[0], self.knots[-1])
        at = np.clip(np.searchsorted(self.knots, inside, side="right") - 1, 0, len(self.knots) - 2)
        worker = np.broadcast_to(np.arange(self.size), x.shape)
        left, right = self.heights[worker, at], self.heights[worker, at + 1]
        share = (inside - self.knots[at]) / (self.knots[at + 1] - self.knots[at])
        return at, left + share * (right - left)

    @property
    def heterogeneity(self) -> float:
        """The largest mean square of the derivatives about their mean, over the whole line."""
        return float(np.max(np.mean((self.heights - self.heights.mean(axis=0)) ** 2, axis=0)))

    @property
    def minimisers(self) -> tuple[float, float]:
        """The two ends of the set of minimisers of a convex F."""
        slope = self.heights.mean(axis=0)
        flat = np.abs(slope) <= 1e-13
        if flat.any():
            return float(self.knots[flat][0]), float(self.knots[flat][-1])
        return self.minimum[0], self.minimum[0]

    @property
    def minimum(self) -> tuple[float, float]:
        """The lowest point of F (the first, where there are many) and its value; F must not fall for ever."""
        slope, area = self.heights.mean(axis=0), self._areas.mean(axis=0)
        points, values = list(self.knots), list(area)
        for j in range(len(self.knots) - 1):
            if slope[j] * slope[j + 1] < 0.0:
                step = -slope[j] * (self.knots[j + 1] - self.knots[j]) / (slope[j + 1] - slope[j])
                points.append(self.knots[j] + step)
                values.append(area[j] + 0.5 * slope[j] * step)
        lowest = int(np.argmin(values))
        return float(points[lowest]), float(values[lowest])


def huber(size: int, *, slope: float, smoothness: float) -> Ramps:
    """The same Huber function on every worker: slope constant but for a parabola about zero."""
    width = slope / smoothness
    return Ramps(np.array([-width, width]), np.tile([-slope, slope], (size, 1)))


def random_ramps(draws: Draws, size: int, *, convex: bool, heterogeneity: float) -> Ramps:
    """Broken lines of smoothness at most 1 with mean derivative zero at zero; convex ones have their minimum there.

    Args:
        draws: where the numbers come from.
        size: workers.
        convex: rising lines only.
        heterogeneity: mean square of the derivatives at zero.
    """
    rng = draws.generator()
    pieces = 2 + int(rng.integers(5))
    knots = np.sort(rng.uniform(-2.0, 2.0, pieces) * draws.real(0.1, 2.0))
    knots = np.concatenate([[knots[0] - 0.5], knots, [knots[-1] + 0.5]])
    steepness = rng.uniform(0.0 if convex else -1.0, 1.0, (size, len(knots) - 1))
    if draws.choice([True, False]):
        steepness = np.where(steepness > 0.5, 1.0, 0.0 if convex else np.where(steepness < -0.5, -1.0, 0.0))
    steepness[0, 0] = 1.0
    heights = np.concatenate([np.zeros((size, 1)), np.cumsum(steepness * np.diff(knots), axis=1)], axis=1)
    at_zero = np.array([np.interp(0.0, knots, row) for row in heights])
    spread = rng.normal(size=size)
    spread -= spread.mean()
    scale = np.sqrt(np.mean(spread**2))
    heights += (spread * (np.sqrt(heterogeneity) / scale if scale > 0.0 else 0.0) - at_zero)[:, None]
    return Ramps(*_walled(knots, heights))


def _walled(knots: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with a common ramp of steepness one at either end where F would fall for ever."""
    left, right = max(0.0, heights[:, 0].mean()), max(0.0, -heights[:, -1].mean())
    if left > 1e-12:
        knots = np.concatenate([[knots[0] - left], knots])
        heights = np.concatenate([heights[:, :1] - left, heights], axis=1)
    if right > 1e-12:
        knots = np.concatenate([knots, [knots[-1] + right]])
        heights = np.concatenate([heights, heights[:, -1:] + right], axis=1)
    return knots, heights
