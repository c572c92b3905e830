r"""The runtime model against times that others measured: published iterations on clusters, rows of emulated links.

*published*: a transformer with a fixed batch of 25k tokens in all, on three kinds of clusters, 8 to 64 workers: the
iteration of all-reduce, of the one-peer exponential schedule, and of the one that alternates between machines (AER).
The page gives the network and the times. It does not give the bytes of the model, how long computing takes, whether
all-reduce is overlapped, nor what bandwidth is reached. So these are assumed, in `ASSUMED`, once for all clusters, and
computing is one number per cluster, seconds per token, solved from all-reduce on its smallest size; that row then does
not count, and where no number solves it, the assumptions contradict the page and no row of the cluster is right. All
sets of assumptions are shown, so that none of them can be picked afterwards.

**What the check can tell**: whether a model of bandwidth, with the same assumptions everywhere, puts the three in the
published order (nearer than 5 % is a tie, which has to be predicted as one). **What it cannot**: whether the times are
right. Computing is assumed to fall as one over the number of workers, which the published times themselves contradict
on fast networks (from 16 to 64 T4 a worker's batch falls to a quarter and the iteration of AER to 0.39), and on the
slow network the all-reduce that computing is solved from hardly depends on computing.

**What it found**: the model gets all-reduce against AER mostly right and one-peer exponential mostly wrong: where four
or eight workers share a card it tends to come out behind all-reduce, and with 16 workers on 25 Gb/s it was published
as 2.0 times as fast. Nothing that is assumed here mends that. Half of those rounds cross machines with 4 V over a card,
all-reduce sends 1.9 V, so that whatever V, bandwidth and computing are, it is at most 1.05 times as fast (1.47 if
all-reduce is not overlapped). That one stream of a ring fills half a card and four pairs all of it mends it there, with
two bytes a number, roughly: the last of `ASSUMED`, made with the times in sight, which proves nothing.

*emulated*: rows of another benchmark on namespaces like ours, with local step, all-reduce and pair exchange measured
alone. Nothing is solved. How DDP cut its buckets is not said, so both ends are shown. Where stragglers were measured,
communication was not: it is what DDP adds without noise, and that row does not count.

Reference: Wang, Zhang, Wu and Johansson 2025, arXiv:2410.11998 (times); the recursions are ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np
from scipy import optimize

from dissensus.experiments.bench.distributed_contenders import SCHEDULES
from dissensus.theory.registry import topology
from dissensus.theory.runtime import (
    Cluster,
    Compute,
    Constant,
    Link,
    LogNormal,
    ShiftedExponential,
    all_reduce_pace,
    even_rounds,
    pace,
    rounds_on,
)
from dissensus.theory.runtime.recursion import Buckets
from dissensus.theory.topology import Topology

Who = Literal["all-reduce", "exponential", "aer"]
OVERLAPPED: dict[str, Any] = {"begins": 1 / 3, "buckets": 10}
"""How all-reduce may be sent beside computing."""
TOKENS, TIE = 25_000, 0.05
"""Of a batch, all workers together; times nearer than this are a tie."""


@dataclass(frozen=True)
class Assumed:
    """What the page does not give."""

    name: str
    bytes_per_number: int = 4
    reached: float = 1.0
    """Share of the nominal bandwidth between machines."""
    overlapped: bool = True
    """Whether all-reduce is sent as `OVERLAPPED` says, or at the end of computing."""
    deviation: float = 0.0
    """Of computing, log-normal."""
    inside: float = 10e9
    """Bytes per second inside a machine."""
    latency: float = 2e-5
    streams: int = 1
    """How many streams it takes to fill a card: one alone gets as little of it."""
    parameters: float = 65e6
    """Transformer base."""

    @property
    def compute(self) -> Compute:
        """A distribution of mean 1."""
        return LogNormal(self.deviation) if self.deviation else Constant()


ASSUMED = (
    Assumed("float32, nominal bandwidth, overlapped all-reduce, no noise"),
    Assumed("all-reduce not overlapped", overlapped=False),
    Assumed("70 % of the bandwidth", reached=0.7),
    Assumed("two bytes a number", bytes_per_number=2),
    Assumed("noise of 10 %", deviation=0.1),
    Assumed("two streams fill a card (afterwards)", streams=2),
    Assumed("two bytes a number, two streams fill a card (afterwards)", bytes_per_number=2, streams=2),
)
"""The first is what rows are shown for; the others differ from it in one thing each, the last in two."""


@dataclass(frozen=True)
class Published:
    """Milliseconds of an iteration, by number of workers: all-reduce, exponential, AER."""

    cluster: str
    per_node: int
    gigabits: float
    times: dict[int, tuple[float, float, float]]


PUBLISHED = (
    Published("8 T4 a node, 100 Gb/s InfiniBand", 8, 100.0,
              {16: (372.5, 314.8, 312.3), 32: (225.5, 178.8, 178.8), 64: (167.3, 123.1, 122.2)}),
    Published("4 A100 a node, 100 Gb/s InfiniBand", 4, 100.0,
              {8: (73.0, 63.4, 61.7), 16: (54.8, 46.8, 45.8), 32: (51.5, 44.7, 43.7)}),
    Published("4 A40 a node, 25 Gb/s Ethernet", 4, 25.0,
              {8: (166.1, 122.8, 122.0), 16: (195.5, 97.4, 78.9), 32: (188.5, 110.8, 67.9)}),
)  # fmt: skip


def replays() -> dict[str, Any]:
    """Both, row by row, and how many are right. A JSON-able dictionary; the same at every call."""
    sets = []
    for assumed in ASSUMED:
        rows = [row for one in PUBLISHED for row in published_rows(one, assumed)]
        sets.append({"assumed": asdict(assumed), "rows": rows, **counted(rows)})
    return {"published": sets, "emulated": list(emulated_rows())}


def published_rows(page: Published, assumed: Assumed) -> list[dict[str, Any]]:
    """One cluster at all sizes; the smallest gives seconds per token."""
    smallest = min(page.times)
    solved, solvable = _solved(page, smallest, assumed)
    rows = []
    for n, milliseconds in page.times.items():
        compute = solved * smallest / n
        found = _iterations(page, n, compute, assumed)
        said = dict(zip(found, (t / 1000 for t in milliseconds), strict=True))
        pairs = {f"{a}, {b}": (_sign(found, a, b), _sign(said, a, b)) for a, b in combinations(found, 2)}
        rows.append(
            {
                "cluster": page.cluster,
                "n": n,
                "compute_seconds": compute,
                "compute_seconds_per_token": solved * smallest / TOKENS,
                "compute_solvable": solvable,
                "counts": n != smallest,
                "predicted": found,
                "published": said,
                "predicted_order": _order(found),
                "published_order": _order(said),
                "right": solvable and all(ours == theirs for ours, theirs in pairs.values()),
                "pairs_right": {name: solvable and ours == theirs for name, (ours, theirs) in pairs.items()},
                "pairs_opposed": [name for name, (ours, theirs) in pairs.items() if ours * theirs < 0],
                "ratio_predicted": found["all-reduce"] / found["aer"],
                "ratio_published": said["all-reduce"] / said["aer"],
            }
        )
    return rows


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many orders, and orders of two, are right among the rows that count."""
    some = [row for row in rows if row["counts"]]
    return {
        "of": len(some),
        "right": sum(row["right"] for row in some),
        "pairs_right": {pair: sum(row["pairs_right"][pair] for row in some) for pair in rows[0]["pairs_right"]},
        "contradicted": sorted({row["cluster"] for row in some if not row["compute_solvable"]}),
        "pairs_opposed": sum(len(row["pairs_opposed"]) for row in some),
    }


