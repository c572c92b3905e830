"""Exponential graphs written out hop by hop."""

from __future__ import annotations

import numpy as np

from dissensus.theory.bounds.gap_closed_forms import Sized
from dissensus.theory.trials import graphs
from dissensus.theory.trials.base import Draws, Trial, trial


def _shifts(n: int) -> list[np.ndarray]:
    found, hop = [], 1
    while hop < n:
        found.append(np.roll(np.eye(n), -hop, axis=1))
        hop *= 2
    return found


def _static(n: int) -> float:
    shifts = _shifts(n)
    return 1.0 - graphs.contraction((np.eye(n) + sum(shifts)) / (1 + len(shifts)))


@trial("gap-exponential")
def even_sizes(draws: Draws) -> Trial:
    """All hops at once, even sizes."""
    n = 2 * draws.integer(1, 40)
    return Trial(Sized(n), _static(n))


@trial("gap-exponential-any")
def any_size(draws: Draws) -> Trial:
    """All hops at once, every size."""
    n = draws.integer(2, 80)
    return Trial(Sized(n), _static(n))


@trial("one-peer-exponential")
def one_peer(draws: Draws) -> Trial:
    """One hop after another, powers of two as often as other sizes."""
    n = 1 << draws.integer(1, 6) if draws.choice((True, False)) else draws.integer(2, 80)
    product = np.eye(n)
    for shift in _shifts(n):
        product = (product + shift @ product) / 2.0
    return Trial(Sized(n), graphs.contraction(product))
