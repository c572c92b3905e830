r"""Three reasons why decentralized iterations may be shorter: overlap, fewer to wait for, less between machines.

The runtime model is ours (theory, When does it pay?); formulas of the paper's own were not to be had. What it says is
exact or simulated, and where it can be done here, real processes are timed.

*Published times* are replayed with the assumptions that the benchmark of the model names first: float32, nominal
bandwidth, all-reduce sent beside computing in ten buckets, no noise; computing is solved from all-reduce on the
smallest size of each cluster, which then does not count. Where the order in the model is not the published one, one of
the two is wrong and nothing follows for the claim: that part is inconclusive.

*Measured*: in blocks of steps, ours and torch's DDP in turn, with computing times that differ (log-normal), and with
links that have a rate, which needs root. Where that is not given, the part is out of reach and has no say. Times that
do not differ are there for comparison: what the two loops cost by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from dissensus.experiments.bench.network import NetworkError
from dissensus.experiments.bench.runtime_replays import ASSUMED, OVERLAPPED, PUBLISHED, published_rows
from dissensus.experiments.claims.base import OutOfReachError, Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, decided, exactly, lower
from dissensus.experiments.claims.racing import Race, race
from dissensus.experiments.claims.registry import claim
from dissensus.theory import Topology, topology
from dissensus.theory.runtime import (
    Cluster,
    Constant,
    Link,
    LogNormal,
    Order,
    all_reduce_pace,
    even_rounds,
    pace,
    pace_bounds,
    rounds_on,
)

ORDER: Order = "awc"
"""The order whose exchange lies beside computing."""
GAMMAS = (0.1, 0.3, 1.0, 1.7, 3.0, 10.0)
"""Communication of all-reduce over computing."""
SIGMAS, NOISY_DELAY = (0.1, 0.3, 0.5), 0.3
PARAMETERS, LATENCY, CARD, INSIDE = 65e6, 3e-5, 25e9 / 8, 10e9
"""A transformer of 65 million numbers of four bytes on 25 Gb/s: seconds, bytes a second."""
COMPUTING = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds."""
SLOWER, WITHIN = 0.01, 1e-3


@dataclass(frozen=True)
class Size:
    """How much is simulated and timed."""

    workers: tuple[int, ...]
    iterations: int
    blocks: int
    steps: int


SIZES = {
    "tiny": Size((4, 8, 16, 32, 64), 2000, 6, 12),
    "small": Size((4, 8, 16, 32, 64, 256), 8000, 12, 40),
    "full": Size((4, 8, 16, 32, 64, 256, 1024), 16_000, 24, 100),
}


@claim(
    "speed-ups",
    title="Overlap, waiting for fewer and AER's traffic make decentralized iterations shorter",
    statement=(
        "An exchange that lies beside computing costs nothing until it is longer than that; a worker that waits for "
        "one peer loses less to varying computing times than one that waits for all; and AER uses the network between "
        "machines half as much as one-peer exponential exchange between them, and is not slower for it."
    ),
    source=(
        "Wang et al. 2024, arXiv:2410.11998. The three sources of speed-up are those of the abstract; iteration times "
        "were read off published figures; the formulas of its runtime model were not to be had, the model is ours"
    ),
    measured=(
        "mean iteration times in the runtime model against closed forms and bounds; published orders replayed; node "
        "pairs that use the network, counted from the matrices; seconds of a step on real processes"
    ),
    rule=(
        "what is computed holds in every setting; a published order that the model does not give is inconclusive; "
        "measured: ours takes less time than torch's all-reduce, paired by block"
    ),
    budget={"tiny": "a minute", "small": "ten minutes", "full": "an hour, with links of a rate (root)"},
)
def speed_ups(at: Evidence) -> list[Part]:
    """Computes, replays, counts, and measures."""
    size = at.sized(SIZES)
    return [
        *_overlap(size),
        *_published(),
        *_stragglers(size, at.seed),
        *_traffic(size, at.seed),
        *_measured(size),
    ]


