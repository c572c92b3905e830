"""Measures a `Calibration` on the processes of a run: all of them call `measure` together, and all get the same.

Communication is timed alone. A lap is some operations of one kind and size, back to back, between two readings of the
clock of each process. All meet before it; but where messages are slow not all leave a meeting at once, so an operation
that does not count comes first: after it those begin together who wait for each other. The time of a lap is that of
the slowest process, over the number of operations. A round is one lap of every kind and size, in an order that is drawn
anew for every round, so that a drift of the machines falls on all alike. What is sent goes through the `Wire` of the
engine, pieces and all.

Computing is timed without communication, by all processes at the same time, who meet before every step.

On a device the clock is read once everything has been done that it was given; the operations of a lap queue up there,
as those of a training step do.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch

from dissensus.algorithms.engines.distributed.handshake import together
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models.perceptron import mlp
from dissensus.experiments.planning.calibration import Calibration, Row, fitted, remarks
from dissensus.experiments.processes import Processes

KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(KIB << k for k in range(0, 17, 2))
"""1 KiB to 64 MiB, each four times the one before."""
BATCH, LAYERS = 32, 3
"""Of the perceptron."""
DROPPED = 5
"""Steps of computing that come first and do not count."""
LAP, MOST = 0.02, 64
"""A lap takes about so many seconds, unless one operation takes longer, and has at most so many operations."""
LEAST = 3
"""Rounds that are measured whatever they cost."""
SHARE = 0.4
"""Of the time there is, computing may take so much."""


@dataclass(frozen=True)
class Case:
    """One kind of communication with one size."""

    kind: str
    bytes: int


def measure(
    processes: Processes,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 15,
    compute: Callable[[], object] | None = None,
    parameters: int = 1_000_000,
    steps: int = 200,
    budget: float = 120.0,
    host: str | None = None,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measures, in every process of the run at the same time.

    Args:
        processes: from `joined`.
        sizes: bytes of the messages, multiples of 4.
        repeats: rounds of laps, of which medians are taken.
        compute: one step of somebody's own model, without communication; by default a step of SGD on a perceptron.
        parameters: about how many that perceptron has.
        steps: of computing, per process.
        budget: seconds for all of it: what does not fit is left out, the largest sizes first, and a note says so.
        host: where this process is, if not what the machine says.
        progress: is told what is being done.
        clock: in seconds; not that of a test.
    """
    sizes = _checked(sizes, repeats, steps, budget)
    say = progress or (lambda _: None)
    meter = _Meter(processes, clock, budget)
    about = processes.gather(
        (platform.node() if host is None else host, datetime.now(UTC).isoformat(timespec="seconds")),
        what="hosts",
    )
    hosts = [name for name, _ in about]
    count = None
    if compute is None:
        compute, count = training_step(parameters, processes.device)
    say("computing")
    computed = meter.compute(compute, steps)
    rows: list[Row] = []
    if len(hosts) > 1:
        rows = meter.communicate(pairings(hosts), sizes, repeats, say)
    else:
        meter.notes.append("one process was measured, so nothing is known of messages")
    lines = tuple(fitted(kind, rows) for kind in dict.fromkeys(row.kind for row in rows))
    return Calibration(
        date=about[0][1],
        torch=torch.__version__,
        backend=processes.facts().get("backend", ""),
        workers=len(hosts),
        hosts={name: hosts.count(name) for name in hosts},
        parameters=count,
        compute_seconds=computed,
        rows=tuple(rows),
        fits=lines,
        notes=(*meter.notes, *remarks(lines, rows)),
    )


def pairings(hosts: Sequence[str]) -> dict[str, list[int | None]]:
    """The partner of each worker in every kind of exchange, `None` for who is idle; `hosts` is where each worker is."""
    n = len(hosts)
    found: dict[str, list[int | None]] = {"exchange": [i ^ 1 if i ^ 1 < n else None for i in range(n)]}
    living = [[i for i in range(n) if hosts[i] == name] for name in dict.fromkeys(hosts)]
    for kind, most in (("exchange-between", 1), ("exchange-between-all", n)):
        partner: list[int | None] = [None] * n
        for here, there in zip(living[::2], living[1::2], strict=False):
            for i, j in list(zip(here, there, strict=False))[:most]:
                partner[i], partner[j] = j, i
        if len(living) > 1 and partner != found.get("exchange-between"):
            found[kind] = partner
    return found


def turns(cases: Sequence[Case], rounds: int) -> list[list[Case]]:
    """The order of every round, the same in all processes: every case once, in an order of its own."""
    return [[cases[k] for k in np.random.default_rng(r).permutation(len(cases))] for r in range(rounds)]


def training_step(parameters: int, device: torch.device) -> tuple[Callable[[], object], int]:
    """A step of SGD on a perceptron of equally wide layers, and how many parameters it has."""
    if parameters < 2 * LAYERS:
        raise ConfigError(f"the perceptron has at least {2 * LAYERS} parameters, got {parameters}")
    width = max(1, round(math.sqrt(parameters / LAYERS + 0.25) - 0.5))  # layers of width * (width + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp((width,), width, width=width, depth=LAYERS - 1, activation="relu").to(device)
        inputs, labels = torch.randn(BATCH, width).to(device), torch.randint(width, (BATCH,)).to(device)
    held = list(model.parameters())

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        with torch.no_grad():
            for x, g in zip(held, torch.autograd.grad(loss, held), strict=True):
                x.sub_(g, alpha=1e-4)

    return step, sum(x.numel() for x in held)


