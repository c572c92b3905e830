r"""The stationary variance of a disagreement mode of DSGD on a quadratic with gradient noise, in closed form.

All workers share a quadratic with curvatures $h_j$; gradient noise is independent between workers and steps, with
variance $s_j^2$ along direction j. Per mode, with $\mu = 1-\gamma(1-\lambda)$, $\kappa = \alpha h$ (AWC) or
$\alpha\mu h$ (ATC, CTA), $c = \alpha$ or $\alpha\mu$ (ATC), and heavy-ball momentum $\beta$,

$$ S = \frac{c^2 s^2 (1+\beta\mu)}{(1-\beta\mu)\,[(1-\beta)(1-\mu)+\kappa]\,[(1+\beta)(1+\mu)-\kappa]} , $$

stable iff the three factors of the denominator are positive. With torch's Nesterov momentum the factors become
$1-\beta(\mu-\kappa)$, $(1-\beta)(1-\mu)+\kappa$ and $(1+\beta)(1+\mu)-(1+2\beta)\kappa$. Per mode ATC($\alpha$) is
AWC($\alpha\mu$).

Coupled weight decay $\omega$ acts where torch's optimizer sees the parameters: at the mixed point in AWC and CTA.
Derivation: ours, from the recursions of `modes` (an AR(2), with Nesterov an ARMA(2,1)). What is unstable has
variance `inf` here, and is refused by `stationary.predict`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dissensus.theory.modes import Move, adapted


class Factors(NamedTuple):
    """The closed form's parts: S = gain · numerator / (turn · slow · fast), stable iff the last three are positive."""

    gain: np.ndarray
    numerator: np.ndarray
    turn: np.ndarray
    """1 + phi_2 of the AR(2) form: oscillation through momentum."""
    slow: np.ndarray
    """1 - phi_1 - phi_2: how fast the mode is pulled back."""
    fast: np.ndarray
    """1 + phi_1 - phi_2: what is left to the flip of sign at every step."""


def variance(
    lam: Any,
    h: Any,
    lr: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    noise: Any = 1.0,
    weight_decay: float = 0.0,
) -> np.ndarray:
    """The stationary variance of modes (everything broadcasts); infinity where there is no stationary state.

    `lam = 1` is the mean of the workers if `noise` is the variance of the mean's noise, s^2/n.
    """
    f = factors(lam, h, lr, gamma, Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay))
    good = (f.turn > 0) & (f.slow > 0) & (f.fast > 0)
    below = np.where(good, f.turn * f.slow * f.fast, 1.0)
    return np.where(good, f.gain * np.asarray(noise, dtype=np.float64) * f.numerator / below, np.inf)


def stable(
    lam: Any,
    h: Any,
    lr: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> np.ndarray:
    """Whether modes are stable: the spectral radius of their step map is below one."""
    f = factors(lam, h, lr, gamma, Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay))
    return (f.turn > 0) & (f.slow > 0) & (f.fast > 0)


def stable_learning_rates(
    lam: Any,
    h: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The open interval (low, high) of learning rates at which modes are stable; (inf, 0) where there is none."""
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    # the factors are affine in the learning rate: read off their value at 0 and their slope
    at_zero, at_one = factors(lam, h, 0.0, gamma, move), factors(lam, h, 1.0, gamma, move)
    low, high = np.zeros(np.shape(at_one.slow)), np.full(np.shape(at_one.slow), np.inf)
    for start, end in zip(at_zero[2:], at_one[2:], strict=True):
        slope = end - start
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(slope == 0, 0.0, -start / slope)
        low = np.where(slope > 0, np.maximum(low, crossing), low)
        high = np.where(slope < 0, np.minimum(high, crossing), high)
        high = np.where((slope == 0) & (start <= 0), 0.0, high)
    none = ~(low < high)
    return np.where(none, np.inf, low + 0.0), np.where(none, 0.0, high)


def bias(
    lam: Any,
    h: Any,
    lr: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    pull: Any = 1.0,
    weight_decay: float = 0.0,
) -> np.ndarray:
    r"""Where a mode comes to rest under a constant force b in its gradient, $g = h\,y + \omega z - b$.

    $e = c\,b\,/\,[(1-\beta)(1-\mu)+\kappa]$: heterogeneous workers, whose gradients differ by b at the same point, stay
    apart by this much. Heavy ball and Nesterov rest at the same point. Infinity (with the sign of `pull`) without
    damping, whether the point attracts is for `stable` to say.
    """
    f = factors(lam, h, lr, gamma, Move.of(order, momentum, weight_decay=weight_decay))
    mu = adapted(np.asarray(lam, dtype=np.float64), gamma)
    force = np.asarray(pull, dtype=np.float64) * lr * (mu if str(order).lower() == "atc" else 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(force == 0.0, 0.0, force / f.slow)


def relaxation(
    lam: Any,
    h: Any,
    lr: Any,
    momentum: float = 0.0,
    gamma: Any = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> np.ndarray:
    r"""Steps in which modes forget by a factor e: $-1/\log\varrho$, the spectral radius of the step map.

    Infinity where a mode does not forget. The stationary law describes a run only if this is short against the time
    over which lr and gamma change.
    """
    f = factors(lam, h, lr, gamma, Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay))
    phi1, minus_phi2 = 0.5 * (f.fast - f.slow), 1.0 - f.turn
    root = np.sqrt(np.asarray(phi1**2 - 4.0 * minus_phi2, dtype=np.complex128))
    radius = np.maximum(np.abs(phi1 + root), np.abs(phi1 - root)) / 2.0
    with np.errstate(divide="ignore"):
        return np.where(radius < 1.0, -1.0 / np.log(np.minimum(radius, 1.0)), np.inf)


def factors(lam: Any, h: Any, lr: Any, gamma: Any, move: Move) -> Factors:
    """The parts of the closed form, for whoever needs them one by one; everything broadcasts."""
    lam, h, lr, gamma = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (lam, h, lr, gamma)))
    beta, nesterov = move.momentum, float(move.nesterov)
    mu, gap = adapted(lam, gamma), gamma * (1.0 - lam)
    curvature = h + move.weight_decay * mu if move.order == "awc" else mu * (h + move.weight_decay)
    kappa = lr * curvature
    gain = (lr * mu if move.order == "atc" else lr) ** 2
    turn = 1.0 - beta * (mu - nesterov * kappa)
    if move.nesterov:
        phi1 = mu + beta - kappa * (1.0 + beta)
        numerator = (1.0 + beta * (mu - kappa)) * ((1.0 + beta) ** 2 + beta**2) - 2.0 * beta * (1.0 + beta) * phi1
    else:
        numerator = 1.0 + beta * mu
    slow = (1.0 - beta) * gap + kappa
    fast = (1.0 + beta) * (1.0 + mu) - (1.0 + 2.0 * beta * nesterov) * kappa
    return Factors(gain, numerator, turn, slow, fast)
