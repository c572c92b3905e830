r"""One round of exchange between stacked workers: the rows of $W_t V$ for a tensor of n rows.

Few routes, one result: nothing to do when nobody speaks; runs of rows moved towards runs of senders when every worker
hears at most one other (read twice, written once), or a gather where these have no order; a lookup of weighted rows
where workers hear few (single precision on a CPU); elsewhere a ring and its like by shifted slices; otherwise a dense
or a sparse product, whichever is faster by a measured rule. The route of a round is found once and kept as long as the
schedule repeats.

A tensor is best given in strips that fit into the cache. A strip is a view of a wider tensor, and what looks rows up
wants them to follow each other; so where the wider one is a whole number of strips wide it is read as a table of all
its strips' rows, of which every (wide / strip)-th is one of ours, and nothing is copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dissensus.theory.exchange import OnePeer, Run, plan
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology

DENSE_SHARE = 0.25
"""A dense product wins from this share of nonzero weights on."""
DENSE_UNTIL, MOST_SHIFTS = 12, 7
"""From so many workers on, and up to so many slices, shifted slices beat either product."""
ROWS_PER_RUN = 4
"""Shorter runs than this on average are not worth the calls, unless rows are long."""
LONG_ROW = 1 << 13
LOOKED_UP_SHARE = 0.4
"""Up to this share of nonzero weights, a lookup of weighted rows (`embedding_bag`) in single precision beats slices and
products on a CPU, by two times on a torus."""

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
    if weights.nnz == n and np.all(weights.diagonal() == 1.0):
        return Tensor.clone
    one_peer = plan(w).one_peer
    if one_peer is not None:
        return _one_peer(one_peer, dtype, device)
    if (dtype, device.type) == (torch.float32, "cpu") and weights.nnz <= LOOKED_UP_SHARE * n * n:
        return _looked_up(w)
    shifts = _shifts(w)
    if shifts is not None:
        return lambda value: _shifted(shifts, value)
    if weights.nnz >= DENSE_SHARE * n * n:
        dense = torch.from_numpy(w.dense()).to(device, dtype)
        return lambda value: _product(dense, value)
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
    return lambda value: _product(sparse, value)


def _product(w: Tensor, value: Tensor) -> Tensor:
    """W value; with a place for it, because an autocast around us would cast any other product."""
    return torch.mm(w, value, out=torch.empty(value.shape, dtype=value.dtype, device=value.device))


def _shifts(w: MixingMatrix) -> list[tuple[slice, slice, float]] | None:
    """The matrix as (receivers, senders, weight) with slices, the diagonal first; `None` if that takes many."""
    receiver, sender = w.weights.tocoo().coords
    if w.size < DENSE_UNTIL or w.weights.nnz > MOST_SHIFTS * w.size:
        return None
    order = np.lexsort((receiver, sender - receiver))
    receiver, hop, weight = receiver[order], (sender - receiver)[order], w.weights.data[order]
    breaks = np.flatnonzero((np.diff(hop) != 0) | (np.diff(receiver) != 1) | (np.diff(weight) != 0)) + 1
    if len(breaks) >= MOST_SHIFTS:
        return None
    found = []
    for lo, hi in zip([0, *breaks], [*breaks, len(receiver)], strict=True):
        first, last, by = int(receiver[lo]), int(receiver[hi - 1]) + 1, int(hop[lo])
        found.append((slice(first, last), slice(first + by, last + by), float(weight[lo])))
    own = [shift for shift in found if shift[0] == shift[1] == slice(0, w.size)]
    return own + [shift for shift in found if shift not in own] if own else None


def _shifted(shifts: Sequence[tuple[slice, slice, float]], value: Tensor) -> Tensor:
    mixed = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    torch.mul(value, shifts[0][2], out=mixed)
    for receivers, senders, weight in shifts[1:]:
        mixed[receivers].add_(value[senders], alpha=weight)
    return mixed


def _looked_up(w: MixingMatrix) -> Round:
    """The sum of the weighted rows that each worker hears, its own among them, in one pass over the result."""
    n, weights = w.size, w.weights
    heard, first = (torch.from_numpy(v.astype(np.int64)) for v in (weights.indices, weights.indptr[:-1]))
    weight = torch.from_numpy(weights.data.astype(np.float32))
    apart = {1: heard}

    def few_heard(value: Tensor) -> Tensor:
        value, width = value.detach(), value.shape[1]
        by, rest = divmod(value.stride(0), width)
        if rest or value.stride(1) != 1:
            by, value = 1, value.contiguous()
        if by not in apart:
            apart[by] = heard * by
        table = value.as_strided(((n - 1) * by + 1, width), (width, 1))
        return embedding_bag(apart[by], table, first, mode="sum", per_sample_weights=weight)

    return few_heard


def _one_peer(how: OnePeer, dtype: torch.dtype, device: torch.device) -> Round:
    """Every worker hears one other at most: x_i + w_ij (x_j - x_i) where rows sum to one, else w_ii x_i + w_ij x_j."""
    n = len(how.sender)
    index = torch.from_numpy(how.sender).to(device)
    mine = torch.from_numpy(how.keep).to(device, dtype)[:, None]
    theirs = torch.from_numpy(how.take).to(device, dtype)[:, None]
    convex = bool(np.all(how.keep + how.take == 1.0))

    def gathered(value: Tensor) -> Tensor:
        heard = value.index_select(0, index)
        return torch.lerp(value, heard, theirs, out=heard) if convex else torch.addcmul(mine * value, theirs, heard)

    runs = how.runs
    if runs is None or not convex or any(min(run.by, run.peer_by) < 0 for run in runs):
        return gathered  # mirrored rows are no view of a tensor

    def in_runs(value: Tensor) -> Tensor:
        if len(runs) * ROWS_PER_RUN > n and value.shape[1] < LONG_ROW:
            return gathered(value)
        return _toward(runs, value)

    return in_runs


def _toward(runs: Sequence[Run], value: Tensor) -> Tensor:
    mixed = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    for run in runs:
        own, peers = _rows(value, run.own, run.by, run.count), _rows(value, run.peer, run.peer_by, run.count)
        torch.lerp(own, peers, run.take, out=_rows(mixed, run.own, run.by, run.count))
        if run.paired:
            torch.lerp(peers, own, run.take, out=_rows(mixed, run.peer, run.peer_by, run.count))
    return mixed


def _rows(value: Tensor, first: int, by: int, count: int) -> Tensor:
    """Every `by`-th of `count` rows from `first` on, as a view."""
    return value[first : first + by * (count - 1) + 1 : by] if count > 1 else value[first : first + 1]
