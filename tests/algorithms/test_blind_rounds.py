"""The rounds by name against the text: what the second oracle mixes with is not taken on trust.

Every matrix is written down here from the words that define it (who hears whom, with which weight), worker by worker.
"""

import math

import numpy as np
import pytest

from dissensus.theory import topology

Array = np.ndarray


def published_round(name: str, n: int, t: int, *, workers_per_node: int = 1) -> Array:
    """The round of step t of the topologies whose weights the text states, built from the text."""
    w = np.zeros((n, n))
    if name == "ring":
        for i in range(n):
            for j in (i - 1, i, i + 1):
                w[i, j % n] += 1 / 3
    elif name == "directed-ring":
        for i in range(n):
            w[i, i], w[i, i - 1] = 0.5, 0.5
    elif name == "one-peer-exponential":
        hop = 2 ** (t % math.ceil(math.log2(n)))
        for i in range(n):
            w[i, i] += 0.5
            w[i, (i - hop) % n] += 0.5
    elif name == "one-peer-hypercube":
        for i in range(n):
            w[i, i], w[i, i ^ 2 ** (t % int(math.log2(n)))] = 0.5, 0.5
    elif name == "one-peer-ring":
        for i in range(t % 2, n + t % 2, 2):
            pair = [i % n, (i + 1) % n]
            w[np.ix_(pair, pair)] = 0.5
    elif name == "aer":
        w = _alternating_exponential_ring(n, t, workers_per_node)
    else:
        raise ValueError(name)
    return w


def _alternating_exponential_ring(n: int, t: int, workers_per_node: int) -> Array:
    """Nodes paired at distance 2^k, the pairs counted on: at slot 2k the odd ones merge, at slot 2k+1 the even ones."""
    nodes = n // workers_per_node
    rounds = int(math.log2(nodes))
    k, late = divmod(t % (2 * rounds), 2)
    pairs = [(i, i + 2**k) for i in range(nodes) if not i & 2**k]
    w = np.zeros((n, n))
    for number, pair in enumerate(pairs, start=k * len(pairs)):
        merges = number % 2 != late
        for group in [pair] if merges else [(pair[0],), (pair[1],)]:
            members = [node * workers_per_node + i for node in group for i in range(workers_per_node)]
            w[np.ix_(members, members)] = 1 / len(members)
    return w


@pytest.mark.parametrize(
    ("name", "n", "keys"),
    [
        *[("ring", n, {}) for n in (3, 4, 5, 8)],
        *[("directed-ring", n, {}) for n in (3, 7)],
        *[("one-peer-exponential", n, {}) for n in (2, 5, 6, 8)],
        *[("one-peer-hypercube", n, {}) for n in (2, 4, 8)],
        *[("one-peer-ring", n, {}) for n in (4, 6, 8)],
        *[("aer", n, {"workers_per_node": k}) for n, k in ((2, 1), (8, 1), (16, 1), (4, 2), (8, 2), (16, 4))],
    ],
)
def test_rounds_are_those_of_the_text(name: str, n: int, keys: dict[str, int]) -> None:
    schedule = topology(name, n, **keys)
    for t in range(13):
        np.testing.assert_allclose(schedule[t].dense(), published_round(name, n, t, **keys), rtol=0, atol=1e-15)
