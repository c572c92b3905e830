r"""One round of exchange between stacked workers: the rows of $W_t V$ for a tensor of n rows.

Three routes, one result: nothing to do when nobody speaks, a gather of one row per worker when every worker hears at
most one other (one pass over memory instead of a product), and otherwise a dense or a sparse product, whichever touches
less. The route of a round is found once and kept for as long as the schedule repeats.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology

DENSE_BELOW = 32
"""Up to this many workers, or at more than 1 weight in 8, a dense product is taken."""

LONG_ROW, LARGE = 1 << 15, 1 << 23
"""From so many columns, or numbers in all, a one-peer round goes row by row: every number is then written once."""

Round = Callable[[Tensor], Tensor]


class Mixing:
    """The rounds of a topology as functions of a tensor with one row per worker."""

    def __init__(self, topology: Topology, dtype: torch.dtype, device: torch.device) -> None:
        self._topology, self._dtype, self._device = topology, dtype, device
        self._rounds: dict[int, Round] = {}

    def __call__(self, t: int, value: Tensor) -> Tensor:
        """The rows of W_t value, as a new tensor."""
        period = self._topology.period
        key = t if period is None else t % period
        if key not in self._rounds:
            if period is None:
                self._rounds.clear()
            self._rounds[key] = round_of(self._topology[t], self._dtype, self._device)
        return self._rounds[key](value)


def round_of(w: MixingMatrix, dtype: torch.dtype, device: torch.device) -> Round:
    """One round as a function of a tensor (n, k) of that dtype and device."""
    n, weights = w.size, w.weights
    own = weights.diagonal()
    links = weights.copy()
    links.setdiag(0.0)
    links.eliminate_zeros()
    if links.nnz == 0 and np.all(own == 1.0):
        return Tensor.clone
    if np.diff(links.indptr).max() <= 1:
        return _gather(links.indptr, links.indices, links.data, own, dtype, device)
    if n <= DENSE_BELOW or 8 * weights.nnz > n * n:
        dense = torch.from_numpy(w.dense()).to(device, dtype)
        return lambda value: dense @ value
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)", UserWarning)
        sparse = torch.sparse_csr_tensor(
            torch.from_numpy(weights.indptr.astype(np.int64)),
            torch.from_numpy(weights.indices.astype(np.int64)),
            torch.from_numpy(weights.data.copy()),  # torch must not see the read-only array of the topology
            size=(n, n),
            dtype=dtype,
            device=device,
        )
    return lambda value: sparse @ value


def _gather(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, own: np.ndarray, dtype: torch.dtype, device: torch.device
) -> Round:
    """Every worker hears one other at most: w_ii x_i + w_ij x_j, as x_i + w_ij (x_j - x_i) where rows sum to one."""
    n = len(own)
    heard = np.diff(indptr) == 1
    sender, weight = np.arange(n), np.zeros(n)
    sender[heard], weight[heard] = indices, data
    index = torch.from_numpy(sender).to(device)
    if np.all(own + weight == 1.0):
        column = torch.from_numpy(weight).to(device, dtype)[:, None]
        pairs = [(i, int(j), float(column[i, 0])) for i, j in enumerate(sender)]

        def toward_sender(value: Tensor) -> Tensor:
            if value.shape[1] < LONG_ROW and value.numel() < LARGE:
                return torch.lerp(value, value.index_select(0, index), column)
            mixed = torch.empty_like(value)
            for i, j, share in pairs:
                torch.lerp(value[i], value[j], share, out=mixed[i])
            return mixed

        return toward_sender
    mine = torch.from_numpy(own).to(device, dtype)[:, None]
    theirs = torch.from_numpy(weight).to(device, dtype)[:, None]
    return lambda value: torch.addcmul(mine * value, theirs, value.index_select(0, index))
