r"""A round of exchange as one process sees it: which of its rows go where, what comes, and with which weights.

Process p holds the workers $pk, \dots, pk + k - 1$, k rows of the n. Of a round W it needs its own rows,

$$ (W X)_p = W_{pp} X_p + \sum_q W_{pq} X_q, $$

and of another process q only the rows that some row of $W_{pq}$ is not zero at. Both sides read that off the same
matrix, in the same order, so that nothing but the rows themselves has to travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology


@dataclass(frozen=True, eq=False)
class Part:
    """What one process does in one round."""

    sends: tuple[tuple[int, np.ndarray], ...]
    """(process, numbers of the own rows that it hears)."""
    receives: tuple[tuple[int, np.ndarray], ...]
    """(process, workers whose rows it sends)."""
    own: np.ndarray
    """The weights among the own rows, (k, k)."""
    heard: np.ndarray
    """The weights of the rows that come, in the order in which they come, (k, m)."""

    @cached_property
    def silent(self) -> bool:
        """Whether nothing happens: nobody speaks and everybody keeps what they have."""
        return not self.sends and not self.receives and np.array_equal(self.own, np.eye(len(self.own)))

    @cached_property
    def convex(self) -> bool:
        """Whether every row sums to one, to rounding, with no weight below zero."""
        both = np.hstack([self.own, self.heard])
        return bool(np.all(both >= 0) and np.all(np.abs(both.sum(axis=1) - 1.0) <= 1e-14 * both.shape[1]))

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """With one worker a process: the weights of what comes, as plain numbers."""
        return tuple(self.heard[0].tolist())


class Rounds:
    """The rounds of a topology as one process sees them, each made once as long as the schedule repeats."""

    def __init__(self, topology: Topology, rank: int, size: int) -> None:
        self.topology, self.rank, self.size = topology, rank, size
        self.block = topology.size // size
        """k, the workers in every process."""
        self._parts: dict[int, Part] = {}

    @property
    def workers(self) -> range:
        """The workers of this process."""
        return range(self.rank * self.block, (self.rank + 1) * self.block)

    def __getitem__(self, t: int) -> Part:
        period = self.topology.period
        key = t if period is None else t % period
        found = self._parts.get(key)
        if found is None:
            if period is None:
                self._parts.clear()
            found = self._parts[key] = part_of(self.topology[t], self.rank, self.block)
        return found


def part_of(w: MixingMatrix, rank: int, block: int) -> Part:
    """The part of process `rank` in a round among processes of `block` workers each."""
    mine = slice(rank * block, (rank + 1) * block)
    rows, columns = sp.csr_array(w.weights[mine]), sp.csc_array(w.weights[:, mine])
    heard = np.unique(rows.indices)
    heard = heard[(heard < mine.start) | (heard >= mine.stop)]
    receives = tuple((int(q), heard[heard // block == q]) for q in np.unique(heard // block))
    listeners: dict[int, list[int]] = {}
    for column in range(block):
        receivers = columns.indices[columns.indptr[column] : columns.indptr[column + 1]]
        for q in np.unique(receivers // block):
            if q != rank:
                listeners.setdefault(int(q), []).append(column)
    dense = rows.toarray()
    sends = tuple((q, np.array(own)) for q, own in sorted(listeners.items()))
    return Part(sends, receives, dense[:, mine], dense[:, heard])
