r"""One round of exchange applied to stacked workers: $x^+ = W x$ for an n x d array, as fast as the memory allows.

A *one-peer* round, $x_i^+ = a_i x_i + b_i x_{p_i}$, moves hardly more bytes than a copy does. Its rows are grouped into
runs of evenly spaced workers with evenly spaced senders and equal weights (a shift is two runs, a matching at distance
h is n/2h or one), and a run is a batch of 2 x 2 (a pair of workers, read once and written twice) or 1 x 2 matrix
products on strided views of x, in strips of columns that stay in the cache. Short rows without order are gathered.

Any other round is a dense matrix product or a sparse one; the rule that chooses is a ratio of their measured speeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.lib.stride_tricks import as_strided

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix

STRIP = 1 << 17
"""Entries of a row per strip: long enough to hide the calls, short enough for a row read twice to be cached still."""
SHORT_ROW_BYTES = 12 << 10
"""Shorter rows than this are gathered when they form no runs: a call per row would cost more than the row."""
NARROW = 64
"""Rows with fewer entries than this are not worth a matrix product each."""
LONG_RUN = 4
"""Shorter runs are taken apart: views of runs cost more than a few rows."""
DENSE_SHARE, DENSE_SIZE = 0.12, 16
"""A dense product wins from this share of nonzero weights on, and up to this n."""
MOST_RUNS = 20_000
"""A round with more runs than this has no order worth listing: it is gathered."""
FEW_NEIGHBOURS = 6
"""Up to this many weights per row a sparse product reads rows too seldom for strips to pay."""
SPARSE_STRIP_BYTES = 1 << 19
"""A strip of columns of all n rows for a sparse product; it and its result stay in the cache."""


@dataclass(frozen=True)
class Run:
    """`count` rows from `own` on, every `by`-th, take `keep` times themselves plus `take` times a row of `peer`."""

    own: int
    peer: int
    by: int
    peer_by: int
    count: int
    keep: float
    take: float
    paired: bool
    """Whether the peers take as much from these rows, and are not listed on their own."""

    @property
    def rows(self) -> slice:
        """The rows that receive."""
        return _slice(self.own, self.by, self.count)

    @property
    def peers(self) -> slice:
        """The rows that are heard."""
        return _slice(self.peer, self.peer_by, self.count)

    def weights(self, dtype: np.dtype) -> np.ndarray:
        """2 x 2 for a pair, 1 x 2 for a directed row, columns in the order in which the rows lie in memory."""
        mix = np.array([[self.keep, self.take], [self.take, self.keep]], dtype)
        return mix if self.paired else mix[:1] if self.own < self.peer else mix[1:]


@dataclass(frozen=True)
class OnePeer:
    """The plan of a round in which nobody hears more than one other worker."""

    runs: tuple[Run, ...] | None
    """`None` where they are too many to be of use."""
    sender: np.ndarray
    keep: np.ndarray
    take: np.ndarray


@dataclass(frozen=True)
class ExchangePlan:
    """How one matrix is applied: by its one-peer plan, else by a dense or sparse product in the precision of x."""

    one_peer: OnePeer | None
    prefers_dense: bool
    dense: dict[np.dtype, np.ndarray]
    sparse: dict[np.dtype, sp.csr_array]


_plans: WeakKeyDictionary[MixingMatrix, ExchangePlan] = WeakKeyDictionary()


def plan(w: MixingMatrix) -> ExchangePlan:
    """The plan of a matrix, made once and kept as long as the matrix lives."""
    found = _plans.get(w)
    if found is None:
        dense = w.size <= DENSE_SIZE or w.weights.nnz >= DENSE_SHARE * w.size**2
        found = _plans[w] = ExchangePlan(_one_peer(w), dense, {}, {})
    return found


def exchange(w: MixingMatrix, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """What every worker holds after one round: W x, row i that of worker i, in the precision of x.

    Args:
        w: the round.
        x: n x d, float32 or float64; not changed.
        out: where to put the result; must not overlap x, since a round reads what it would overwrite.
    """
    if x.ndim != 2 or x.shape[0] != w.size:
        raise MixingError(f"expected x with one row for each of {w.size} workers, (n, d), got shape {x.shape}")
    if x.dtype not in (np.float32, np.float64):
        raise MixingError(f"expected x in float32 or float64, got {x.dtype}; convert it with x.astype(np.float64)")
    if out is None:
        out = np.empty(x.shape, x.dtype)
    elif out.shape != x.shape or out.dtype != x.dtype:
        raise MixingError(f"out must be {x.shape} of {x.dtype} like x, got {out.shape} of {out.dtype}")
    elif np.may_share_memory(out, x):
        raise MixingError("out overlaps x in memory: a round reads what it would overwrite; pass another array")
    how = plan(w)
    if how.one_peer is not None:
        _apply_one_peer(how.one_peer, x, out)
    elif how.prefers_dense:
        if x.dtype not in how.dense:
            how.dense[x.dtype] = w.dense().astype(x.dtype)
        np.matmul(how.dense[x.dtype], x, out=out)
    else:
        if x.dtype not in how.sparse:
            how.sparse[x.dtype] = sp.csr_array(w.weights.astype(x.dtype))
        _apply_sparse(how.sparse[x.dtype], x, out)
    return out


def _one_peer(w: MixingMatrix) -> OnePeer | None:
    """Sender and weights of every row when no row hears two others, else `None`."""
    n = w.size
    receiver, sender = w.weights.tocoo().coords
    other = receiver != sender
    if np.any(np.diff(receiver[other]) == 0):  # coordinates come in the order of rows
        return None
    peer, take = np.arange(n), np.zeros(n)
    peer[receiver[other]] = sender[other]
    take[receiver[other]] = w.weights.data[other]
    keep = w.weights.diagonal()
    return OnePeer(_runs(peer, keep, take), peer, keep, take)


def _runs(peer: np.ndarray, keep: np.ndarray, take: np.ndarray) -> tuple[Run, ...] | None:
    """Groups rows into runs. Of a mutual pair with the same weights on both sides only the first is listed."""
    row = np.arange(len(peer))
    paired = (peer != row) & (peer[peer] == row) & (take[peer] == take) & (keep[peer] == keep)
    runs: list[Run] = []
    for chosen, mutual in ((np.flatnonzero(~paired), False), (np.flatnonzero(paired & (row < peer)), True)):
        facts = np.stack([np.diff(chosen), np.diff(peer[chosen]), np.diff(keep[chosen]), np.diff(take[chosen])])
        # a run goes on while spacing and jump stay as between its first two rows, and the weights stay
        breaks = np.flatnonzero((np.diff(facts[:2]) != 0).any(axis=0)) + 1
        changes = np.flatnonzero((facts[2:] != 0).any(axis=0))
        if len(breaks) + len(changes) > MOST_RUNS:
            return None
        at = 0
        while at < len(chosen):
            last = min(_first_from(breaks, at + 1), _first_from(changes, at), len(chosen) - 1)
            count = last - at + 1
            if count < LONG_RUN or facts[1, at] == 0:  # all of them hear one worker: no run of senders
                count = 1
            i, p = int(chosen[at]), int(peer[chosen[at]])
            by, peer_by = (int(facts[0, at]), int(facts[1, at])) if count > 1 else (1, 1)
            runs.append(Run(i, p, by, peer_by, count, float(keep[i]), float(take[i]), mutual))
            at += count
    return tuple(runs)


def _first_from(places: np.ndarray, at: int) -> int:
    where = int(np.searchsorted(places, at))
    return int(places[where]) if where < len(places) else np.iinfo(np.int64).max


def _slice(first: int, by: int, count: int) -> slice:
    end = first + by * count
    return slice(first, end if end >= 0 else None, by) if count > 1 else slice(first, first + 1)


def _apply_one_peer(how: OnePeer, x: np.ndarray, out: np.ndarray) -> None:
    n, d = x.shape
    if how.runs is None or (d * x.itemsize < SHORT_ROW_BYTES and LONG_RUN < n <= LONG_RUN * len(how.runs)):
        _gather(how, x, out)
        return
    plain = x.flags.c_contiguous and out.flags.c_contiguous
    products: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for run in how.runs:
        views = _as_product(run, x, out) if plain and run.take != 0 else None
        if views is None:
            _elementwise(run, x, out)
        elif views[0].shape[-1] == d:
            products.append((run.weights(x.dtype), *views))
        else:
            _multiply([(run.weights(x.dtype), *views)])
    _multiply(products)


def _as_product(run: Run, x: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Views of x and out between which the run is one (batched) matrix product, or `None` where that is no gain."""
    d, row, item = x.shape[1], x.strides[0], x.itemsize
    low, gap = min(run.own, run.peer), abs(run.peer - run.own)
    if run.count == 1:
        both = slice(low, low + gap + 1, gap)
        return x[both], out[both] if run.paired else out[run.own : run.own + 1]
    if run.by != run.peer_by:
        return None
    if run.paired and run.by == 1:  # two slabs of whole rows are two long rows
        shape, strides = (2, run.count * d), (gap * row, item)
        return as_strided(x[low:], shape, strides), as_strided(out[low:], shape, strides)
    if d < NARROW:
        return None
    shape, strides = (run.count, 2, d), (run.by * row, gap * row, item)
    batch = as_strided(x[low:], shape, strides)
    if run.paired:
        return batch, as_strided(out[low:], shape, strides)
    return batch, out[run.rows][:, None, :]


