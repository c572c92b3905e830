"""Members as threads, with letterboxes and without a transport: what tests of the membership speak of."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dissensus.algorithms.engines.distributed.letterbox import ANSWERED_WITHIN, Letter, Letterbox, Place, Posted
from dissensus.algorithms.engines.distributed.membership import HERE, Members, Membership

SOON = 30.0
"""Seconds after which a thread that has not come to an end has failed."""


class Clock:
    """The time of the members, which the test puts on: a slow machine is no time-out."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class Box(Letterbox):
    """Gets no answer from those that are stopped, and need not wait to find that out."""

    def __init__(self, number: int, stopped: set[Place]) -> None:
        super().__init__(number)
        self._stopped = stopped

    def send(self, place: Place, letter: Letter, patience: float = ANSWERED_WITHIN) -> Posted:
        return Posted("unanswered", {}) if place in self._stopped else super().send(place, letter, patience)


def until(fact: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    last = time.monotonic() + SOON
    while not fact():
        assert time.monotonic() < last
        time.sleep(0.01)


class Crowd:
    """n members, of whom any may be gone, stopped, stuck or anew."""

    def __init__(self, n: int, timeout: float = 10.0) -> None:
        self.n, self.timeout = n, timeout
        self.silent: set[Place] = set()
        self.boxes: list[Letterbox] = [Box(q, self.silent) for q in range(n)]
        for box in self.boxes:
            box.secret = self.boxes[0].secret
        self.places = {q: box.place for q, box in enumerate(self.boxes)}
        self.members = [self.member(box, self.places) for box in self.boxes]
        self.threads = ThreadPoolExecutor(n)

    def member(self, box: Letterbox, places: dict[int, Place]) -> Membership:
        return Membership(box, places, timeout=self.timeout, meets=lambda: Place(f"chosen by {box.number}", 1))

    def gone(self, *numbers: int) -> None:
        for q in numbers:
            self.boxes[q].close()

    def stopped(self, q: int) -> None:
        """It leaves every letter unanswered."""
        self.silent.add(self.places[q])

    def anew(self, q: int) -> Membership:
        """The process is started again: another box, at another place."""
        box = Box(q, self.silent)
        box.secret = self.boxes[0].secret
        self.boxes[q] = box
        return self.member(box, {**self.places, q: box.place})

    def comes(self, again: Membership) -> Future[Members]:
        """It wants in, and all have heard of it."""
        coming = self.threads.submit(again.agree, 0, 0, "started again", newcomer=True)
        until(lambda: coming.done() or all(member.called for member in self.members if member._box.close.alive))
        assert not coming.done(), coming.exception()
        return coming

    def agree_in_time(self, clock: Clock, *numbers: int) -> list[Members]:
        """What these agree on when the time is up, all having heard of each other before."""
        agreeing = [self.begin(q) for q in numbers]
        until(lambda: all(set(numbers) <= {q, *self.boxes[q].letters(HERE)} for q in numbers))
        assert not any(f.done() for f in agreeing)
        clock.ahead += self.timeout
        return [f.result(SOON) for f in agreeing]

    def agree(self, *numbers: int, steps: dict[int, int] | None = None) -> list[Members]:
        """What these agree on, all together."""
        return [f.result(SOON) for f in [self.begin(q, (steps or {}).get(q, 5)) for q in numbers]]

    def begin(self, q: int, step: int = 5, **options: object) -> Future[Members]:
        return self.threads.submit(self.members[q].agree, step, step, f"lost by {q}", **options)  # type: ignore[arg-type]

    def commit(self, *found: Members) -> None:
        for q in found[0].numbers:
            self.members[q].commit(found[0])


def here(crowd: Crowd, q: int, attempt: int) -> dict[str, Any]:
    """The letter of one that is started again."""
    rest = {"generation": 0, "step": 0, "count": 0, "newcomer": True, "why": "started again", "lost": None}
    return {"kind": HERE, "attempt": attempt, "place": [*crowd.boxes[q].place], **rest}
