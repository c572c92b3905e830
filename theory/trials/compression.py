"""Compressors on random and on worst vectors; expectations by enumeration or coordinate by coordinate, not by draws."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dissensus.theory.bounds.compression import Kept, Levels, Signs
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _vector(draws: Draws, d: int) -> np.ndarray:
    """From equal moduli to one number that outweighs all others."""
    rng = draws.generator()
    return np.sign(rng.normal(size=d)) * np.exp(rng.normal(size=d) * draws.real(1e-3, 5.0, log=True))


def _share(lost: np.ndarray, v: np.ndarray) -> float:
    return graphs.surely(float((lost**2).sum() / (v**2).sum()), 1.0)


@trial("top-k-loss")
def top(draws: Draws) -> Trial:
    """By sorting."""
    d = draws.integer(1, 12)
    v, k = _vector(draws, d), draws.integer(1, d)
    return Trial(Kept(d, k), _share(np.sort(np.abs(v))[: d - k], v))


@trial("top-k-loss", "equal moduli")
def top_flat(draws: Draws) -> Trial:
    """Attained."""
    d = draws.integer(1, 12)
    k, v = draws.integer(1, d), np.ones(d)
    return Trial(Kept(d, k), _share(np.sort(np.abs(v))[: d - k], v))


@trial("random-k-loss")
def random(draws: Draws) -> Trial:
    """The mean over all choices of k numbers."""
    d = draws.integer(1, 7)
    v, k = _vector(draws, d), draws.integer(1, d)
    losses = [(v**2).sum() - (v[list(kept)] ** 2).sum() for kept in combinations(range(d), k)]
    return Trial(Kept(d, k), graphs.resolved(float(np.mean(losses) / (v**2).sum())))


@trial("scaled-sign-loss")
def sign(draws: Draws) -> Trial:
    """By its definition, the flatness told or not."""
    d = draws.integer(1, 12)
    v = _vector(draws, d)
    flatness = float(np.abs(v).sum() ** 2 / (d * (v**2).sum())) if draws.choice((False, True)) else None
    return Trial(Signs(d, flatness), _share(np.abs(v).mean() * np.sign(v) - v, v))


@trial("scaled-sign-loss", "one number")
def sign_sharp(draws: Draws) -> Trial:
    """One number outweighs all others: nearly attained without knowing the flatness."""
    d = draws.integer(2, 12)
    v = np.full(d, draws.real(1e-9, 1e-2, log=True))
    v[0] = 1.0
    return Trial(Signs(d), _share(np.abs(v).mean() * np.sign(v) - v, v))


@trial("quantized-loss")
@trial("quantized-loss-sharp")
def quantized(draws: Draws) -> Trial:
    """Any vector."""
    d = draws.integer(1, 64)
    return _quantized(_vector(draws, d), draws.choice((1, 3, 7, 15)))


@trial("quantized-loss", "midway")
@trial("quantized-loss-sharp", "midway")
def quantized_midway(draws: Draws) -> Trial:
    """Equal moduli midway between two levels, one odd number to make the norm so: attained where d is large enough."""
    levels, d = draws.choice((1, 3, 7, 15)), draws.integer(2, 64)
    level = draws.integer(0, levels - 1) + 0.5
    v = np.full(d, level / levels)
    rest = 1.0 - (d - 1) * (level / levels) ** 2
    v[0] = np.sqrt(rest) if rest > 0 else v[1]
    return _quantized(v, levels)


def _quantized(v: np.ndarray, levels: int) -> Trial:
    """Each number falls on one of two levels, with known chances."""
    d, norm = len(v), float(np.linalg.norm(v))
    tau = 1.0 + min(d / levels**2, np.sqrt(d) / levels)
    at = levels * np.abs(v) / norm
    low = np.floor(at)
    up = at - low
    scale = norm / (levels * tau)
    expected = (1.0 - up) * (low * scale - np.abs(v)) ** 2 + up * ((low + 1.0) * scale - np.abs(v)) ** 2
    return Trial(Levels(d, levels), float(expected.sum()) / norm**2)
