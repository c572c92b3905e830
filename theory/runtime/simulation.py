r"""The mean time of an iteration, by running the recursions: many replicas and a whole grid at once.

The recursions are maxima and sums of whole arrays, (grid, worker, replica), so that the cost per worker and iteration
is a few memory accesses. Random numbers would cost more than all of it: a pool of standard normal scores is drawn,
turned into times once for every distribution, and walked through several times with the workers in other places. Every
value of the grid sees the same scores. Clocks are set back now and then, so that single precision is enough.

The standard error comes from pools, which are independent, not from replicas, which share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.runtime.compute import SCORES, Compute
from dissensus.theory.runtime.recursion import Order, Round, check

POOL = 1 << 20
"""Scores in a pool."""
PASSES = 4
"""How often a pool is walked through."""
POOLS = 8
"""How many pools there are at least: their scatter is the standard error."""
SET_BACK = 64
"""Iterations after which clocks are set back."""
WARM_UP = 0.2
"""The share of iterations before the clock counts."""


@dataclass(frozen=True, eq=False)
class Pace:
    """Mean time of an iteration, by distribution and by factor on the delays: (distributions, factors)."""

    value: np.ndarray
    standard_error: np.ndarray
    iterations: int
    """Counted, of one replica."""
    replicas: int
    seed: int


def pace(
    rounds: Sequence[Round],
    compute: Compute | Sequence[Compute],
    *,
    factors: Sequence[float] = (1.0,),
    order: Order = "awc",
    every: int = 1,
    speeds: np.ndarray | None = None,
    iterations: int = 4000,
    replicas: int | None = None,
    seed: int = 0,
) -> Pace:
    """The mean time of an iteration of a schedule, for every distribution and every factor on its delays.

    Args:
        rounds: one period.
        compute: distributions of computing times.
        factors: what the delays are multiplied by, one after the other, for a curve.
        order: what waits for what.
        every: only every so many-th step exchanges.
        speeds: (n,), how many times as long each worker computes.
        iterations: steps of each replica, the first fifth as warm-up; whole cycles of the schedule are counted. On a
            graph on which news travels slowly (a static ring of a thousand) take as many as there are workers, or the
            mean is that of the beginning.
        replicas: independent copies; by default so many that arrays fill the cache.
        seed: of the scores.
    """
    check(rounds, order, every)
    computes = [compute] if not isinstance(compute, Sequence) else list(compute)
    n, grid = rounds[0].size, np.asarray(factors, dtype=np.float64)
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid).all() and (grid >= 0).all()):
        raise MixingError(f"factors must be finite and not negative, got {list(factors)}")
    if speeds is not None and (np.shape(speeds) != (n,) or not (np.asarray(speeds) > 0).all()):
        raise MixingError(f"speeds must be {n} positive numbers, one for each worker")
    if iterations < 4 * POOLS:
        raise MixingError(f"iterations must be at least {4 * POOLS}, got {iterations}")
    copies = replicas or max(1, min(256, (1 << 15) // (n * len(grid))))
    plan = _Plan(rounds, grid.astype(np.float32), order, every, copies)
    found, errors = np.empty((2, len(computes), len(grid)))
    slowness = None if speeds is None else np.asarray(speeds, dtype=np.float32)[:, None]
    cycle = len(rounds) * every  # whole cycles, or pools would differ in what rounds they have
    warm = -(-int(WARM_UP * iterations) // cycle) * cycle
    counted = max(1, (iterations - warm) // POOLS // cycle) * cycle
    for at, one in enumerate(computes):
        draws = _draws(one, n, copies, slowness, warm, seed, 0)
        plan.reset()
        plan.run(draws, warm)
        blocks = []
        for block in range(POOLS):
            draws = _draws(one, n, copies, slowness, counted, seed, 1 + block)
            blocks.append(plan.run(draws, counted) / counted)
        rates = np.stack(blocks)
        found[at], errors[at] = rates.mean(axis=0), rates.std(axis=0, ddof=1) / np.sqrt(POOLS)
    return Pace(found, errors, POOLS * counted, copies, seed)


def all_reduce_slowest(
    compute: Compute, n: int, *, speeds: np.ndarray | None = None, iterations: int = 4000, seed: int = 0
) -> np.ndarray:
    """Drawn times of the slowest of n workers, for all-reduce among workers of different speeds."""
    slowness = None if speeds is None else np.asarray(speeds, dtype=np.float32)[:, None]
    draws = _draws(compute, n, 1, slowness, iterations, seed)
    return np.array([next(draws).max() for _ in range(iterations)], dtype=np.float64)


class _Plan:
    """The arrays of one run, and one pass over them per iteration."""

    def __init__(self, rounds: Sequence[Round], factors: np.ndarray, order: Order, every: int, copies: int) -> None:
        self._order, self._every, self._k = order, every, 0
        self._now = np.zeros((len(factors), rounds[0].size, copies), np.float32)
        self._latest, self._heard = np.empty_like(self._now), np.empty_like(self._now)
        self._rounds = [(list(_columns(one)), _delays(one, factors)) for one in rounds]

    def reset(self) -> None:
        """All at time 0, before the first step."""
        self._now[...], self._k = 0.0, 0

    def run(self, draws: Iterator[np.ndarray], steps: int) -> np.ndarray:
        """Makes so many steps; by how much the clocks have gone on, mean over workers and replicas, by factor."""
        gone = -self._now.mean(axis=(1, 2), dtype=np.float64)
        for step in range(1, steps + 1):
            c, now = next(draws), self._now
            if (self._k + 1) % self._every:
                now += c
            else:
                columns, delay = self._rounds[self._k // self._every % len(self._rounds)]
                if self._order == "awc":
                    latest = self._waited(columns)
                    latest += delay
                    now += c
                    np.maximum(now, latest, out=now)
                elif self._order == "atc":
                    now += c
                    np.add(self._waited(columns), delay, out=now)
                else:
                    np.add(self._waited(columns), delay, out=now)
                    now += c
            self._k += 1
            if step % SET_BACK == 0:
                back = now.min(axis=(1, 2), keepdims=True)
                now -= back
                gone += back[:, 0, 0]
        return gone + self._now.mean(axis=(1, 2), dtype=np.float64)

    def _waited(self, columns: list[np.ndarray]) -> np.ndarray:
        latest = self._now
        for heard in columns:
            if latest is self._now:
                np.take(self._now, heard, axis=1, out=self._latest, mode="clip")
                np.maximum(self._latest, self._now, out=self._latest)
            else:
                np.take(self._now, heard, axis=1, out=self._heard, mode="clip")
                np.maximum(self._latest, self._heard, out=self._latest)
            latest = self._latest
        if latest is self._now:
            np.copyto(self._latest, self._now)
        return self._latest


def _columns(one: Round) -> Iterator[np.ndarray]:
    """Whom each worker hears, without columns in which everybody hears itself."""
    own = np.arange(one.size)
    return (column for column in one.senders.T if (column != own).any())


def _delays(one: Round, factors: np.ndarray) -> np.ndarray:
    delays = one.delay.astype(np.float32)
    same = delays[:1] if (delays == delays[0]).all() else delays
    return np.ascontiguousarray(factors[:, None, None] * same[None, :, None])


def _draws(
    compute: Compute, n: int, copies: int, slowness: np.ndarray | None, steps: int, *key: int
) -> Iterator[np.ndarray]:
    """Times of n workers in so many copies for so many steps: (n, copies) each."""
    rng, block = np.random.default_rng(key), n * copies
    size, left = max(block, min(POOL, block * steps)), steps
    while left > 0:
        pool = _times(compute, rng.standard_normal(size, dtype=np.float32))
        for again in range(PASSES if size > block else 1):
            if again:  # another beginning, so that other values meet at other workers
                pool = np.roll(pool, int(rng.integers(size)))
            for at in range(0, size - block + 1, block):
                drawn = pool[at : at + block].reshape(n, copies)
                yield drawn if slowness is None else drawn * slowness
                left -= 1
                if left == 0:
                    return


def _times(compute: Compute, scores: np.ndarray) -> np.ndarray:
    """Times at many scores, between those of a table: quantiles of some distributions are slow."""
    table = compute.at(SCORES).astype(np.float32)
    np.multiply(scores - np.float32(SCORES[0]), np.float32(1 / (SCORES[1] - SCORES[0])), out=scores)
    below = scores.astype(np.int32)
    scores -= below
    return table[below] + scores * np.diff(table)[below]
