r"""How much of a measure lies below a point, from its Gauss quadrature: bounds, and a value between them.

At its own nodes the quadrature brackets the measure it stands for (Chebyshev, Markov, Stieltjes):

$$ \sum_{i<j} w_i \;\le\; F(\theta_j^-) \;\le\; F(\theta_j) \;\le\; \sum_{i\le j} w_i . $$

Between them the value is read off the line through the middles of the steps. The bracket is rigorous, and wide where a
node carries much: that is what so few steps know.
"""

from __future__ import annotations

import numpy as np

Rule = tuple[np.ndarray, np.ndarray]
"""Nodes, ascending, and their weights, summing to one."""


def share_below(rule: Rule, x: np.ndarray, atom: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower bound, value, and upper bound of the mass up to x, for an array of points.

    Nodes within `atom` of zero stand for eigenvalues that are zero: points below them do not see them.
    """
    nodes, weights = rule
    steps = np.concatenate([[0.0], np.cumsum(weights)])
    steps /= steps[-1]
    j = np.searchsorted(nodes, x, side="right")  # nodes[:j] lie at or below x
    low = steps[np.maximum(j - 1, 0)]
    high = steps[np.minimum(j + 1, len(nodes))]
    low = np.where(j == len(nodes), steps[-2], low)
    middle = (steps[1:] + steps[:-1]) / 2
    value = np.interp(x, nodes, middle) if len(nodes) > 1 else np.where(j > 0, 1.0, 0.0)
    value = np.where(j == 0, middle[0] * 0, np.where(j == len(nodes), 1.0, value))
    if atom > 0:
        ahead = np.minimum(j, len(nodes) - 1)
        blind = (j < len(nodes)) & (np.abs(nodes[ahead]) <= atom) & (x < -atom * (1 - 1e-9))
        value, high = np.where(blind, steps[j], value), np.where(blind, steps[j], high)
    return low, value, high