def _cluster(page: Published, n: int, assumed: Assumed) -> Cluster:
    stream = Link(assumed.latency, assumed.reached * page.gigabits * 1e9 / 8 / assumed.streams)
    inside = Link(assumed.latency, assumed.inside)
    return Cluster(n // page.per_node, page.per_node, inside, stream, cards=assumed.streams, name=page.cluster)


def _iterations(page: Published, n: int, compute: float, assumed: Assumed) -> dict[Who, float]:
    """Predicted seconds. Pairs and groups are formed as decent-dp does, by all-reduces of two or more."""
    cluster, size = _cluster(page, n, assumed), assumed.parameters * assumed.bytes_per_number
    found: dict[Who, float] = {"all-reduce": _all_reduce(cluster, compute, size, assumed)}
    schedules: dict[Who, Topology] = {
        "exponential": topology(SCHEDULES["one-peer-exp"], n),
        "aer": topology("aer", n, workers_per_node=page.per_node),
    }
    for name, schedule in schedules.items():
        rounds, copies = rounds_on(schedule, cluster, size, groups=True), 8 if assumed.deviation else 1
        made = pace(rounds, assumed.compute, factors=(1 / compute,), iterations=1200, replicas=copies)
        found[name] = compute * float(made.value[0, 0])
    return found


def _all_reduce(cluster: Cluster, compute: float, size: float, assumed: Assumed) -> float:
    communication = cluster.all_reduce(size) / compute
    return compute * all_reduce_pace(
        assumed.compute, cluster.size, communication, **(OVERLAPPED if assumed.overlapped else {})
    )


def _solved(page: Published, n: int, assumed: Assumed) -> tuple[float, bool]:
    """Seconds of computing with which all-reduce takes what was published; a hundredth of it, and False, if none do."""
    cluster, target = _cluster(page, n, assumed), page.times[n][0] / 1000
    size = assumed.parameters * assumed.bytes_per_number

    def excess(compute: float) -> float:
        return _all_reduce(cluster, compute, size, assumed) - target

    low = target / 100
    if excess(low) >= 0:
        return low, False
    root: Any = optimize.brentq(excess, low, target, xtol=1e-9)
    return float(root), True


def _sign(times: dict[Who, float], a: Who, b: Who) -> int:
    ratio = times[a] / times[b]
    return 0 if max(ratio, 1 / ratio) <= 1 + TIE else 1 if ratio > 1 else -1


def _order(times: dict[Who, float]) -> str:
    """Fastest first; neighbours that tie are joined by `~`."""
    by_time = sorted(times, key=lambda who: times[who])
    return by_time[0] + "".join(f" {'<' if _sign(times, a, b) else '~'} {b}" for a, b in pairwise(by_time))


@dataclass(frozen=True)
class Emulated:
    """A row of the other benchmark, milliseconds: what was measured alone, and what of all."""

    setting: str
    local: float
    all_reduce: float
    pair: float
    ddp: float
    ring: float
    one_peer_exp: float
    n: int = 4
    buckets: Buckets = ((1 / 3 + 2 / 3 / 6, 1 / 6), (1.0, 5 / 6))
    """Assumed at one end: the two of our perceptron of as many parameters; a small model has one."""
    waits: float = 0.0
    """Mean of an exponential pause within `local`."""
    slow: float = 0.0
    """By how much one worker is slower than the others."""
    counts: bool = True


_ADDED = 64.0 - 52.0
"""What DDP adds to the local step where stragglers were measured, without any: taken for its communication."""
_PAIR = 2 / 3
"""Of an all-reduce among four, a pair's: bytes, and the rows of bandwidth."""

EMULATED = (
    Emulated("1 Gbit/s", 155, 124, 83, 181, 162, 162),
    Emulated("400 Mbit/s", 155, 310, 207, 362, 218, 229),
    Emulated("200 Mbit/s", 158, 620, 420, 668, 430, 415),
    Emulated("100 Mbit/s", 156, 1259, 834.5, 1318, 808, 857),
    Emulated("delay 0 ms", 62, 25, 17, 71, 64, 64, buckets=1),
    Emulated("delay 5 ms", 64, 72, 33, 128, 80, 77, buckets=1),
    Emulated("delay 20 ms", 62, 274.5, 108, 333, 118, 116, buckets=1),
    Emulated("no stragglers", 52, _ADDED, _PAIR * _ADDED, 64, 54, 54, buckets=1, counts=False),
    Emulated("exponential, mean 50 ms", 109, _ADDED, _PAIR * _ADDED, 164, 118, 118, buckets=1, waits=50),
    Emulated("exponential, mean 50 ms", 120, _ADDED, _PAIR * _ADDED, 218, 129, 128, n=8, buckets=1, waits=50),
    Emulated("one worker 50 ms slower", 101, _ADDED, _PAIR * _ADDED, 112, 103, 103, buckets=1, slow=50),
)
"""Where the other benchmark gives a range, its middle."""


def emulated_rows() -> Iterator[dict[str, Any]]:
    """Predicted and measured seconds of decent-dp on two schedules and of DDP."""
    for row in EMULATED:
        compute: Compute = ShiftedExponential(row.waits / row.local) if row.waits else Constant()
        alone = row.all_reduce / row.local
        predicted = {
            "ddp": row.local * all_reduce_pace(compute, row.n, alone, buckets=row.buckets),
            "ring": _decentralized(row, "ring", compute),
            "one-peer-exp": _decentralized(row, "one-peer-exp", compute),
        }
        measured = {"ddp": row.ddp, "ring": row.ring, "one-peer-exp": row.one_peer_exp}
        if row.all_reduce != _ADDED:
            predicted["ddp, overlapped"] = row.local * all_reduce_pace(compute, row.n, alone, **OVERLAPPED)
            measured["ddp, overlapped"] = row.ddp
        yield {
            "setting": row.setting,
            "n": row.n,
            "counts": row.counts,
            "predicted": {who: t / 1000 for who, t in predicted.items()},
            "measured": {who: t / 1000 for who, t in measured.items()},
            "off": {who: predicted[who] / measured[who] - 1 for who in predicted},
        }


def _decentralized(row: Emulated, name: str, compute: Compute) -> float:
    mean = row.local - row.slow
    speeds = np.array([row.local / mean] + [1.0] * (row.n - 1)) if row.slow else None
    rounds = even_rounds(topology(SCHEDULES[name], row.n), row.pair / mean)
    made = pace(rounds, compute, speeds=speeds, iterations=1200, replicas=128 if row.waits else 1)
    return mean * float(made.value[0, 0])
