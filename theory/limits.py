r"""How far the learning rate can go and how long the disagreement remembers; who sets the limit, and a known trap.

The mean of the workers is stable for $\alpha h < 2(1+\beta)$, whatever the graph. A mode of the disagreement can be
far more delicate: in AWC it needs $\alpha h < (1+\mu)(1+\beta)$, and in ATC and CTA, where $\mu < 0$,

$$ \alpha h < \frac{(1-\mu)(1-\beta)}{|\mu|} , $$

so that heavy-ball momentum turns a negative eigenvalue of W into a trap: with $\mu=-1/3$ and $\beta=0.9$ the limit is
0.4 where the mean would bear 3.8. Positive semidefinite rounds (lazy ones, $\frac12(I+W)$) or
$\gamma \le 1/(1-\lambda_{\min})$ remove it. Ours.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dissensus.theory import lyapunov
from dissensus.theory.errors import MixingError
from dissensus.theory.modes import (
    Move,
    adapted,
    adapted_matrix,
    disagreement_eigenvalues,
    joint_spectrum,
    restricted,
    state_space,
)
from dissensus.theory.stationary import spectrum
from dissensus.theory.topology import Topology
from dissensus.theory.variance import relaxation, stable_learning_rates

_NEAR = 0.9
"""A learning rate beyond this share of its limit is worth a warning."""


@dataclass(frozen=True)
class Limits:
    """What bounds the learning rate, and the memory of the state at the one that was asked about."""

    lr: float
    """Every mode is stable below this learning rate (the mean included), at the given gamma."""
    mean_lr: float
    """The same for the mean of the workers alone."""
    eigenvalue: float | None
    """The eigenvalue of W whose mode sets the limit: 1 is the mean; `None` for a schedule."""
    relaxation: float
    """Steps in which the slowest mode of the disagreement forgets by a factor e."""
    mean_relaxation: float
    """The same of the mean, along the flattest positive curvature."""
    warning: str | None
    """What should make one stop: the trap above, or a learning rate close to its limit."""

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return asdict(self)


def limits(
    topology: Topology | Any,
    curvatures: Any,
    *,
    lr: float,
    momentum: float = 0.0,
    gamma: float = 1.0,
    order: str = "awc",
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Limits:
    """Stability limits of a setting and its relaxation times at `lr`.

    For schedules of several rounds the limit is the first learning rate, in steps of a fifth from a small one upwards,
    at which the spectral radius of the period passes 1, refined by bisection.
    """
    move = Move.of(order, momentum, nesterov=nesterov, weight_decay=weight_decay)
    h, _ = spectrum(curvatures, 1.0)
    settings = (move.momentum, gamma, move.order, move.nesterov, move.weight_decay)
    curved = h[h + move.weight_decay > 0]
    mean_lr = float(stable_learning_rates(1.0, curved, *settings)[1].min(initial=np.inf))
    mean_memory = float(relaxation(1.0, curved, lr, *settings).max(initial=0.0))
    if isinstance(topology, Topology) and not (topology.is_static and topology.is_symmetric):
        limit, memory = _by_radius(topology, h, lr, gamma, move, mean_lr)
        eigenvalue = None
    else:
        lam, _ = disagreement_eigenvalues(topology)
        low, high = (part.reshape(len(lam), len(h)) for part in stable_learning_rates(lam[:, None], h, *settings))
        high = np.where(low < high, high, 0.0)
        own = high.min(axis=1, initial=np.inf)
        limit = min(mean_lr, float(own.min(initial=np.inf)))
        eigenvalue = 1.0 if mean_lr <= limit or not len(lam) else float(lam[int(own.argmin())])
        memory = float(relaxation(lam[:, None], h, lr, *settings).max(initial=0.0))
    return Limits(
        limit, mean_lr, eigenvalue, memory, mean_memory, _warning(limit, mean_lr, eigenvalue, lr, gamma, move)
    )


def _warning(limit: float, mean_lr: float, setter: float | None, lr: float, gamma: float, move: Move) -> str | None:
    if setter is not None and move.order != "awc" and adapted(setter, gamma) < 0.0 and limit < mean_lr:
        return (
            f"order {move.order} with momentum {move.momentum:g} on a W with eigenvalue {setter:.6g} is stable only "
            f"for lr < {limit:.6g}, where the mean alone would bear {mean_lr:.6g}: use lazy weights (I + W)/2, "
            f"gamma <= {1.0 / (1.0 - setter):.4g}, or order awc"
        )
    if lr >= _NEAR * limit:
        return f"lr = {lr:g} is {'beyond' if lr >= limit else 'close to'} the limit of stability, {limit:.6g}"
    return None


def _by_radius(
    topology: Topology, h: np.ndarray, lr: float, gamma: float, move: Move, mean_lr: float
) -> tuple[float, float]:
    """Limit and relaxation of a schedule."""
    if topology.period is None:
        raise MixingError(
            f"topology {topology.name!r} is drawn anew at every step: its limits are those of the sample that is "
            "drawn; use from_matrices([topology[t] for t in range(100)])"
        )
    if topology.size == 1:
        return mean_lr, 0.0
    rounds = [restricted(w, where=f"round {t} of {topology.name!r}") for t, w in enumerate(topology)]
    joint = joint_spectrum(rounds)
    if joint is not None:
        mixes = list(adapted(joint, gamma)[:, :, None, None])
    else:
        mixes = [adapted_matrix(r, gamma)[None] for r in rounds]

    def largest(rate: float, at: np.ndarray) -> float:
        return float(lyapunov.radius([state_space(mix, at, rate, move)[0] for mix in mixes]).max())

    now = largest(lr, h)
    memory = 0.0 if now == 0.0 else np.inf if now >= 1.0 else -topology.period / float(np.log(now))
    extremes = np.unique([h.min(), h.max()])
    scale = max(np.abs(h).max() + move.weight_decay, 1e-12)
    bad = good = 1e-3 / scale
    top = min(mean_lr, 1e3 / scale)
    while good < top and largest(bad, extremes) < 1.0:
        good, bad = bad, 1.2 * bad
    if good >= top:
        return mean_lr, memory
    if bad == good:
        return 0.0, memory
    for _ in range(40):
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if largest(middle, extremes) < 1.0 else (good, middle)
    return min(good, mean_lr), memory
