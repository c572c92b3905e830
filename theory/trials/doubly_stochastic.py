"""Random doubly stochastic matrices for trials, with mixing from instant to almost none."""

from __future__ import annotations

import numpy as np

from dissensus.theory.trials.base import Draws

KINDS = ("ring", "permutations", "lazy complete", "signed pair", "complete", "groups")


def random_mixing(draws: Draws, size: int, *, symmetric: bool = False) -> np.ndarray:
    """One of several kinds, weakened towards the identity by a random amount in two of three cases.

    Args:
        draws: where the numbers come from.
        size: workers.
        symmetric: without the kinds that are not symmetric.
    """
    kind = draws.choice(KINDS)
    rng = draws.generator()
    eye, mean = np.eye(size), np.full((size, size), 1.0 / size)
    if kind == "ring":
        own = draws.real(0.0, 1.0)
        forward, back = np.roll(eye, 1, axis=1), np.roll(eye, -1, axis=1)
        tilt = 0.5 if symmetric else draws.real(0.0, 1.0)
        w = own * eye + (1.0 - own) * (tilt * forward + (1.0 - tilt) * back)
    elif kind == "permutations":
        count = 1 + int(rng.integers(size + 1))
        shares = rng.dirichlet(np.ones(count))
        w = np.zeros((size, size))
        for share in shares:
            w += share * eye[rng.permutation(size)]
        w = 0.5 * (w + w.T) if symmetric else w
    elif kind == "lazy complete":
        w = mean
    elif kind == "signed pair":
        # the best partner's weight is above one half: a negative eigenvalue
        w = eye.copy()
        for i in range(0, size - 1, 2):
            w[i, i] = w[i + 1, i + 1] = 0.1
            w[i, i + 1] = w[i + 1, i] = 0.9
        w = 0.5 * w + 0.5 * mean
    elif kind == "complete":
        return mean
    else:
        half = max(1, size // 2)
        w = np.zeros((size, size))
        w[:half, :half], w[half:, half:] = 1.0 / half, 1.0 / max(1, size - half)
        bridge = draws.real(1e-3, 1.0, log=True)
        w = (1.0 - bridge) * w + bridge * mean
    keep = draws.choice([0.0, draws.real(0.0, 1.0), 1.0 - draws.real(1e-3, 1.0, log=True)])
    return keep * eye + (1.0 - keep) * w


def one_peer_exponential(size: int) -> list[np.ndarray]:
    """The directed one-peer rounds i <- (i, i + 2^k) of one period."""
    eye = np.eye(size)
    hops = [2**k for k in range(max(1, (size - 1).bit_length()))]
    return [0.5 * (eye + np.roll(eye, hop, axis=1)) for hop in hops]


def one_peer_ring(size: int) -> list[np.ndarray]:
    """Pairs (0 1)(2 3)... and then (1 2)(3 4)...: two rounds, the second across the ring's seam if n is even."""
    rounds = []
    for first in (0, 1):
        w = np.eye(size)
        last = size if size % 2 == 0 else size - 1
        for i in range(first, last + first - 1, 2):
            j = (i + 1) % size
            w[i, i] = w[j, j] = w[i, j] = w[j, i] = 0.5
        rounds.append(w)
    return rounds


def contraction(w: np.ndarray) -> float:
    r"""$\lVert W - J\rVert_2$, rounding kept within [0, 1]."""
    return float(min(1.0, np.linalg.norm(w - 1.0 / len(w), 2)))