def _multiply(products: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """Matrix products of rows of one length, strip by strip: what two of them read is in the cache the second time."""
    length = products[0][1].shape[-1] if products else 0
    for c in range(0, length, STRIP):
        for weights, source, target in products:
            np.matmul(weights, source[..., c : c + STRIP], out=target[..., c : c + STRIP])


def _elementwise(run: Run, x: np.ndarray, out: np.ndarray) -> None:
    """A run by whole slices: rows too narrow for products, mirrored pairs, arrays that are not contiguous."""
    keep, take = x.dtype.type(run.keep), x.dtype.type(run.take)
    high = max(1, STRIP // max(1, x.shape[1]))
    rows, peers = range(x.shape[0])[run.rows], range(x.shape[0])[run.peers]
    for r in range(0, run.count, high):
        own, peer = _as_slice(rows[r : r + high]), _as_slice(peers[r : r + high])
        if run.take == 0:
            np.multiply(x[own], keep, out=out[own]) if run.keep != 1 else np.copyto(out[own], x[own])
            continue
        if run.paired and run.keep == run.take:
            scratch = np.add(x[own], x[peer])
            np.multiply(scratch, keep, out=out[own])
            np.multiply(scratch, keep, out=out[peer])
            continue
        scratch = np.multiply(x[peer], take)
        if run.keep != 0:
            np.multiply(x[own], keep, out=out[own])
            np.add(out[own], scratch, out=out[own])
        else:
            np.copyto(out[own], scratch)
        if run.paired:
            np.multiply(x[own], take, out=scratch)
            np.multiply(x[peer], keep, out=out[peer])
            np.add(out[peer], scratch, out=out[peer])


def _as_slice(rows: range) -> slice:
    return _slice(rows.start, rows.step, len(rows))


def _gather(how: OnePeer, x: np.ndarray, out: np.ndarray) -> None:
    """Short rows without order: fetch the senders of a block of rows, then finish the block in the cache."""
    n, d = x.shape
    high = max(1, STRIP // max(1, d))
    keep, take = how.keep.astype(x.dtype)[:, None], how.take.astype(x.dtype)[:, None]
    even = bool(np.all(how.keep == how.keep[0]) and np.all(how.take == how.take[0]) and how.keep[0] > 1e-3)
    in_place = even and out.flags.c_contiguous
    for r in range(0, n, high):
        rows = slice(r, min(r + high, n))
        to = out[rows]
        fetched = to if in_place else np.empty(to.shape, x.dtype)
        np.take(x, how.sender[rows], axis=0, out=fetched, mode="clip")
        if even:  # keep (x_i + (take / keep) x_p)
            if how.take[0] != how.keep[0]:
                np.multiply(fetched, take[0, 0] / keep[0, 0], out=fetched)
            np.add(fetched, x[rows], out=to)
            np.multiply(to, keep[0, 0], out=to)
        else:
            np.multiply(fetched, take[rows], out=fetched)
            np.multiply(x[rows], keep[rows], out=to)
            np.add(to, fetched, out=to)


def _apply_sparse(w: sp.csr_array, x: np.ndarray, out: np.ndarray) -> None:
    """The sparse product, where rows are read often in strips of columns that all fit into the cache."""
    n, d = x.shape
    wide = max(16, SPARSE_STRIP_BYTES // (n * x.itemsize))
    if d <= 2 * wide or w.nnz <= FEW_NEIGHBOURS * n:
        out[...] = w @ x
        return
    for c in range(0, d, wide):
        out[:, c : c + wide] = w @ np.ascontiguousarray(x[:, c : c + wide])
