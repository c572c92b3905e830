"""Random graphs and mixing matrices for trials, dense, and what is measured on them.

Extreme families (paths, stars, barbells, lollipops, complete bipartite graphs, near permutations) are drawn as often
as random ones: bounds about graphs are attained at the extremes.
"""

from __future__ import annotations

import numpy as np

from dissensus.theory.trials.base import Draws

SHAPES = ("tree", "sparse", "dense", "path", "ring", "star", "complete", "barbell", "lollipop", "bipartite")
MATRICES = ("metropolis", "lazy", "even", "involution", "symmetric-mixture")


def adjacency(draws: Draws, low: int = 2, high: int = 12) -> np.ndarray:
    """The adjacency matrix of a connected graph."""
    n = draws.integer(low, high)
    shape = draws.choice(SHAPES)
    a = np.zeros((n, n))
    if shape in ("path", "ring", "barbell", "lollipop"):
        for i in range(n - 1):
            a[i, i + 1] = 1.0
    if shape == "ring" and n > 2:
        a[0, n - 1] = 1.0
    if shape in ("barbell", "lollipop"):
        near = draws.integer(1, n)
        a[:near, :near] = 1.0
        if shape == "barbell":
            a[n - draws.integer(1, n) :, n - near :] = 1.0
    if shape == "star":
        a[0, 1:] = 1.0
    if shape == "complete":
        a[:, :] = 1.0
    if shape == "bipartite":
        part = draws.integer(1, n - 1)
        a[:part, part:] = 1.0
        if draws.choice((False, True)):  # the smaller part linked within, too
            a[:part, :part] = 1.0
    if shape in ("tree", "sparse", "dense"):
        rng = draws.generator()
        for i in range(1, n):
            a[int(rng.integers(i)), i] = 1.0
        if shape != "tree":
            a += rng.random((n, n)) < (draws.real(0.0, 0.3) if shape == "sparse" else draws.real(0.3, 1.0))
    a = np.maximum(a, a.T)
    np.fill_diagonal(a, 0.0)
    return np.minimum(a, 1.0)


def weighted(a: np.ndarray, *, lazy: bool = False) -> np.ndarray:
    """Metropolis weights 1/(1 + max of degrees), or the lazy ones 1/(2 max of degrees)."""
    d = a.sum(axis=1)
    largest = np.maximum(d[:, None], d[None, :])
    w = np.where(a > 0, 1.0 / (2.0 * np.maximum(largest, 1.0) if lazy else 1.0 + largest), 0.0)
    return w + np.diag(1.0 - w.sum(axis=1))


def laplacian(a: np.ndarray) -> np.ndarray:
    """Degrees less links."""
    return np.diag(a.sum(axis=1)) - a


def symmetric(draws: Draws, low: int = 2, high: int = 10) -> np.ndarray:
    """A symmetric doubly stochastic matrix; eigenvalues of all signs, gaps from none to one."""
    kind = draws.choice(MATRICES)
    if kind in ("metropolis", "lazy"):
        w = weighted(adjacency(draws, low, high), lazy=kind == "lazy")
    else:
        n = draws.integer(low, high)
        if kind == "even":
            w = even(n, draws.real(-1.0 / (n - 1), 1.0))
        else:
            rng, w = draws.generator(), np.zeros((n, n))
            pieces = 1 if kind == "involution" else 3
            for share in rng.dirichlet(np.ones(pieces)):
                p = np.eye(n)[rng.permutation(n)]
                if kind == "involution":
                    order = rng.permutation(n)
                    p = np.eye(n)
                    for i, j in zip(order[0::2], order[1::2], strict=False):
                        p[[i, j]] = p[[j, i]]
                w += share * (p + p.T) / 2.0
            w = (1.0 - (keep := draws.real(0.0, 1.0))) * w + keep * (
                np.eye(n) if kind == "involution" else even(n, 0.0)
            )
    gamma = draws.real(0.0, 1.0) if draws.choice((False, True)) else 1.0
    return (1.0 - gamma) * np.eye(len(w)) + gamma * w