def _overlap(size: Size) -> list[Part]:
    """Without noise on even links, one worker a machine: one peer, and all-reduce in buckets as DDP sends it."""
    off, ahead = [], []
    for n, gamma in product(size.workers, GAMMAS):
        delay = gamma * n / (2 * (n - 1))
        rounds = even_rounds(topology("one-peer-exponential", n), delay)
        found = float(pace(rounds, Constant(), order=ORDER, iterations=400, replicas=1).value[0, 0])
        off.append(abs(found / max(1.0, delay) - 1.0))
        ahead.append(all_reduce_pace(Constant(), n, gamma, **OVERLAPPED) / found)
    return [
        exactly(
            "an exchange beside computing costs max(1, delay): nothing until it is the longer of both",
            max(off) < WITHIN, max(off), unit="relative error", n=len(off), of="settings",
        ),
        exactly(
            "without noise and with one worker a machine, one peer takes less time than an overlapped all-reduce",
            min(ahead) > 1.0, min(ahead), unit="smallest speed-up", n=len(ahead), of="settings",
            note=f"{min(GAMMAS)} to {max(GAMMAS)} of communication over computing; largest {max(ahead):.2f}",
        ),
    ]  # fmt: skip


_NAMES = {"exponential": "one-peer exponential", "aer": "AER"}


def _published() -> list[Part]:
    """Which orders of two the model gives as they were published."""
    rows = [row for page in PUBLISHED for row in published_rows(page, ASSUMED[0]) if row["counts"]]
    parts = []
    for pair in rows[0]["pairs_right"]:
        both = " and ".join(_NAMES.get(name, name) for name in str(pair).split(", "))
        right = [row["pairs_right"][pair] for row in rows]
        wrong = ", ".join(f"{row['cluster']} with {row['n']}" for row, ok in zip(rows, right, strict=True) if not ok)
        parts.append(
            Part(
                f"the published order of {both} is the model's",
                "supported" if all(right) else "inconclusive",
                float(sum(right)),
                unit=f"of {len(rows)} rows",
                n=len(rows),
                of="rows",
                note="" if all(right) else f"not on {wrong}",
            )
        )
    return parts


def _stragglers(size: Size, seed: int) -> list[Part]:
    """Log-normal computing times: how much longer an iteration is than computing is in the mean."""
    outside, ahead, direct = [], [], []
    for n, sigma in product(size.workers, SIGMAS):
        compute, rounds = LogNormal(sigma), even_rounds(topology("one-peer-exponential", n), NOISY_DELAY)
        found = pace(rounds, compute, order=ORDER, iterations=size.iterations, seed=seed)
        value, error = float(found.value[0, 0]), 3.0 * float(found.standard_error[0, 0])
        bounds = pace_bounds(rounds, compute)
        outside.append(max(bounds.lower - value - error, value - error - bounds.upper))
        everybody = all_reduce_pace(compute, n, 0.0)
        ahead.append(everybody / (value + error))
        rng = np.random.default_rng([seed, n])
        direct.append(float(compute.at(rng.standard_normal((20_000, n))).max(1).mean()) / everybody - 1.0)
    return [
        exactly(
            "waiting for one peer costs less than the slowest of all, all-reduce's communication not counted",
            min(ahead) > 1.0, min(ahead), unit="smallest speed-up", n=len(ahead), of="settings",
            note=f"{min(size.workers)} to {max(size.workers)} workers, deviation {min(SIGMAS)} to {max(SIGMAS)}, an "
            f"exchange of {NOISY_DELAY} of computing; largest {max(ahead):.2f}",
        ),
        exactly(
            "what one peer costs lies between the bounds of theory",
            max(outside) <= 0.0, max(outside), unit="beyond a bound, three errors granted", n=len(outside),
            of="settings",
        ),
        exactly(
            "the slowest of all is as slow as its closed form says", max(map(abs, direct)) < 0.02,
            max(map(abs, direct)), unit="relative error", n=len(direct), of="settings",
        ),
    ]  # fmt: skip


