r"""When every worker ends every step: max-plus recursions, exact.

$c_i(k)$ is how long worker i computes in step k, $e_i(k)$ when it has ended k steps ($e_i(0) = 0$), $S_i(k)$ itself and
those it hears in step k, $d_i(k)$ how long that exchange takes once all of them are ready for it:

| order | $e_i(k+1)$ |
|---|---|
| awc | $\max\bigl(e_i(k) + c_i(k),\ \max_{j\in S_i(k)} e_j(k) + d_i(k)\bigr)$: exchange and computing side by side |
| atc | $\max_{j\in S_i(k)}\bigl(e_j(k) + c_j(k)\bigr) + d_i(k)$ |
| cta | $\max_{j\in S_i(k)} e_j(k) + d_i(k) + c_i(k)$ |
| all-reduce | $\max_j\bigl(e_j(k) + c_j(k)\bigr) + g$, the same for all |

A worker that hears nobody in a round waits for nobody. All-reduce that overlaps sends B equal buckets one after
another, bucket b once everybody has done the share $f + (1-f)b/B$ of its computing; the last of them is done at

$$ \max\Bigl(\max_j c_j + \tfrac gB,\ \bigl(f + \tfrac{1-f}B\bigr)\max_j c_j + g\Bigr), $$

because bucket b, if those after it never wait, is the reason for $r_b \max c + (B-b+1)g/B$, which is linear in b. Where
buckets are not alike, it is the largest of these.

The recursions are ours (what the literature says of its own was not to be had); `dissensus.testing` holds an
event-driven simulation that knows none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dissensus.theory.errors import MixingError

Order = Literal["awc", "atc", "cta"]
Buckets = int | Sequence[tuple[float, float]]
"""How many equal buckets, or of each the share of computing after which it is ready and its share of the bytes."""
ORDERS: tuple[Order, ...] = ("awc", "atc", "cta")


@dataclass(frozen=True, eq=False)
class Round:
    """Who waits for whom in one round of exchange, and how long it takes them."""

    senders: np.ndarray
    """(n, m): whom each worker hears, padded with its own number."""
    delay: np.ndarray
    """(n,): how long the exchange of each takes once all in it are ready; 0 for who hears nobody."""

    def __post_init__(self) -> None:
        senders, delay = (
            np.atleast_2d(np.asarray(self.senders, dtype=np.intp)),
            np.asarray(self.delay, dtype=np.float64),
        )
        n = len(senders)
        delay = np.full(n, float(delay)) if delay.ndim == 0 else delay
        if delay.shape != (n,):
            raise MixingError(f"a round of {n} workers needs one delay for each, got shape {delay.shape}")
        if n and (senders.min() < 0 or senders.max() >= n):
            raise MixingError(
                f"a round of {n} workers hears workers 0 to {n - 1}, got {senders.min()} to {senders.max()}"
            )
        if not (np.isfinite(delay).all() and (delay >= 0).all()):
            raise MixingError(
                f"delays must be finite and not negative, got {delay[~(np.isfinite(delay) & (delay >= 0))][0]}"
            )
        alone = (senders == np.arange(n)[:, None]).all(axis=1)
        object.__setattr__(self, "senders", senders)
        object.__setattr__(self, "delay", np.where(alone, 0.0, delay))

    @property
    def size(self) -> int:
        """How many workers."""
        return len(self.senders)

    @property
    def heard(self) -> int:
        """For how many the busiest worker waits, itself included."""
        return max(len({i, *row}) for i, row in enumerate(self.senders.tolist()))

    def latest(self, times: np.ndarray) -> np.ndarray:
        """For every worker the latest of its own time and those of whom it hears; workers are the last axis."""
        found = times
        for column in self.senders.T:
            found = np.maximum(found, times[..., column])
        return found


def finish_times(rounds: Sequence[Round], computed: np.ndarray, *, order: Order = "awc", every: int = 1) -> np.ndarray:
    """When each worker has ended each step: (K + 1, n), row 0 zeros.

    Args:
        rounds: one period; the exchanging steps take them in turn.
        computed: (K, n), how long worker i computes in step k.
        order: what waits for what.
        every: only every so many-th step exchanges, the last of each so many.
    """
    check(rounds, order, every)
    check_computed(computed)
    steps, n = computed.shape
    if n != rounds[0].size:
        raise MixingError(f"computed has {n} workers and the rounds have {rounds[0].size}")
    ended = np.zeros((steps + 1, n))
    for k in range(steps):
        now, c = ended[k], computed[k]
        if (k + 1) % every:
            ended[k + 1] = now + c
            continue
        this = rounds[k // every % len(rounds)]
        if order == "awc":
            ended[k + 1] = np.maximum(now + c, this.latest(now) + this.delay)
        elif order == "atc":
            ended[k + 1] = this.latest(now + c) + this.delay
        else:
            ended[k + 1] = this.latest(now) + this.delay + c
    return ended


def all_reduce_times(
    communication: float, computed: np.ndarray, *, begins: float | None = None, buckets: Buckets = 1
) -> np.ndarray:
    """When all have ended each step of all-reduce: (K + 1,). `begins` is the share of computing before any is sent."""
    check_computed(computed)
    return np.concatenate([[0.0], np.cumsum(all_reduce_step(computed.max(axis=1), communication, begins, buckets))])


def all_reduce_step(slowest: np.ndarray, communication: float, begins: float | None, buckets: Buckets) -> np.ndarray:
    """How long a step takes in which the slowest computes so long."""
    if not (np.isfinite(communication) and communication >= 0):
        raise MixingError(f"communication must be finite and not negative, got {communication}")
    if not isinstance(buckets, int):
        ready, shares = np.array(buckets, dtype=np.float64).T
        if ready.min() < 0 or ready.max() > 1 or shares.min() < 0 or not np.isclose(shares.sum(), 1.0):
            raise MixingError(f"buckets are ready after shares in [0, 1] and have shares that sum to 1, got {buckets}")
        after = np.cumsum(shares[::-1])[::-1]
        return np.max([r * slowest + communication * rest for r, rest in zip(ready, after, strict=True)], axis=0)
    if begins is None:
        return slowest + communication
    if not (0 <= begins <= 1 and buckets >= 1):
        raise MixingError(
            f"all-reduce begins after a share in [0, 1] of computing, in >= 1 buckets, got {begins}, {buckets}"
        )
    first = begins + (1 - begins) / buckets
    return np.maximum(slowest + communication / buckets, first * slowest + communication)


def check_computed(computed: np.ndarray) -> None:
    """Refuses what are no computing times."""
    if computed.ndim != 2 or not (np.isfinite(computed).all() and (computed >= 0).all()):
        raise MixingError(
            f"computed must be (steps, workers), finite and not negative, got shape {computed.shape} "
            f"with {np.count_nonzero(~(computed >= 0))} values that are not"
        )


def check(rounds: Sequence[Round], order: str, every: int) -> None:
    """Refuses what is no schedule."""
    if not rounds:
        raise MixingError("a schedule needs at least one round")
    if len({one.size for one in rounds}) > 1:
        raise MixingError(f"the rounds have different numbers of workers: {sorted({one.size for one in rounds})}")
    if order not in ORDERS:
        raise MixingError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if every < 1:
        raise MixingError(f"every must be at least 1, got {every}")
