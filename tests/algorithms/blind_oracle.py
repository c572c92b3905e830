r"""The published recursions in dense float64 numpy, by an author who had not seen the implementation.

Written from the text of the papers as we hold it and from the manual of `torch.optim`, one plain loop per algorithm:
no engine, no generator, nothing of `dissensus.algorithms`. A quadratic $f_i(x) = \frac12 x^\top A_i x - b_i^\top x$
per worker, the rounds $W_0, W_1, \dots$ as dense matrices (row = receiver), the learning rates as a list; back comes
the path of the deployed points, of shape (steps + 1, n, d).

Where the text leaves a choice, the reading taken here is a line of the docstring that begins with *Reading*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

Array = np.ndarray
DIM, STEPS = 4, 100


class Quadratics(NamedTuple):
    """One quadratic per worker: `a` (n, d, d), `b` (n, d), start `x0` (n, d), gradient noise (T, n, d) or None."""

    a: Array
    b: Array
    x0: Array
    noise: Array | None = None

    def gradient(self, t: int, x: Array) -> Array:
        """The gradients at the rows of `x`, worker by worker, with the noise of step t (none after the last)."""
        g = np.stack([0.5 * (a + a.T) @ row - b for a, b, row in zip(self.a, self.b, x, strict=True)])
        return g if self.noise is None or t >= len(self.noise) else g + self.noise[t]


class Move(Protocol):
    """A local optimizer: one step from `x` along `g`, remembering what it must."""

    def __call__(self, x: Array, g: Array, lr: float) -> Array:
        """The point after the step."""
        ...


class Sgd:
    """`torch.optim.SGD`: d = g + wd x; the buffer is d at the first step, then beta buffer + (1 - dampening) d."""

    def __init__(
        self, momentum: float = 0.0, *, nesterov: bool = False, weight_decay: float = 0.0, dampening: float = 0.0
    ) -> None:
        self.momentum, self.nesterov, self.weight_decay, self.dampening = momentum, nesterov, weight_decay, dampening
        self.buffer: Array | None = None

    def __call__(self, x: Array, g: Array, lr: float) -> Array:
        d = g + self.weight_decay * x
        if self.momentum:
            if self.buffer is None:
                self.buffer = d.copy()
            else:
                self.buffer = self.momentum * self.buffer + (1 - self.dampening) * d
            d = d + self.momentum * self.buffer if self.nesterov else self.buffer
        return x - lr * d


class Adam:
    """`torch.optim.Adam`, with `decoupled` `torch.optim.AdamW`: x - lr mhat / (sqrt(vhat) + eps)."""

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps_in_root: bool = False,
    ) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.decoupled, self.eps_in_root = decoupled, eps_in_root
        self.t, self.m, self.v = 0, np.zeros(()), np.zeros(())

    def __call__(self, x: Array, g: Array, lr: float) -> Array:
        self.t += 1
        if self.decoupled:
            x = x * (1 - lr * self.weight_decay)
        else:
            g = g + self.weight_decay * x
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        mhat, vhat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return x - lr * mhat / (np.sqrt(vhat + self.eps) if self.eps_in_root else np.sqrt(vhat) + self.eps)


class AccumAdam:
    r"""AccumAdam, with `decoupled` AccumAdamW: moves at every step, commits the moments of a window's mean gradient.

    *Reading*: with `eps_in_root` the denominator is $\sqrt{\hat v + \epsilon}$, epsilon added to the bias-corrected
    second moment.
    """

    def __init__(
        self,
        accum_steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        eps_in_root: bool = False,
    ) -> None:
        self.s, self.betas, self.eps, self.weight_decay = accum_steps, betas, eps, weight_decay
        self.decoupled, self.eps_in_root = decoupled, eps_in_root
        self.t, self.m, self.v, self.b = 0, np.zeros(()), np.zeros(()), np.zeros(())

    def __call__(self, x: Array, g: Array, lr: float) -> Array:
        self.t += 1
        k = math.ceil(self.t / self.s)
        b1, b2 = self.betas
        if self.decoupled:
            x = (1 - lr * self.weight_decay) * x
        else:
            g = g + self.weight_decay * x
        m = b1 * self.m + (1 - b1) * g
        v = b2 * self.v + (1 - b2) * g**2
        if self.eps_in_root:
            below = np.sqrt(v / (1 - b2**k) + self.eps)
        else:
            below = np.sqrt(v) / math.sqrt(1 - b2**k) + self.eps
        x = x - lr / (1 - b1**k) * m / below
        self.b = self.b + g / self.s
        if self.t % self.s == 0:
            self.m = b1 * self.m + (1 - b1) * self.b
            self.v = b2 * self.v + (1 - b2) * self.b**2
            self.b = np.zeros_like(self.b)
        return x


def allreduce(q: Quadratics, move: Move, lrs: Sequence[float]) -> Array:
    """Centralized training: everybody moves along the mean of the gradients. The workers start equal."""
    x, path = q.x0, [q.x0]
    for t, lr in enumerate(lrs):
        mean = q.gradient(t, x).mean(axis=0, keepdims=True)
        x = move(x, np.repeat(mean, len(x), axis=0), lr)
        path.append(x)
    return np.stack(path)


def sam(
    q: Quadratics,
    rounds: Sequence[Array],
    move: Move,
    lrs: Sequence[float],
    rho: float,
    order: str = "allreduce",
) -> Array:
    """SAM, every worker with its own perturbation: gradients at x_i + rho g_i / |g_i|, then the mean over the workers.

    *Reading*: both gradients of a step are taken on the same batch, so both carry the noise of the step. In the orders
    awc, atc and cta nothing is averaged, and the perturbed gradient stands where the gradient of DSGD stands.
    """
    x, path = q.x0, [q.x0]
    for t, lr in enumerate(lrs):
        at = rounds[t] @ x if order == "cta" else x
        g = q.gradient(t, at)
        g = q.gradient(t, at + rho * g / np.sqrt((g * g).sum(axis=1, keepdims=True)))
        if order == "allreduce":
            x = move(x, np.repeat(g.mean(axis=0, keepdims=True), len(x), axis=0), lr)
        elif order == "atc":
            x = rounds[t] @ move(x, g, lr)
        else:
            x = move(rounds[t] @ x, g, lr)
        path.append(x)
    return np.stack(path)


def dsgd(
    q: Quadratics,
    rounds: Sequence[Array],
    move: Move,
    lrs: Sequence[float],
    order: str = "awc",
    gamma: float | Sequence[float] = 1.0,
) -> Array:
    """Decentralized SGD (with Adam as move: DAdam) with rounds (1 - gamma) I + gamma W, in the three orders.

    awc: gradient at the own point, the move made from the mixed point; atc: the move is made, then mixed; cta: gradient
    and move at the mixed point.
    """
    gammas = [gamma] * len(lrs) if isinstance(gamma, float | int) else list(gamma)
    x, path = q.x0, [q.x0]
    for t, lr in enumerate(lrs):
        w = (1 - gammas[t]) * np.eye(len(x)) + gammas[t] * rounds[t]
        if order == "awc":
            g = q.gradient(t, x)
            x = move(w @ x, g, lr)
        elif order == "atc":
            x = w @ move(x, q.gradient(t, x), lr)
        else:
            mixed = w @ x
            x = move(mixed, q.gradient(t, mixed), lr)
        path.append(x)
    return np.stack(path)


def adaptive_factors(
    lrs: Sequence[float],
    p: float = 3.0,
    gamma_min: float = 0.0,
    start: int = 0,
    *,
    capture: str = "window",
    lr_max: float | None = None,
) -> list[float]:
    """The gammas of DSGD-AC: 1 before the start step, then gmin + (1 - gmin) (lr / lr_max)^p.

    lr_max is the maximum over all active steps (`window`), or the rate of the first active step (`published`).
    """
    active = list(lrs)[start:]
    if lr_max is None and active:
        lr_max = max(active) if capture == "window" else active[0]
    return [
        1.0 if t < start or lr_max is None else gamma_min + (1 - gamma_min) * (lr / lr_max) ** p
        for t, lr in enumerate(lrs)
    ]


def local_sgd(q: Quadratics, move: Move, lrs: Sequence[float], period: int) -> Array:
    """Independent moves; after the move of every `period`-th step the points (not the optimizers) are averaged."""
    x, path = q.x0, [q.x0]
    for t, lr in enumerate(lrs):
        x = move(x, q.gradient(t, x), lr)
        if (t + 1) % period == 0:
            x = np.repeat(x.mean(axis=0, keepdims=True), len(x), axis=0)
        path.append(x)
    return np.stack(path)


def gradient_tracking(q: Quadratics, rounds: Sequence[Array], move: Move, lrs: Sequence[float]) -> Array:
    """DIGing: y0 = g(x0); x+ = W x - lr y; y+ = W y + g(x+) - g(x), both with the round of the step.

    *Reading*: the noise of step t belongs to the gradient at the point x_t, which a step leaves from. A local optimizer
    other than plain SGD moves the mixed point with y in the place of the gradient.
    """
    x, path = q.x0, [q.x0]
    g = q.gradient(0, x)
    y = g
    for t, lr in enumerate(lrs):
        x = move(rounds[t] @ x, y, lr)
        new = q.gradient(t + 1, x)
        y = rounds[t] @ y + new - g
        g = new
        path.append(x)
    return np.stack(path)


def qg_dsgdm(
    q: Quadratics,
    rounds: Sequence[Array],
    lrs: Sequence[float],
    beta: float = 0.9,
    nu: float = 0.1,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Array:
    """QG-DSGDm(-N): momentum from the movement after mixing, d = (x - x+) / lr; m+ = (1 - nu) m + nu d. Order ATC."""
    x, path = q.x0, [q.x0]
    m = np.zeros_like(x)
    for t, lr in enumerate(lrs):
        g = q.gradient(t, x) + weight_decay * x
        fresh = beta * m + g
        u = g + beta * fresh if nesterov else fresh
        new = rounds[t] @ (x - lr * u)
        m = (1 - nu) * m + nu * (x - new) / lr
        x = new
        path.append(x)
    return np.stack(path)


def push_sum(q: Quadratics, rounds: Sequence[Array], move: Move, lrs: Sequence[float]) -> Array:
    """Stochastic gradient push: z = x / w, x+ = A (x - lr g(z)), w+ = A w, w0 = 1; deployed is z.

    *Reading*: a penalty is part of f_i and so of the gradient at z; a local optimizer steps from z, and x takes over
    its displacement, which for plain SGD is the line above.
    """
    x, w = q.x0, np.ones((len(q.x0), 1))
    path = [q.x0]
    for t, lr in enumerate(lrs):
        z = x / w
        x = rounds[t] @ (x + move(z, q.gradient(t, z), lr) - z)
        w = rounds[t] @ w
        path.append(x / w)
    return np.stack(path)


def top_k(rows: Array, k: int) -> Array:
    """Of every row its k entries of largest modulus, the others zero."""
    out = np.zeros_like(rows)
    for i, row in enumerate(rows):
        keep = np.argsort(-np.abs(row))[:k]
        out[i, keep] = row[keep]
    return out


def scaled_sign(rows: Array) -> Array:
    """The signs of every row, times the mean modulus of the row.

    *Reading*: the scale is the 1-norm over d, which makes the error of the message smaller than the message.
    """
    return np.sign(rows) * np.abs(rows).mean(axis=1, keepdims=True)


def choco_sgd(
    q: Quadratics,
    rounds: Sequence[Array],
    move: Move,
    lrs: Sequence[float],
    compress: Callable[[Array], Array],
    consensus_step: float,
    order: str = "gossip-first",
) -> Array:
    """CHOCO-SGD with public copies xh: move, gossip on the copies, send Q(x - xh), which everybody adds to xh.

    *Reading*: the copies start at zero. `compress-first` sends before it gossips, on the copies just renewed.
    """
    x, path = q.x0, [q.x0]
    copies = np.zeros_like(x)
    laplacian = rounds[0] - np.eye(len(x))  # rows of W sum to one: sum_j w_ij (xh_j - xh_i) = ((W - I) xh)_i
    for t, lr in enumerate(lrs):
        x = move(x, q.gradient(t, x), lr)
        if order == "gossip-first":
            x = x + consensus_step * laplacian @ copies
            copies = copies + compress(x - copies)
        else:
            copies = copies + compress(x - copies)
            x = x + consensus_step * laplacian @ copies
        path.append(x)
    return np.stack(path)


def quadratics(n: int, *, noise: bool = True, equal_start: bool = False, seed: int = 0) -> Quadratics:
    """Quadratics that differ between the workers, eigenvalues of A between 0.1 and about 4."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((n, DIM, DIM)) / np.sqrt(DIM)
    a = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(DIM)
    x0 = rng.standard_normal((n, DIM))
    if equal_start:
        x0 = np.repeat(x0[:1], n, axis=0)
    return Quadratics(
        a, rng.standard_normal((n, DIM)), x0, 0.3 * rng.standard_normal((STEPS, n, DIM)) if noise else None
    )


def distance(path: Array, truth: Array) -> float:
    """The largest relative error over the steps: of every step's points against the size of the points of that step."""
    return float(np.max(np.abs(path - truth).max(axis=(1, 2)) / np.abs(truth).max(axis=(1, 2))))