def _traffic(size: Size, seed: int) -> list[Part]:
    """Who uses the network between machines, and what that makes of an iteration on 25 Gb/s."""
    shares, found = [], {0.0: [], 0.1: []}
    for nodes in (2, 4, 8):
        n = 4 * nodes
        aer, exponential = topology("aer", n, workers_per_node=4), topology("one-peer-hypercube", nodes)
        shares.append(_crossing(aer, 4) / _crossing(exponential, 1))
        cluster = Cluster(nodes, 4, Link(LATENCY, INSIDE), Link(LATENCY, CARD))
        for sigma, computing in product(found, COMPUTING):
            times = []
            for schedule in (aer, topology("one-peer-hypercube", n)):
                rounds = rounds_on(schedule, cluster, 4 * PARAMETERS, groups=True)
                compute = LogNormal(sigma) if sigma else Constant()
                made = pace(
                    rounds, compute, factors=(1 / computing,), order=ORDER, iterations=size.iterations,
                    replicas=None if sigma else 1, seed=seed,
                )  # fmt: skip
                times.append(float(made.value[0, 0]))
            found[sigma].append(times[0] / times[1] - 1.0)
    return [
        exactly(
            "AER has half as many pairs of machines on the network as one-peer exchange between machines",
            all(share == 0.5 for share in shares), max(shares), unit="share", n=len(shares), of="clusters",
        ),
        *(
            exactly(
                f"AER is not slower than one-peer exponential exchange on 25 Gb/s, {about}",
                max(slower) <= SLOWER, max(slower), unit="largest share by which it is slower", n=len(slower),
                of="settings", note=f"2 to 8 machines of 4; computing takes {min(COMPUTING)} to {max(COMPUTING)} s; "
                f"at best {-min(slower):.0%} shorter",
            )
            for about, slower in (("no noise", found[0.0]), ("noise of 10 %", found[0.1]))
        ),
    ]  # fmt: skip


def _crossing(schedule: Topology, per_node: int) -> float:
    """How many pairs of machines have anything to say to each other, mean over the rounds."""
    counts = []
    for w in schedule.rounds:
        receiver, sender = (at // per_node for at in w.weights.tocoo().coords)
        counts.append(len({tuple(sorted(pair)) for pair in zip(receiver, sender, strict=True) if pair[0] != pair[1]}))
    return float(np.mean(counts))


def _measured(size: Size) -> list[Part]:
    """Real processes: computing times that differ, those that do not, and links with a rate."""
    noisy, even = (Race("0.1M", 0.05, sigma, None, size.blocks, size.steps) for sigma in (0.5, 0.0))
    linked = Race("2.4M", 0.1, 0.0, "400mbit", max(4, size.blocks // 2), max(4, size.steps // 3))
    asked: list[Asked] = []
    missing: list[Part] = []
    for about, of, counts in (
        ("with computing times that differ (0.5)", noisy, True),
        ("with computing times that do not differ", even, False),
        ("on links of 400 Mbit/s", linked, True),
    ):
        statement = f"measured: {about} our steps are shorter than all-reduce's"
        try:
            laps = race(of)
        except (NetworkError, OutOfReachError) as error:
            missing.append(Part(statement, "out of reach here", note=str(error), counts=False))
            continue
        note = f"{np.mean(laps.ours) * 1e3:.1f} ms against {np.mean(laps.ddp) * 1e3:.1f}; blocks of {of.steps} steps"
        ours, ddp = np.log(laps.ours), np.log(laps.ddp)
        asked.append(lower(statement, ours, ddp, unit="log of the ratio", note=note, counts=counts))
    return [replace(part, of="blocks") for part in decided(asked)] + missing