def connected(draws: Draws, low: int = 2, high: int = 10) -> np.ndarray:
    """A symmetric doubly stochastic matrix that contracts: a little of everybody is mixed into one that does not."""
    w = symmetric(draws, low, high)
    return w if contraction(w) < 0.999 else 0.9 * w + 0.1 * average(len(w))


def mixing(draws: Draws, low: int = 2, high: int = 10) -> np.ndarray:
    """A doubly stochastic matrix, symmetric or not."""
    if draws.choice((True, False)):
        return symmetric(draws, low, high)
    n = draws.integer(low, high)
    return directed(draws, n)


def directed(draws: Draws, n: int) -> np.ndarray:
    """A mixture of permutations, of shifts as likely as of any."""
    rng = draws.generator()
    some = rng.integers(1, 5)
    shifts = draws.choice((True, False))
    pieces = [
        np.roll(np.eye(n), int(rng.integers(n)), axis=1) if shifts else np.eye(n)[rng.permutation(n)]
        for _ in range(some)
    ]
    return np.tensordot(rng.dirichlet(np.ones(some)), np.array(pieces), axes=1)


def rounds(draws: Draws, n: int, count: int) -> list[np.ndarray]:
    """Doubly stochastic matrices of one size: matchings, shifts, mixtures."""
    kind = draws.choice(("matchings", "shifts", "any"))
    made = []
    for k in range(count):
        if kind == "shifts":
            made.append((np.eye(n) + np.roll(np.eye(n), 1 << k % max(1, (n - 1).bit_length()), axis=1)) / 2.0)
        elif kind == "matchings":
            p, order = np.eye(n), draws.generator().permutation(n)
            for i, j in zip(order[0::2], order[1::2], strict=False):
                p[[i, j]] = p[[j, i]]
            made.append((np.eye(n) + p) / 2.0)
        else:
            made.append(directed(draws, n))
    return made


def even(n: int, value: float) -> np.ndarray:
    """The matrix of which all eigenvalues but that of agreement have this value."""
    return value * np.eye(n) + (1.0 - value) / n


def average(n: int) -> np.ndarray:
    """J."""
    return np.full((n, n), 1.0 / n)


def contraction(w: np.ndarray) -> float:
    """The 2-norm of W - J, by singular values."""
    return min(1.0, resolved(float(np.linalg.norm(w - average(len(w)), 2)), len(w)))


def modes(w: np.ndarray) -> np.ndarray:
    """The eigenvalues of a symmetric W but that of agreement, ascending; a rounding beyond ±1 is cut off."""
    # agreement is moved out of the way, beyond all others
    values = np.linalg.eigvalsh((w + w.T) / 2.0 + 3.0 * average(len(w)))[:-1]
    return np.clip(values, -1.0, 1.0)


def apart(x: np.ndarray) -> np.ndarray:
    """The rows about their mean."""
    return x - x.mean(axis=0)


def resolved(value: float, scale: float = 1.0) -> float:
    """The value, or zero where it is below the rounding of dense algebra at this scale."""
    return 0.0 if abs(value) <= 1e-13 * scale else value


def surely(value: float, scale: float) -> float:
    """What the value is at least, whatever algebra on numbers of this scale has rounded: for upper bounds."""
    return max(0.0, value - 1e-13 * scale)


def random_state(draws: Draws, n: int, d: int = 2) -> np.ndarray:
    """Workers anywhere, on average in agreement to a random degree."""
    rng = draws.generator()
    return rng.normal(size=(n, d)) * draws.real(1e-3, 10.0, log=True) + rng.normal(size=(1, d))


def slowest(w: np.ndarray) -> np.ndarray:
    """The unit vector that W - J shortens least."""
    return np.linalg.svd(w - average(len(w)))[2][0]
