r"""Decentralized SGD in dense float64, in three exact ways: without noise, by moments, over all paths of coin flips.

`awc`: $X_{t+1} = W_t X_t - \alpha(G(X_t) + \xi_t)$; `atc`: $X_{t+1} = W_t(X_t - \alpha(G(X_t) + \xi_t))$. No Monte
Carlo: on quadratics under additive noise the mean and covariance obey a linear recursion; on other functions every
worker's noise is a fair coin $\pm v_i$, and all $2^{nt}$ paths are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dissensus.theory.trials.functions import Functions, Quadratics


def path(
    functions: Functions, matrices: Sequence[np.ndarray], lr: float, steps: int, start: np.ndarray, order: str = "awc"
) -> np.ndarray:
    """All states of a run without noise, (steps + 1, n, d), from an equal start (d,) or one per worker (n, d)."""
    x = np.broadcast_to(start, (functions.size, functions.dimension)).astype(float)
    states = [x]
    for t in range(steps):
        x = _step(functions, matrices[t % len(matrices)], lr, x, order)
        states.append(x)
    return np.array(states)


def _step(
    functions: Functions, w: np.ndarray, lr: float, x: np.ndarray, order: str, noise: np.ndarray | float = 0.0
) -> np.ndarray:
    move = lr * (functions.gradients(x) + noise)
    return w @ (x - move) if order == "atc" else w @ x - move


def moments(
    functions: Quadratics,
    matrices: Sequence[np.ndarray],
    lr: float,
    steps: int,
    start: np.ndarray,
    order: str,
    noise: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Mean (n, d) and covariance (nd, nd) of the states 0 to steps - 1 under independent noise.

    Args:
        functions: the quadratics.
        matrices: the schedule, repeated.
        lr: learning rate.
        steps: how many states.
        start: the common first point.
        order: `awc` or `atc`.
        noise: every worker's own covariance, (n, d, d).
    """
    n, d = functions.size, functions.dimension
    push, curvature = np.zeros((n * d, n * d)), np.zeros((n * d, n * d))
    for i in range(n):
        at = slice(i * d, (i + 1) * d)
        push[at, at], curvature[at, at] = noise[i], functions.curvature[i]
    mean = np.broadcast_to(start, (n, d)).reshape(-1).astype(float)
    covariance = np.zeros((n * d, n * d))
    slope = functions.slope.reshape(-1)
    for t in range(steps):
        yield mean.reshape(n, d), covariance
        mixing = np.kron(matrices[t % len(matrices)], np.eye(d))
        if order == "atc":
            moved, kicked = mixing @ (np.eye(n * d) - lr * curvature), lr * mixing
        else:
            moved, kicked = mixing - lr * curvature, lr * np.eye(n * d)
        mean = moved @ mean - kicked @ slope
        covariance = moved @ covariance @ moved.T + kicked @ push @ kicked.T


def mean_worker(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and covariance (d, d) of the average of the workers."""
    n, d = mean.shape
    return mean.mean(axis=0), covariance.reshape(n, d, n, d).mean(axis=(0, 2))


def coin_paths(
    functions: Functions,
    matrices: Sequence[np.ndarray],
    lr: float,
    steps: int,
    start: np.ndarray,
    order: str,
    kicks: np.ndarray,
) -> Iterator[np.ndarray]:
    """States 0 to steps - 1 of all equally likely paths, (paths, n, d): worker i's noise is plus or minus kick i."""
    n = functions.size
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * n)).reshape(n, -1).T
    noise = signs[:, :, None] * kicks
    x = np.broadcast_to(start, (1, n, functions.dimension)).astype(float)
    for t in range(steps):
        yield x
        everyone = np.repeat(x, len(noise), axis=0)
        w = matrices[t % len(matrices)]
        x = _step(functions, w, lr, everyone, order, np.tile(noise, (len(x), 1, 1)))
