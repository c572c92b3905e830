"""Chance that every machine agrees on: generators that are pure functions of (seed, step), and bounded redraws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dissensus.theory.errors import MixingError


def generator(name: str, seed: int, *key: int) -> np.random.Generator:
    """The random numbers of one step, of one attempt, or whatever else the key numbers."""
    if seed < 0:
        raise MixingError(f"{name}: seed must not be negative, got {seed}")
    return np.random.default_rng([seed, *key])


def connected_draw(
    name: str, n: int, seed: int, draw: Callable[[np.random.Generator], sp.csr_array], advice: str
) -> sp.csr_array:
    """The first connected graph of a bounded number of draws: a sample of the model, given that it is connected."""
    attempts = max(5, min(100, 10**6 // n))
    for attempt in range(attempts):
        graph = draw(generator(name, seed, attempt))
        if connected_components(graph, directed=False, return_labels=False) == 1:
            return graph
    raise MixingError(f"{name}: none of {attempts} draws was connected with n = {n} and seed = {seed}; {advice}")
