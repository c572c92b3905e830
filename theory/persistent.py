r"""The disagreement that persistent noise makes: gradient noise with a memory, and heterogeneity as its limit.

White noise averages out over the memory of a mode; what pulls a worker the same way for a long time does not. With
gradient noise $\xi^+ = \rho\,\xi + \sqrt{1-\rho^2}\,\zeta$ of variance $s^2$ and correlation time $\tau = -1/\log\rho$,
and without momentum, a mode of multiplier $m = \mu - \kappa$ has

$$ S = \frac{c^2 s^2}{1-m^2}\cdot\frac{1+\rho m}{1-\rho m}
   \quad\longrightarrow\quad \frac{c^2 s^2}{(1-m)^2} = e^2 \quad (\rho\to1), $$

the squared bias of a constant force (`variance.bias`): between white noise and heterogeneity there is one parameter,
the correlation time against the relaxation time of the mode. With momentum the state (x, v, xi) is solved by Lyapunov.
The letters are those of `variance`. Ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dissensus.theory import lyapunov
from dissensus.theory.errors import MixingError
from dissensus.theory.modes import Move, adapted, step_map
from dissensus.theory.variance import bias, factors, stable


def persistent_variance(
    lam: Any,
    h: Any,
    lr: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    noise: Any = 1.0,
    weight_decay: float = 0.0,
    *,
    memory: float,
) -> np.ndarray:
    r"""The stationary variance of modes under noise of autocorrelation $\rho$ = `memory`; broadcasts like `variance`.

    0 is white noise; 1 is a constant force whose square has the expectation `noise`: then it is the squared bias.
    """
    if not 0.0 <= memory <= 1.0:
        raise MixingError(f"the memory of the noise must lie in [0, 1], got {memory}")
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    given = (lam, h, lr, gamma, noise)
    lam, h, lr, gamma, s2 = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in given))
    good = stable(lam, h, lr, momentum, gamma, move.order, nesterov, weight_decay)
    if memory == 1.0:
        rest = bias(lam, h, lr, momentum, gamma, move.order, np.sqrt(s2), weight_decay)
        return np.where(good, rest**2, np.inf)
    if momentum == 0.0:
        f = factors(lam, h, lr, gamma, move)
        # slow = 1 - m and fast = 1 + m; 1 - rho m loses no digits written as (1 - rho) + rho (1 - m)
        below = np.where(good, f.slow * f.fast * ((1.0 - memory) + memory * f.slow), 1.0)
        return np.where(good, f.gain * s2 * ((1.0 - memory) + memory * f.fast) / below, np.inf)
    a, drive = _augmented(lam.ravel(), h.ravel(), lr.ravel(), gamma.ravel(), move, memory)
    found = lyapunov.solve(a, drive)[:, 0, 0].reshape(lam.shape) * s2
    return np.where(good, found, np.inf)


def _augmented(
    lam: np.ndarray, h: np.ndarray, lr: np.ndarray, gamma: np.ndarray, move: Move, memory: float
) -> tuple[np.ndarray, np.ndarray]:
    """The map of (x, v, xi) with noise of unit variance, one 3 x 3 matrix per mode, and what drives it."""
    step = step_map(adapted(lam, gamma), 1.0, h, lr, move)
    a = np.zeros((len(lam), 3, 3))
    for (i, j), entry in zip(((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)), step, strict=True):
        a[:, i, j] = entry
    a[:, 2, 2] = memory
    drive = np.zeros((3, 3))
    drive[2, 2] = 1.0 - memory**2
    return a, drive
