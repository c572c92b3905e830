r"""How long a worker remembers that it went its own way: the four sums through which W enters every descent bound.

From an equal start the disagreement of decentralized SGD is a sum over the past, $E_t = -\alpha\sum_{s<t}P_{t,s}G_s$,
with the propagators

$$ P_{t,s} = W_{t-1}\cdots W_{s+1} - J \ \text{(awc)}, \qquad P_{t,s} = W_{t-1}\cdots W_s - J \ \text{(atc)}, $$

where an empty product is the identity (what it acts on has no mean). What a bound over K steps needs of them is

$$ \Gamma = \sqrt{\max_t\sum_{s}\lVert P_{t,s}\rVert \cdot \max_s\sum_{t}\lVert P_{t,s}\rVert}, \quad
   R^2 = \frac1K\sum_{t<K}\left\lVert\sum_{s<t}P_{t,s}\right\rVert^2, \quad
   S^2 = \frac1K\sum_{t<K}\Big(\sum_{s<t}\lVert P_{t,s}\rVert\Big)^2, \quad
   N = \frac1K\sum_{t<K}\sum_{s<t}\frac{\lVert P_{t,s}\rVert_F^2}{n}: $$

the gain (Schur's test: $\Gamma$ bounds the norm of the map from the gradients of all steps to the disagreement of all
steps), the response to a constant push, the swing under a changing push, and
the diffusion under independent noise. Ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from dissensus.theory.bounds.conditions import ROUNDING
from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import SUM_TOLERANCE

Order = Literal["awc", "atc"]
"""`awc` mixes while it computes, $X^+ = WX - \\alpha G$; `atc` adapts, then combines, $X^+ = W(X - \\alpha G)$."""

HORIZON = 1_000_000
"""Beyond so many steps the limits of the sums stand for the sums: they are larger."""

FORGOTTEN = 1e-18
"""A propagator so small is below the rounding of every sum that it enters."""


class Memory(NamedTuple):
    """The four sums of a schedule over K steps."""

    gain: float
    response: float
    swing: float
    diffusion: float


def geometric(contraction: float, steps: int, order: str, size: int) -> Memory:
    r"""The sums when all that is known is $\lVert W_t-J\rVert_2\le\lambda$: a bound on those of the products.

    With $S_t = \sum_{k<t}\lambda^k$ and $o = 1$ (awc) or $\lambda$ (atc): $\Gamma = o\,S_{K-1}$,
    $R^2 = S^2 = \frac{o^2}{K}\sum_{t<K} S_t^2$, $N = (1-\frac1n)\frac{o^2}{K}\sum_{t<K}\sum_{k<t}\lambda^{2k}$.
    """
    contraction = _rounded(contraction)
    first = _first(order, contraction)
    if not (0.0 <= contraction <= 1.0 and steps >= 1):
        return Memory(math.inf, math.inf, math.inf, math.inf)
    share = 1.0 - 1.0 / size if size else 0.0
    if steps > HORIZON:
        if contraction >= 1.0:
            return Memory(math.inf, math.inf, math.inf, math.inf)
        total, squares = 1.0 / (1.0 - contraction), 1.0 / (1.0 - contraction**2)
        return Memory(first * total, first * total, first * total, share * first**2 * squares)
    powers = contraction ** np.arange(int(steps) - 1)
    sums, squares_ = np.cumsum(powers), np.cumsum(powers**2)
    push = first * math.sqrt(float(np.sum(sums**2)) / steps)
    return Memory(
        gain=first * float(sums[-1]) if steps > 1 else 0.0,
        response=push,
        swing=push,
        diffusion=share * first**2 * float(np.sum(squares_)) / steps,
    )


def limit(contraction: float, steps: int, order: str) -> float:
    r"""The largest response at any one step up to K: $o\,S_K$."""
    contraction = _rounded(contraction)
    if not (0.0 <= contraction <= 1.0 and steps >= 0):
        return math.inf
    if contraction in (0.0, 1.0):
        total = float(steps if contraction else min(steps, 1))
    else:  # 1 - lambda^K keeps its digits next to one
        total = -math.expm1(steps * math.log1p(contraction - 1.0)) / (1.0 - contraction)
    return _first(order, contraction) * total


def of_schedule(matrices: Sequence[np.ndarray], steps: int, order: str = "awc") -> Memory:
    r"""The sums of the actual products of a schedule that repeats `matrices`: one-peer graphs, DSGD-AC, anything.

    A schedule that does not repeat is given with as many matrices as steps.
    """
    _first(order, 1.0)
    _check(matrices, steps)
    n, period = len(matrices[0]), len(matrices)
    disagree = np.eye(n) - 1.0 / n
    # norms[p, k]: what a push in phase p still weighs k + 1 steps later
    norms = np.zeros((min(period, max(steps - 1, 1)), max(steps - 1, 0)))
    for phase in range(len(norms)):
        product = matrices[phase] @ disagree if order == "atc" else disagree
        for lag in range(steps - 1 if period <= steps - 1 else steps - 1 - phase):
            norms[phase, lag] = np.linalg.norm(product, 2)
            if norms[phase, lag] < FORGOTTEN:
                break
            product = matrices[(phase + lag + 1) % period] @ product
    rows, longest = np.zeros(steps), 0.0
    for s in range(steps - 1):
        weights = norms[s % period, : steps - 1 - s]
        rows[s + 1 :] += weights
        longest = max(longest, float(weights.sum()))
    gain = math.sqrt(float(rows.max()) * longest)
    swing = math.sqrt(float(np.mean(rows**2)))
    response, diffusion = 0.0, 0.0
    push, spread = np.zeros((n, n)), np.zeros((n, n))
    for t in range(steps - 1):
        w = matrices[t % period]
        if order == "atc":
            push, spread = w @ (push + disagree), w @ (spread + disagree) @ w.T
        else:
            push, spread = w @ push + disagree, w @ spread @ w.T + disagree
        response += float(np.linalg.norm(push, 2)) ** 2
        diffusion += float(np.trace(spread)) / n
    return Memory(gain, math.sqrt(response / steps), swing, diffusion / steps)


def _first(order: str, contraction: float) -> float:
    """The weight with which a push enters: it is mixed at once in ATC only."""
    if order not in ("awc", "atc"):
        raise MixingError(f"order of mixing must be awc or atc, got {order!r}{nearest(str(order), ('awc', 'atc'))}")
    return contraction if order == "atc" else 1.0


def _rounded(contraction: float) -> float:
    """No doubly stochastic round expands: a norm that came out a rounding above one is one."""
    return 1.0 if 1.0 < contraction <= 1.0 + ROUNDING else contraction


def _check(matrices: Sequence[np.ndarray], steps: int) -> None:
    if not len(matrices) or steps < 1:
        raise MixingError("a schedule needs at least one round, and one step to look at")
    for t, w in enumerate(matrices):
        off = max(float(np.abs(w.sum(axis=axis) - 1.0).max()) for axis in (0, 1))
        if not off <= SUM_TOLERANCE:
            raise MixingError(
                f"round {t} of the schedule is not doubly stochastic: sums of rows or columns up to {off:.3g} off"
            )
