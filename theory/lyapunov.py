r"""Discrete Lyapunov equations by doubling: the stationary covariance of $z^+ = A z + q$, static or periodic.

$$ S = A S A^* + Q = \sum_{k\ge0} A^k Q A^{*k}, \qquad
   S_{j+1} = S_j + A_j S_j A_j^*, \quad A_{j+1} = A_j^2 $$

(Smith's iteration: after j doublings $2^j$ terms are summed, so it converges quadratically if the spectral radius is
below one, and visibly does not otherwise). With two different maps, $S = A S B^* + Q$, it is the Stein equation of the
covariance between two directions. A schedule of period P is lifted: with
$\Phi = A_{P-1}\cdots A_0$ and the noise of a period pushed to its end, $S_0 = \Phi S_0 \Phi^* + Q_\Phi$, and
$S_{t+1} = A_t S_t A_t^* + Q_t$ walks through the phases. Relative accuracy is about eps / (1 - radius).

All functions take stacks (..., s, s), real or complex. Whatever is not stable comes back filled with infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.theory.errors import MixingError

DOUBLINGS = 56
"""Terms of the series up to 2^56: a spectral radius closer to 1 than that cannot be told from 1 in float64."""


def solve(a: np.ndarray, q: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
    """Solves S = A S B* + Q for a stack of problems (B = A unless given); infinity where a radius is not below one."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-2:] != q.shape[-2:]:
        raise MixingError(f"a Lyapunov equation needs square matrices of one shape, got A {a.shape} and Q {q.shape}")
    if b is not None:
        return _stein(a, b, q)
    shape = np.broadcast_shapes(a.shape, q.shape)
    dtype = np.result_type(a, q, np.float64)
    s = np.array(np.broadcast_to(q, shape), dtype=dtype).reshape(-1, *shape[-2:])
    power = np.array(np.broadcast_to(a, shape), dtype=dtype).reshape(-1, *shape[-2:])
    active = np.arange(len(s))
    result = np.full_like(s, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(DOUBLINGS):
            if not len(active):
                break
            added = power @ s @ _star(power)
            s = s + added
            power = power @ power
            size = np.abs(power).max(axis=(1, 2), initial=0.0)
            # the rest of the series is at most |A^(2^j)|^2 s^2 times what is there
            done = (np.abs(added).max(axis=(1, 2), initial=0.0) <= 1e-17 * np.abs(s).max(axis=(1, 2), initial=0.0)) & (
                size < 1e-3
            )
            lost = ~np.isfinite(size) | (size > 1e100)
            result[active[done]] = 0.5 * (s[done] + _star(s[done]))
            keep = ~(done | lost)
            active, s, power = active[keep], s[keep], power[keep]
    return result.reshape(shape)


def _stein(a: np.ndarray, b: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The off-diagonal block of the Lyapunov equation of diag(A, B): the same series with two different powers."""
    shape = np.broadcast_shapes(a.shape, b.shape, q.shape)
    dtype = np.result_type(a, b, q, np.float64)
    left, right, s = (np.array(np.broadcast_to(part, shape), dtype=dtype) for part in (a, b, q))
    done = np.zeros(shape[:-2], dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(DOUBLINGS):
            added = left @ s @ _star(right)
            s, left, right = s + added, left @ left, right @ right
            sizes = [np.abs(part).max(axis=(-2, -1), initial=0.0) for part in (left, right, added, s)]
            done = (sizes[0] < 1e-3) & (sizes[1] < 1e-3) & (sizes[2] <= 1e-17 * sizes[3])
            if (done | ~np.isfinite(sizes[0] + sizes[1])).all():
                break
    return np.where(done[..., None, None], s, np.inf)


def periodic(maps: Sequence[np.ndarray], noises: Sequence[np.ndarray]) -> np.ndarray:
    """The covariances (P, ..., s, s) at the phases of a period: entry t holds just before map t is applied."""
    if len(maps) != len(noises) or not maps:
        raise MixingError(f"a period needs one noise covariance per map, got {len(maps)} maps and {len(noises)} noises")
    lifted, gathered = maps[0], noises[0]
    for a, q in zip(maps[1:], noises[1:], strict=True):
        lifted, gathered = a @ lifted, a @ gathered @ _star(a) + q
    phases = [solve(lifted, gathered)]
    with np.errstate(invalid="ignore"):
        for a, q in zip(maps[:-1], noises[:-1], strict=True):
            s = a @ phases[-1] @ _star(a) + q
            phases.append(np.where(np.isfinite(s), s, np.inf))
    return np.stack(phases)


def radius(maps: Sequence[np.ndarray]) -> np.ndarray:
    """The spectral radius of a period's product (per period, not per step), for a stack of problems."""
    lifted = maps[0]
    for a in maps[1:]:
        lifted = a @ lifted
    return np.abs(np.linalg.eigvals(lifted)).max(axis=-1, initial=0.0)


def _star(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))
