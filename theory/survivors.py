r"""A topology among those that are left: every path through a worker that is gone becomes a link between its ends.

With S the workers that are left and D those that are gone, a round W becomes its stochastic complement on S,

$$ W' = W_{SS} + W_{SD}\,(I - W_{DD})^{-1}\,W_{DS}, $$

and the identity on D. What sums to one in W sums to one in W': rows, columns, or both, directed or not. So it is doubly
stochastic on S wherever W was, which giving the weight of a lost link back to its ends is for symmetric rounds only.
In terms of $L = I - W$ it is the Schur complement (Kron reduction) of L. For symmetric rounds the eigenvalues
interlace, $\lambda_k(L) \le \lambda_k(L') \le \lambda_{k+|D|}(L)$, so mixing among those that are left contracts at
least as fast as it did among all: no loss disconnects a round, and a ring without one worker is a ring.

A schedule may fall apart all the same: rounds of pairs link two workers over a period by way of a third. Then all
rounds become one, the complement of their mean, which is connected because the schedule was.

Reference: Meyer 1989, SIAM Review 31 (stochastic complements); Dörfler and Bullo 2013, arXiv:1102.2950 (interlacing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import ClosedForm, Topology

LOOKED_AT = 64
"""So many rounds of a schedule without a period are looked at to see whether it is connected."""


def among(topology: Topology, left: Iterable[int]) -> Topology:
    """The topology of the same size in which only those that are left mix, each with all that its paths lead to."""
    n = topology.size
    there = np.zeros(n, dtype=bool)
    for worker in left:
        if not 0 <= worker < n:
            raise MixingError(f"topology {topology.name!r}: there is no worker {worker}, workers are 0 to {n - 1}")
        there[worker] = True
    if there.all():
        return topology
    if not there.any():
        raise MixingError(f"topology {topology.name!r}: nobody is left of its {n} workers")
    gone = [int(i) for i in np.flatnonzero(~there)]
    whole = topology.draw
    seen = [topology[t] for t in range(topology.period or LOOKED_AT)]
    rounds = tuple(complement(w, there) for w in seen)
    draw: Callable[[int], MixingMatrix] | None = None
    if not _connected(rounds, there) and _connected(seen, np.ones(n, dtype=bool)):
        rounds = (complement(_mean(seen), there),)
    elif whole is not None:
        rounds, draw = (), lambda t: complement(whole(t), there)
    return replace(
        topology,
        name=f"{topology.name}(without {', '.join(map(str, gone))})",
        rounds=rounds,
        draw=draw,
        parameters={**topology.parameters, "gone": gone},
        closed_form=ClosedForm(),
        moments=None,
        may_disconnect=True,
    )


def complement(w: MixingMatrix, there: np.ndarray) -> MixingMatrix:
    """The stochastic complement of a round on a mask of workers, and the identity on the others."""
    here, gone = np.flatnonzero(there), np.flatnonzero(~there)
    # those that are gone and linked with nobody that is left drop out: I - W_DD would be singular
    links = w.weights[gone][:, gone]
    count, label = connected_components(links, directed=False)
    outward = abs(w.weights[gone][:, here]).sum(axis=1) + abs(w.weights[here][:, gone]).sum(axis=0)
    linked = np.bincount(label, np.asarray(outward).ravel(), count) > 0
    through = gone[linked[label]]
    kept: Any = w.weights[here][:, here]
    if len(through):
        try:
            paths = np.linalg.inv(np.eye(len(through)) - w.weights[through][:, through].toarray())
        except np.linalg.LinAlgError:
            paths = np.full((1, 1), np.inf)
        if not np.isfinite(paths).all() or np.abs(paths).max() > 1e12:
            raise MixingError(
                f"workers {', '.join(map(str, through))} are gone, and some of them heard nobody but each other: what "
                "others heard of them cannot be replaced; use a doubly stochastic topology"
            )
        if not w.signed:
            paths = np.maximum(paths, 0.0)  # as they are but for rounding
        inward, onward = w.weights[here][:, through], w.weights[through][:, here]
        kept = kept + inward @ sp.csr_array(paths) @ onward
    inner = sp.coo_array(kept)
    rows, columns = inner.coords
    ends = (np.concatenate([here[rows], gone]), np.concatenate([here[columns], gone]))
    data = np.concatenate([inner.data, np.ones(len(gone))])
    n = w.size
    return MixingMatrix(sp.csr_array((data, ends), shape=(n, n)), w.promise, signed=w.signed)


def _connected(rounds: Iterable[MixingMatrix], there: np.ndarray) -> bool:
    """Whether the news of everybody there reaches everybody there."""
    union: Any = sum(abs(w.weights) for w in rounds)
    return connected_components(union[there][:, there], directed=True, connection="strong")[0] == 1


def _mean(rounds: list[MixingMatrix]) -> MixingMatrix:
    total: Any = sum(w.weights for w in rounds)
    return MixingMatrix(total / len(rounds), rounds[0].promise, signed=any(w.signed for w in rounds))
