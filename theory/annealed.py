r"""The disagreement on its way: exact second moments of DSGD on a quadratic while lr, gamma and noise change.

From consensus at step 0 (x equal on all workers, no momentum yet), the covariance of the disagreement along
curvature $h_j$ follows, with the step map $(A_t, B_t)$ of `modes` at this step's lr and gamma,

$$ C_{t+1} = A_t\,C_t\,A_t^* + \eta_t\,w_j\,B_t B_t^*, \qquad
   \Xi_t = \frac1n\sum_j\operatorname{tr} C^{(j)}_{t,xx}, \qquad
   P_t = \frac1{2n}\sum_j h_j\operatorname{tr} C^{(j)}_{t,xx} , $$

without approximation: no stationarity, no small steps. $w_j$ is the variance of one worker's gradient noise along
direction j and $\eta_t$ a factor on it; $h_j$ and $w_j$ may themselves change from step to step, as they do where
they were measured. Where the rounds share eigenvectors this is three numbers per mode and curvature; otherwise the
covariance of all workers is carried for every curvature (a schedule drawn anew at every step included: the result is
then exact for the rounds that are drawn). Derivation: ours.

`freezing_time` says how early a run annealed by a cosine stops to forget its flat disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi
from typing import Any, Literal, NamedTuple

import numpy as np

from dissensus.theory.errors import MixingError
from dissensus.theory.modes import (
    Move,
    adapted,
    adapted_matrix,
    disagreement_eigenvalues,
    joint_spectrum,
    restricted,
    state_space,
    step_map,
)
from dissensus.theory.stationary import spectrum
from dissensus.theory.topology import Topology


class Trajectory(NamedTuple):
    """Expected disagreement before step 0, 1, ..., T (T + 1 numbers each, the first is zero)."""

    xi: np.ndarray
    r"""The consensus distance $\mathbb{E}\,\frac1n\sum_i\|x_i-\bar x\|^2$."""
    envelope: np.ndarray
    r"""$\tfrac12\operatorname{tr}(H\Sigma)$, the expected $\frac1n\sum_i L(x_i) - L(\bar x)$."""


class _Schedule(NamedTuple):
    """What changes from step to step, T numbers each."""

    lr: np.ndarray
    gamma: np.ndarray
    noise: np.ndarray


class _Field(NamedTuple):
    """Curvatures and one worker's noise along them at the points in time 0 ... T, (T + 1, J)."""

    curvatures: np.ndarray
    noise: np.ndarray


