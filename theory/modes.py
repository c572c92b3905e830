r"""One step of DSGD on a quadratic, seen by one disagreement mode: the map every second moment follows.

On a common quadratic with curvature h along some direction, a worker mode on which the round acts as $\mu$ obeys

$$ g = h\,y + \omega z + \xi, \qquad v^+ = \beta v + g, \qquad
   d = v^+ \ \text{(heavy ball)} \ \text{or}\ g + \beta v^+ \ \text{(Nesterov)}, $$

with $y, z$ the points where the loss and the coupled weight decay $\omega$ are differentiated:

| order | update | y (gradient) | z (weight decay) |
|---|---|---|---|
| `awc` | $x^+ = \mu x - \alpha d$ | $x$ | $\mu x$ |
| `atc` | $x^+ = \mu\,(x - \alpha d)$ | $x$ | $x$ |
| `cta` | $x^+ = \mu x - \alpha d$ | $\mu x$ | $\mu x$ |

which is what `torch.optim.SGD` does as the local move. Here $\mu$ is a number, $1-\gamma(1-\lambda)$, where the rounds
have common eigenvectors (a static symmetric graph; circulant or XOR schedules), and the matrix $W_\gamma$ restricted
to the disagreement otherwise; the map is linear in $\mu$ either way and is written once, in `step_map`.
Ours (eliminating v gives the AR(2) and ARMA(2,1) recursions behind the closed forms of `stationary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology

Order = Literal["awc", "atc", "cta"]


@dataclass(frozen=True)
class Move:
    """What a step does beside its learning rate and gamma: the order of mixing and the local optimizer."""

    order: Order = "awc"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise MixingError(f"unknown order {self.order!r}{nearest(str(self.order), get_args(Order))}")
        if not 0.0 <= self.momentum < 1.0:
            raise MixingError(f"momentum must lie in [0, 1), got {self.momentum}")
        if not (np.isfinite(self.weight_decay) and self.weight_decay >= 0.0):
            raise MixingError(f"weight_decay must be finite and not negative, got {self.weight_decay}")

    @classmethod
    def of(cls, order: str, momentum: float, *, nesterov: bool = False, weight_decay: float = 0.0) -> Move:
        """From plain arguments; the order is checked, whatever its case."""
        return cls(cast("Order", str(order).lower()), float(momentum), bool(nesterov), float(weight_decay))


class StepMap(NamedTuple):
    r"""$x^+ = a_{11}x + a_{12}v + b_1\xi$ and $v^+ = a_{21}x + a_{22}v + b_2\xi$, numbers or matrices."""

    a11: Any
    a12: Any
    a21: Any
    a22: Any
    b1: Any
    b2: Any


def step_map(mix: Any, one: Any, curvature: Any, lr: Any, move: Move) -> StepMap:
    """The map of one step; `mix` is mu (with `one` = 1) or the matrix W_gamma (with `one` the identity)."""
    beta, decay = move.momentum, move.weight_decay
    direct, carried = (1.0 + beta, beta * beta) if move.nesterov else (1.0, beta)
    reach = mix if move.order == "atc" else one
    if move.order == "awc":
        feedback = gradient = curvature * one + decay * mix
    else:
        feedback = (curvature + decay) * mix
        gradient = feedback if move.order == "cta" else (curvature + decay) * one
    return StepMap(mix - lr * direct * feedback, -lr * carried * reach, gradient, beta * one, -lr * direct * reach, one)


def state_space(mix: np.ndarray, curvatures: np.ndarray, lr: float, move: Move) -> tuple[np.ndarray, np.ndarray]:
    """The map as matrices (A, B) of the state (x, v), for every curvature.

    `mix` is (..., m, m), A is (..., J, s, s) and B is (..., J, s, m). Without momentum the state is x alone (s = m),
    else s = 2m.
    """
    m = mix.shape[-1]
    mix = mix[..., None, :, :]
    h = curvatures[:, None, None]
    one = np.broadcast_to(np.eye(m, dtype=mix.dtype), (*mix.shape[:-3], len(curvatures), m, m))
    blocks = StepMap(*(np.broadcast_to(b, one.shape) for b in step_map(mix, one, h, lr, move)))
    if move.momentum == 0.0:
        return np.ascontiguousarray(blocks.a11), np.ascontiguousarray(blocks.b1)
    top = np.concatenate([blocks.a11, blocks.a12], axis=-1)
    bottom = np.concatenate([blocks.a21, blocks.a22], axis=-1)
    return np.concatenate([top, bottom], axis=-2), np.concatenate([blocks.b1, blocks.b2], axis=-2)


def adapted(eigenvalues: Any, gamma: Any) -> Any:
    r"""$\mu = 1 - \gamma(1-\lambda)$."""
    return 1.0 - gamma * (1.0 - eigenvalues)


def adapted_matrix(mix: np.ndarray, gamma: float) -> np.ndarray:
    r"""$(1-\gamma) I + \gamma W$ for a matrix restricted to the disagreement."""
    return (1.0 - gamma) * np.eye(mix.shape[-1]) + gamma * mix


def restricted(w: MixingMatrix, *, where: str = "the topology") -> np.ndarray:
    r"""$V^\top W V$ for an orthonormal basis V of the disagreement (the vectors of sum zero), (n-1) x (n-1).

    Exact for every row-stochastic W: consensus maps to consensus, so the disagreement goes its own way.
    """
    if not w.is_row_stochastic:
        raise MixingError(
            f"{where} is only column stochastic: consensus is not kept, so the disagreement does not evolve by itself; "
            "use doubly (or row) stochastic weights, or de-bias as push-sum does"
        )
    v = disagreement_basis(w.size)
    return v.T @ (w.weights @ v)


def disagreement_basis(n: int) -> np.ndarray:
    """V, n x (n-1): orthonormal columns, each of sum zero."""
    u = np.full(n, n**-0.5)  # a Householder reflection that takes 1/sqrt(n) to the first axis; V is what is left of it
    u[0] += 1.0
    return (np.eye(n) - np.outer(u, u) / u[0])[:, 1:]


def joint_spectrum(rounds: Sequence[np.ndarray]) -> np.ndarray | None:
    """The eigenvalues (P, K) of matrices that share orthonormal eigenvectors, or `None` if they do not.

    A random Hermitian combination of the rounds has the common eigenvectors if there are any; whether it does is
    checked on every round, so that chance decides about speed only, never about a result.
    """
    rng = np.random.default_rng(0)
    symmetric = all(np.abs(m - m.T).max(initial=0.0) <= 1e-13 for m in rounds)
    combined = sum(rng.normal() * (m + m.T) for m in rounds)
    if not symmetric:
        combined = combined + 1j * sum(rng.normal() * (m - m.T) for m in rounds)
    _, basis = np.linalg.eigh(combined)
    values = []
    for m in rounds:
        seen = basis.conj().T @ m @ basis
        diagonal = np.diagonal(seen)
        if np.abs(seen - np.diag(diagonal)).max(initial=0.0) > 1e-13 * max(10, len(m)):
            return None
        values.append(_snapped(diagonal))
    return np.array(values)


def disagreement_eigenvalues(source: Topology | Any) -> tuple[np.ndarray, int]:
    """The n - 1 real eigenvalues of a static symmetric round without the one of the mean, and n.

    `source` is such a topology, or all n eigenvalues as numbers (one of them the 1 of the mean, which is set aside).
    """
    if not isinstance(source, Topology):
        return _without_mean(np.atleast_1d(np.asarray(source)), "the eigenvalues"), len(np.atleast_1d(source))
    if source.closed_form.eigenvalues is not None:
        return _without_mean(source.closed_form.eigenvalues(), repr(source)), source.size
    if source.size == 1:
        return np.zeros(0), 1
    return _snapped(np.linalg.eigvalsh(restricted(source[0], where=repr(source)))), source.size


def _without_mean(values: np.ndarray, what: str) -> np.ndarray:
    if values.ndim != 1 or values.size == 0 or np.iscomplexobj(values) or not np.isfinite(values).all():
        raise MixingError(f"{what} must be a list of finite real numbers; pass the topology itself if they are complex")
    mean = int(np.argmin(np.abs(values - 1.0)))
    if abs(values[mean] - 1.0) > 1e-9:
        raise MixingError(
            f"{what} lack the 1 of the mean (the nearest is {values[mean]:.9g}): pass all n eigenvalues of W, "
            "not only the n - 1 of the disagreement"
        )
    return np.delete(values, mean).astype(np.float64)


def _snapped(values: np.ndarray) -> np.ndarray:
    """Eigenvalues that are 1 or -1 but for rounding, made exact: a flat direction must not look damped."""
    for exact in (1.0, -1.0):
        values = np.where(np.abs(values - exact) <= 1e-14 * max(10, values.size), exact, values)
    return values