class _Meter:
    """The clock of one process, and what it decides together with the others."""

    def __init__(self, processes: Processes, clock: Callable[[], float], budget: float) -> None:
        self.notes: list[str] = []
        self._processes, self._clock, self._budget = processes, clock, budget
        self._cuda = processes.device.type == "cuda"
        self._nothing = torch.zeros(1, device=processes.device)
        self._began, self._said = self._read(), 0
        self._meet()
        self._meeting = self._slowest(self._lap(self._meet))

    def compute(self, step: Callable[[], object], steps: int) -> tuple[tuple[float, ...], ...]:
        """Seconds of every step of every process."""

        def first() -> list[float]:
            return [self._lap(step) for _ in range(DROPPED)]

        wire = self._processes.wire
        took = self._slowest(min(first() if wire is None else together(wire, first)))
        fit = max(2, min(steps, int(SHARE * self._budget / (took + self._meeting))))
        if fit < steps:
            self.notes.append(f"{fit} of {steps} steps of computing were taken: one takes {took:.3g} s")
        own = []
        for _ in range(fit):
            self._meet()
            own.append(self._lap(step))
        return tuple(tuple(theirs) for theirs in self._processes.gather(own, what="computing times"))

    def communicate(
        self, pairs: Mapping[str, Sequence[int | None]], sizes: Sequence[int], repeats: int, say: Callable[[str], None]
    ) -> list[Row]:
        """The rows of all kinds and sizes, as far as there is time."""
        room = [torch.zeros(sizes[-1] // 4, device=self._processes.device) for _ in range(2)]
        kinds, wire = ("all-reduce", *pairs), self._processes.wire
        assert wire is not None

        def operate(case: Case) -> None:
            self._said += 1
            mine, theirs = (tensor[: case.bytes // 4] for tensor in room)
            if case.kind == "all-reduce":
                wire.sum(mine, what=case.kind, step=self._said)
            elif (peer := pairs[case.kind][wire.rank]) is not None:
                wire.land(wire.post([(peer, mine)], [(peer, theirs)], what=case.kind, step=self._said))

        counts = self._counts([[Case(kind, size) for kind in kinds] for size in sizes], operate, repeats)
        laps: dict[Case, list[float]] = {case: [] for case in counts}
        for number, order in enumerate(turns(list(counts), repeats)):
            if number >= LEAST and self._spent() >= self._budget:
                self.notes.append(f"{number} of {repeats} rounds of messages were measured: there was no time for more")
                break
            say(f"messages, round {number + 1} of {repeats}")
            for case in order:
                self._meet()
                laps[case].append(self._laps(case, counts[case], operate))
        everybody = self._processes.gather(laps, what="times of messages")
        return [
            _row(case, [theirs[case] for theirs in everybody]) for kind in kinds for case in laps if case.kind == kind
        ]

    def _counts(
        self, by_size: Sequence[Sequence[Case]], operate: Callable[[Case], None], repeats: int
    ) -> dict[Case, int]:
        """How many operations a lap has, for every case there is time for; on the way everything is warmed up.

        A size is tried if that alone fits, were it as much slower as it is larger than the one before, and kept if all
        rounds of it fit.
        """
        counts: dict[Case, int] = {}
        cost, last, before = 0.0, 0.0, 0
        for cases in by_size:
            must, size = len(counts) < 2 * len(cases), cases[0].bytes
            scale = size / before if before else 0.0
            if not must and self._spent() + cost + 3 * last * scale > self._budget:
                break
            once = {}
            for case in cases:
                self._meet()
                once[case] = self._slowest(self._laps(case, 1, operate))
            these = {case: max(1, int(LAP / max(took, LAP / MOST))) for case, took in once.items()}
            per_round = sum(self._meeting + once[case] * (these[case] + 1) for case in cases)
            if not must and self._spent() + cost + repeats * per_round > self._budget:
                break
            counts |= these
            cost, last, before = cost + repeats * per_round, sum(once.values()), size
        left = [str(cases[0].bytes) for cases in by_size if cases[0] not in counts]
        if left:
            self.notes.append(
                f"no time in {self._budget:g} s for messages of {', '.join(left)} bytes: "
                f"what is said of more than {before} is extrapolated"
            )
        return counts

    def _laps(self, case: Case, count: int, operate: Callable[[Case], None]) -> float:
        """Seconds of one operation out of so many, after one that does not count."""
        operate(case)

        def lap() -> None:
            for _ in range(count):
                operate(case)

        return self._lap(lap) / count

    def _lap(self, run: Callable[[], object]) -> float:
        began = self._read()
        run()
        return self._read() - began

    def _read(self) -> float:
        """The clock, once the device has done what it was given."""
        if self._cuda:
            torch.cuda.synchronize(self._processes.device)
        return self._clock()

    def _spent(self) -> float:
        return self._slowest(self._read() - self._began)

    def _slowest(self, seconds: float) -> float:
        return max(self._processes.gather(seconds, what="times"))

    def _meet(self) -> None:
        if self._processes.wire is not None:
            self._processes.wire.sum(self._nothing, what="meeting", step=self._said)


def _row(case: Case, by_process: Sequence[Sequence[float]]) -> Row:
    laps = np.max(by_process, axis=0)
    low, median, high = np.percentile(laps, [25, 50, 75])
    return Row(case.kind, case.bytes, float(median), float((high - low) / median))


def _checked(sizes: Sequence[int], repeats: int, steps: int, budget: float) -> list[int]:
    found = sorted(set(sizes))
    if len(found) < 2 or any(size < 4 or size % 4 for size in found):
        raise ConfigError(f"sizes must be at least two different positive multiples of 4 bytes, got {list(sizes)}")
    if repeats < LEAST or steps < 2 or not budget > 0:
        raise ConfigError(
            f"a calibration needs repeats >= {LEAST}, steps >= 2 and a budget above 0 s, "
            f"got {repeats}, {steps} and {budget:g} s"
        )
    return found