def trajectory(
    topology: Topology | Any,
    nodes: Any,
    weights: Any,
    lrs: Any,
    gammas: Any = None,
    momentum: float = 0.0,
    order: str = "awc",
    noise_scale: Any = None,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    overflow: Literal["refuse", "inf"] = "refuse",
) -> Trajectory:
    """The expected consensus distance and envelope of a run that starts in consensus.

    `topology` is a schedule or all n eigenvalues of a symmetric W, `nodes` and `weights` are curvatures and the noise
    variance of one worker along each (the full spectrum, or a quadrature of it). Step t uses `lrs[t]`, `gammas[t]`
    (`None`: no adaptive consensus, 1) and noise variances `noise_scale[t] * weights` (`None`: constant). Either of
    `nodes` and `weights` may have T + 1 rows, one for each point in time (row t is where step t starts; the last row
    only weighs the last envelope). A disagreement that overflows is refused, or stays infinite (`overflow="inf"`).
    """
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    plan = _schedule(lrs, gammas, noise_scale)
    field = _field(nodes, weights, len(plan.lr))
    if not isinstance(topology, Topology) or (topology.is_static and topology.is_symmetric):
        lam, n = disagreement_eigenvalues(topology)
        steps = _by_modes(lam[None], field, plan, move)
    else:
        n = topology.size
        rounds = [restricted(w, where=f"round {t} of {topology.name!r}") for t, w in enumerate(topology.rounds)]
        joint = joint_spectrum(rounds) if rounds else None
        if joint is not None:
            steps = _by_modes(joint, field, plan, move)
        else:
            steps = _by_workers(topology, rounds, field, plan, move)
    xi, envelope = np.zeros(len(plan.lr) + 1), np.zeros(len(plan.lr) + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for t, directions in enumerate(steps):
            xi[t + 1], envelope[t + 1] = directions.sum() / n, 0.5 * (field.curvatures[t + 1] @ directions) / n
            if np.isfinite(xi[t + 1]):
                continue
            if overflow == "inf":
                xi[t + 1 :] = envelope[t + 1 :] = np.inf
                break
            raise MixingError(
                f"the disagreement grows beyond all bounds and overflows at step {t} (lr {plan.lr[t]:g}, gamma "
                f"{plan.gamma[t]:g}); stationary.stable_learning_rates gives the learning rates that are stable"
            )
    return Trajectory(xi, envelope)


def freezing_time(p: float, delta: float, steps: float) -> float:
    r"""The last part of a run, as a fraction of it, in which a flat mode no longer forgets.

    With the lr annealed by a cosine to zero over T steps and $\gamma = (\alpha/\alpha_{\max})^p$, the graph damping
    left at a distance $\tau = 1 - t/T$ from the end is about $T\delta(\pi^2/4)^p\tau^{2p+1}/(2p+1)$, with
    $\delta = 1-\lambda$. It falls below 1/2 at

    $$ \tau^* = \Big[\tfrac{2p+1}{2T\delta}\,\big(\tfrac{4}{\pi^2}\big)^p\Big]^{1/(2p+1)} . $$

    1 if there is less damping than that in the whole run. Ours; no curvature, no momentum.
    """
    if not (np.isfinite(p) and p >= 0.0):
        raise MixingError(f"the exponent p must be finite and not negative, got {p}")
    if not 0.0 < delta <= 2.0:
        raise MixingError(f"delta = 1 - lambda must lie in (0, 2], got {delta}: a mode with delta = 0 never forgets")
    if not steps > 0:
        raise MixingError(f"a run needs a positive number of steps, got {steps}")
    power = 2.0 * p + 1.0
    return float(min(1.0, (power / (2.0 * steps * delta) * (4.0 / pi**2) ** p) ** (1.0 / power)))


def _by_modes(lams: np.ndarray, field: _Field, plan: _Schedule, move: Move) -> Iterator[np.ndarray]:
    """Yields, after every step, the sum over modes of the variance of x along every curvature."""
    shape = (lams.shape[1], field.curvatures.shape[1])
    xx, vv = np.zeros(shape), np.zeros(shape)
    xv = np.zeros(shape, dtype=lams.dtype)
    for t, (lr, gamma, scale) in enumerate(zip(*plan, strict=True)):
        a = step_map(adapted(lams[t % len(lams)], gamma)[:, None], 1.0, field.curvatures[t], lr, move)
        q = scale * field.noise[t]
        if move.momentum == 0.0:
            xx = _square(a.a11) * xx + _square(a.b1) * q
        else:
            # E|x|^2, E[x v*] and E|v|^2 of the new state, each from the old three
            across = a.a11 * np.conj(a.a22) * xv + a.a12 * np.conj(a.a21) * np.conj(xv)
            xx, xv, vv = (
                _square(a.a11) * xx + 2.0 * np.real(a.a11 * np.conj(a.a12) * xv) + _square(a.a12) * vv
                + _square(a.b1) * q,
                a.a11 * np.conj(a.a21) * xx + across + a.a12 * np.conj(a.a22) * vv + a.b1 * np.conj(a.b2) * q,
                _square(a.a21) * xx + 2.0 * np.real(a.a21 * np.conj(a.a22) * xv) + _square(a.a22) * vv
                + _square(a.b2) * q,
            )  # fmt: skip
        yield xx.sum(axis=0)


def _by_workers(
    topology: Topology, rounds: list[np.ndarray], field: _Field, plan: _Schedule, move: Move
) -> Iterator[np.ndarray]:
    """The same by the covariance of all workers' disagreement, one (n-1 or 2(n-1)) square per curvature."""
    m = topology.size - 1
    states = m if move.momentum == 0.0 else 2 * m
    covariance = np.zeros((field.curvatures.shape[1], states, states))
    for t, (lr, gamma, scale) in enumerate(zip(*plan, strict=True)):
        mix = rounds[t % len(rounds)] if rounds else restricted(topology[t], where=f"step {t} of {topology.name!r}")
        a, b = state_space(adapted_matrix(mix, gamma), field.curvatures[t], lr, move)
        fresh = (scale * field.noise[t])[:, None, None] * (b @ np.swapaxes(b, -1, -2))
        covariance = a @ covariance @ np.swapaxes(a, -1, -2) + fresh
        yield np.trace(covariance[:, :m, :m], axis1=-2, axis2=-1)


def _field(nodes: Any, weights: Any, steps: int) -> _Field:
    """Curvatures and noise with one row per point in time, checked; what does not change is repeated without a copy."""
    h, s2 = np.asarray(nodes, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    for name, values in (("nodes", h), ("weights", s2)):
        if values.ndim == 2 and len(values) != steps + 1:
            raise MixingError(
                f"{name} that change in time need {steps + 1} rows, one before each of the {steps} steps and one after "
                f"the last, got {len(values)}"
            )
    if h.ndim < 2 and s2.ndim < 2:
        h, s2 = spectrum(h, s2)
    else:
        shape = np.broadcast_shapes(h.shape, s2.shape)
        h, s2 = spectrum(np.broadcast_to(h, shape).ravel(), np.broadcast_to(s2, shape).ravel())
        h, s2 = h.reshape(shape), s2.reshape(shape)
    return _Field(*(np.broadcast_to(part, (steps + 1, np.size(part, -1))) for part in (h, s2)))


def _square(a: Any) -> Any:
    return np.real(a * np.conj(a))


def _schedule(lrs: Any, gammas: Any, noise_scale: Any) -> _Schedule:
    """The three schedules as arrays of one length; gammas and noise_scale may be one number for all steps."""
    lr = np.asarray(lrs, dtype=np.float64)
    if lr.ndim != 1:
        raise MixingError(f"lrs must hold one learning rate per step, got an array of shape {lr.shape}")
    filled = []
    for name, given in (("gammas", gammas), ("noise_scale", noise_scale)):
        if given is not None and np.ndim(given):
            given = [1.0 if g is None else g for g in given]
        values = np.asarray(1.0 if given is None else given, dtype=np.float64)
        if values.ndim and values.shape != lr.shape:
            raise MixingError(f"{name} must be one number or one per step ({len(lr)}), got shape {values.shape}")
        filled.append(np.broadcast_to(values, lr.shape))
    plan = _Schedule(lr, *filled)
    for name, values in zip(("lrs", "gammas", "noise_scale"), plan, strict=True):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
        if len(bad):
            raise MixingError(f"{name} must be finite and not negative: step {bad[0]} has {values[bad[0]]}")
    return plan
