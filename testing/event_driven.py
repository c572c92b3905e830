r"""When workers end their steps once more, by letting it happen: a clock, a heap of events and one state per worker.

There is no recursion over times here and no maximum is taken: an exchange begins because the last of those it needs has
just said that it is ready. The order of the events makes the maxima, and ties may be broken in any order.

A step of a worker has one part (computing) or two (an exchange as well, if the round has somebody for it to hear).

| order | says that it is ready | computes | ends the step |
|---|---|---|---|
| `awc` | when the step begins | from when the step begins | when both parts are done |
| `atc` | when it has computed | from when the step begins | when it has exchanged |
| `cta` | when the step begins | from when it has exchanged | when it has computed |
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from dissensus.theory.runtime import Round

Order = Literal["awc", "atc", "cta"]
Part = Literal["computing", "exchange"]
Event = Literal["computing is done", "exchange may begin", "exchange is done"]


def simulated_finish_times(
    rounds: Sequence[Round], computed: np.ndarray, *, order: Order = "awc", every: int = 1
) -> np.ndarray:
    """Row k is when each worker has ended k steps, row 0 is zero: what `finish_times` must give."""
    crew = Crew(rounds, computed, order, every)
    crew.run()
    return np.array([worker.ended for worker in crew.workers], dtype=float).T


def simulated_all_reduce_times(
    communication: float, computed: np.ndarray, *, begins: float | None = None, buckets: int = 1
) -> np.ndarray:
    """Entry k is when everybody has ended k steps, each closed by an all-reduce: what `all_reduce_times` must give."""
    ended = [0.0]
    for seconds in np.asarray(computed, dtype=float).tolist():
        if begins is None:  # one bucket, which is ready when all is computed
            ended.append(end_of_all_reduce(ended[-1], seconds, communication, 0.0, 1))
        else:
            ended.append(end_of_all_reduce(ended[-1], seconds, communication, begins, buckets))
    return np.array(ended)


@dataclass
class Worker:
    """Where one worker is: the steps it has ended, and what is left of the present one."""

    ended: list[float] = field(default_factory=list)
    left: set[Part] = field(default_factory=set)
    said: int = 0
    """For how many steps it has said that it is ready to exchange: more than k if it has for step k ..."""
    waits: bool = False
    """... and whether it has, but its own exchange has not begun."""

    @property
    def step(self) -> int:
        """The step it is in: as many as it has ended."""
        return len(self.ended) - 1


class Crew:
    """All workers and the heap of what will happen to them."""

    def __init__(self, rounds: Sequence[Round], computed: np.ndarray, order: Order, every: int):
        self.senders = [[[int(j) for j in row] for row in r.senders] for r in rounds]
        self.delay = [[float(d) for d in r.delay] for r in rounds]
        self.computed: list[list[float]] = np.asarray(computed, dtype=float).tolist()
        self.order, self.every = order, every
        self.workers = [Worker() for _ in range(np.shape(computed)[1])]
        self.coming: list[tuple[float, int, Event, int]] = []
        self.count = 0

    def run(self) -> None:
        """Lets things happen until nothing is left to happen."""
        for i in range(len(self.workers)):
            self.enter_step(i, 0.0)
        while self.coming:
            now, _, event, i = heapq.heappop(self.coming)
            if event == "computing is done":
                self.has_computed(i, now)
            elif event == "exchange may begin":
                self.will(now + self.delay[self.round_of(self.workers[i].step)][i], "exchange is done", i)
            else:
                self.has_exchanged(i, now)

    def will(self, when: float, event: Event, i: int) -> None:
        """Something will happen to worker i; what was foreseen first happens first if at the same time."""
        self.count += 1
        heapq.heappush(self.coming, (when, self.count, event, i))

    def enter_step(self, i: int, now: float) -> None:
        """The step before has ended (or the clock has started): what begins at once?"""
        worker = self.workers[i]
        worker.ended.append(now)
        if worker.step == len(self.computed):
            return
        worker.left = {"computing", "exchange"} if self.heard(i) else {"computing"}
        if self.order in ("awc", "cta"):
            self.say_ready(i, now)
        if self.order in ("awc", "atc") or "exchange" not in worker.left:
            self.will(now + self.computed[worker.step][i], "computing is done", i)

    def has_computed(self, i: int, now: float) -> None:
        """The step ends if there is nothing to exchange, or nothing any more."""
        worker = self.workers[i]
        worker.left.remove("computing")
        if self.order == "atc":
            self.say_ready(i, now)
        if not worker.left:
            self.enter_step(i, now)

    def has_exchanged(self, i: int, now: float) -> None:
        """Only now does cta compute; the others end the step if they have computed."""
        worker = self.workers[i]
        worker.left.remove("exchange")
        if self.order == "cta":
            self.will(now + self.computed[worker.step][i], "computing is done", i)
        elif not worker.left:
            self.enter_step(i, now)

    def say_ready(self, i: int, now: float) -> None:
        """Who waited for this alone, worker i itself among them, may begin to exchange."""
        self.workers[i].said += 1
        self.workers[i].waits = "exchange" in self.workers[i].left
        for j, waiting in enumerate(self.workers):
            if waiting.waits and all(self.workers[h].said > waiting.step for h in self.heard(j)):
                waiting.waits = False
                self.will(now, "exchange may begin", j)

    def heard(self, i: int) -> list[int]:
        """Whom worker i hears in the step it is in, itself left out."""
        step = self.workers[i].step
        if (step + 1) % self.every != 0:
            return []
        return [j for j in self.senders[self.round_of(step)][i] if j != i]

    def round_of(self, step: int) -> int:
        """The number of the round of an exchanging step."""
        return (step // self.every) % len(self.senders)


def end_of_all_reduce(now: float, seconds: Sequence[float], communication: float, begins: float, buckets: int) -> float:
    """When a step that begins now ends: the link takes one bucket at a time, in order, once all workers have it."""
    missing = dict.fromkeys(range(1, buckets + 1), len(seconds))
    fraction = {b: begins + (1 - begins) * b / buckets for b in missing}
    coming = [(now + fraction[b] * c, "is ready on a worker", b) for b in missing for c in seconds]
    heapq.heapify(coming)
    turn, busy = 1, False
    while coming:
        now, event, b = heapq.heappop(coming)
        if event == "is ready on a worker":
            missing[b] -= 1
        else:
            turn, busy = turn + 1, False
        if not busy and turn <= buckets and missing[turn] == 0:
            busy = True
            heapq.heappush(coming, (now + communication / buckets, "is reduced", turn))
    return now
