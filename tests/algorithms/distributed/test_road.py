"""Roads in one process: what comes, in which order pieces are posted and when, and what ends them."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dissensus.algorithms.engines.distributed import beside
from dissensus.algorithms.engines.distributed import road as roads
from dissensus.algorithms.engines.distributed.pace import PIECE_BYTES, Pace
from dissensus.algorithms.engines.distributed.road import NEVER, Half, Road, Roads, break_off

SOON, SECONDS = timedelta(seconds=10.0), 10.0
NONE = math.inf
SHORT = 64
"""Bytes of a piece where its size does not matter."""


class Deed:
    """A work of the transport, which is over when somebody says so, and may be waited for once."""

    def __init__(self, doing: str, place: int, tag: int, value: torch.Tensor) -> None:
        self.doing, self.place, self.tag, self.value = doing, place, tag, value
        self.over, self.error, self.waits = threading.Event(), "", 0

    def end(self, error: str = "") -> None:
        if not self.over.is_set():
            self.error = error
            self.over.set()

    def wait(self, limit: timedelta) -> None:
        self.waits += 1
        if not self.over.wait(min(limit.total_seconds(), 2 * SECONDS)):
            self.error = "the transport timed out"
        if self.error:
            raise RuntimeError(self.error)


class ByHand:
    """A transport in which nothing happens by itself, but that a time-out closes a connection."""

    def __init__(self) -> None:
        self.deeds: list[Deed] = []
        self.shut: list[int] = []
        self.broken = ""

    def recv(self, values: list[torch.Tensor], place: int, tag: int) -> Deed:
        return self._post(Deed("recv", place, tag, *values))

    def send(self, values: list[torch.Tensor], place: int, tag: int) -> Deed:
        return self._post(Deed("send", place, tag, *values))

    def _post(self, deed: Deed) -> Deed:
        if deed.tag == NEVER:
            self.shut.append(deed.place)
            for other in self.deeds:
                if other.place == deed.place:
                    other.end("closed")
            return deed
        if self.broken == deed.doing:
            raise RuntimeError("cannot be posted")
        self.deeds.append(deed)
        return deed

    def of(self, doing: str, place: int = 1) -> list[Deed]:
        return [deed for deed in self.deeds if (deed.doing, deed.place) == (doing, place)]

    def begun(self, place: int = 1) -> int:
        return len(self.of("send", place))

    def end(self, k: int, place: int = 1, error: str = "") -> None:
        """Both directions of the piece k."""
        self.of("recv", place)[k].end(error)
        self.of("send", place)[k].end(error)


class Town(ByHand):
    """A transport in memory: what goes from one place to another with a tag meets what is awaited, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._met: dict[tuple[int, int, int], tuple[deque[Deed], deque[Deed]]] = defaultdict(lambda: (deque(), deque()))

    def end_at(self, here: int) -> Any:
        def recv(values: list[torch.Tensor], place: int, tag: int) -> Deed:
            return self._meet(Deed("recv", here, tag, *values), (place, here, tag))

        def send(values: list[torch.Tensor], place: int, tag: int) -> Deed:
            return self._meet(Deed("send", here, tag, *values), (here, place, tag))

        return SimpleNamespace(recv=recv, send=send)

    def _meet(self, deed: Deed, way: tuple[int, int, int]) -> Deed:
        with self._lock:
            self.deeds.append(deed)
            sent, awaited = self._met[way]
            (sent if deed.doing == "send" else awaited).append(deed)
            while sent and awaited:
                assert sent[0].value.nbytes == awaited[0].value.nbytes
                awaited[0].value.copy_(sent[0].value)
                sent.popleft().end()
                awaited.popleft().end()
        return deed


def alive() -> int:
    return sum(thread.is_alive() for thread in list(beside._RUNNING))


def soon(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not (found := happened()) and time.monotonic() < end:
        time.sleep(0.0005)
    return found


def stays(true: Callable[[], bool]) -> bool:
    return bool(time.sleep(0.03)) or true()


def together(*acts: Callable[[], Any]) -> None:
    """Does things in threads of their own, and raises what one of them raises."""
    errors = list[BaseException]()

    def tried(act: Callable[[], Any]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=tried, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def land(halves: Sequence[Half]) -> None:
    for half in halves:
        half.wait(SOON)


def pieces(count: int, fill: float = 0.0) -> torch.Tensor:
    return torch.full((count * SHORT // 4,), fill)


def both(road: Road, count: int, step: float = 0, tag: int = 0) -> list[Half]:
    return road.carry([pieces(count)], [pieces(count)], step, tag)


def told(half: Half, limit: timedelta = SOON) -> str:
    with pytest.raises(RuntimeError) as error:
        half.wait(limit)
    return str(error.value)


def allow(monkeypatch: pytest.MonkeyPatch, window: float, awaited: float | None = None, ahead: float = 0.0) -> None:
    """Pieces are short, and so many may be under way."""
    monkeypatch.setattr(roads, "PIECE_BYTES", SHORT)
    for name, count in (("window", window), ("awaited", window if awaited is None else awaited), ("ahead", ahead)):
        monkeypatch.setattr(Pace, name, property(lambda _, count=count: count * SHORT))


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    allow(monkeypatch, 2)
    return partial(allow, monkeypatch)


@pytest.fixture
def group() -> Iterator[ByHand]:
    yield from transport(ByHand())


@pytest.fixture
def town() -> Iterator[Town]:
    yield from transport(Town())


def transport(group: Any) -> Iterator[Any]:
    yield group
    for place in {deed.place for deed in group.deeds}:
        break_off(group, place)
    assert soon(lambda: not alive())
    assert all(deed.waits <= 1 for deed in group.deeds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("narrow", [False, True])
def test_what_comes_is_what_was_sent_to_the_bit(
    town: Town, dtype: torch.dtype, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if narrow:
        monkeypatch.setattr(Pace, "window", property(lambda _: 2 * PIECE_BYTES))
        monkeypatch.setattr(Pace, "awaited", property(lambda _: 3 * PIECE_BYTES))
    each = PIECE_BYTES // dtype.itemsize
    sizes = [0, 1, each, each + 1, 11 * each + 3, 1]
    there = [torch.arange(size).mul(7).remainder(251).to(dtype) for size in sizes]
    back = [torch.arange(size).mul(3).remainder(241).to(dtype) for size in reversed(sizes[1:])]
    ends = [Roads(town.end_at(k), limit=SECONDS).to(1 - k) for k in range(2)]
    got = [torch.full_like(value, 7) for value in back], [torch.full_like(value, 7) for value in there]

    def say(k: int) -> None:
        land(ends[k].carry(got[k], (there, back)[k], 0, 4))
        land(ends[k].carry([], there[2:5], 1, 5) if not k else ends[k].carry(got[1][2:5], [], 1, 5))

    together(lambda: say(0), lambda: say(1))
    assert all(torch.equal(*pair) for pair in zip((*got[0], *got[1]), (*back, *there), strict=True))


def test_pieces_of_a_later_step_wait_for_those_of_an_earlier_one(group: ByHand, window: Callable[..., None]) -> None:
    window(3)
    ways = Roads(group, limit=SECONDS)
    early, late = both(ways.to(1), 2, step=4), both(ways.to(2), 4, step=5)
    assert (group.begun(1), group.begun(2)) == (2, 0)
    group.end(1)
    assert stays(lambda: group.begun(2) == 0)
    sooner = both(ways.to(3), 2, step=3), both(ways.to(4), 2, step=4)
    assert (group.begun(3), group.begun(4)) == (2, 0)
    group.end(0)
    assert stays(lambda: group.begun(2) + group.begun(4) == 0)  # step 3 is not over
    for k in range(2):
        group.end(k, 3)
    assert soon(lambda: group.begun(4) == 2)
    assert stays(lambda: group.begun(2) == 0)
    for k in range(2):
        group.end(k, 4)
    assert soon(lambda: group.begun(2) == 3)
    group.end(0, 2)
    assert soon(lambda: group.begun(2) == 4)
    for deed in group.deeds:
        deed.end()
    land([*early, *late, *sooner[0], *sooner[1]])


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(9, NONE, True), (-NONE, 0, True), (9, -NONE, False), (NONE, NONE, False), (NONE, 9, False), (9, 9, False)],
)
def test_what_has_no_step_waits_for_all_that_have_one_and_what_is_said_aside_for_nothing(
    group: ByHand, window: Callable[..., None], first: float, second: float, waits: bool
) -> None:
    ways = Roads(group, limit=SECONDS)
    halves = both(ways.to(1), 2, first)
    halves += both(ways.to(1, aside=True) if second == -math.inf else ways.to(2), 2, second)
    assert stays(lambda: len(group.deeds) == (4 if waits else 8))
    for k in range(2):
        group.end(k)
    assert soon(lambda: len(group.deeds) == 8)
    for deed in group.deeds:
        deed.end()
    land(halves)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("n", [3, 5])
def test_nobody_waits_for_ever_where_the_next_step_begins_before_the_last_has_come(
    town: Town, window: Callable[..., None], ahead: int, n: int
) -> None:
    window(3, 5, ahead)
    steps, buckets = 12, 6

    def value(i: int, t: int, k: int) -> torch.Tensor:
        return torch.full((SHORT // 4 * (1 + k * k) + k,), float(i + 10 * t + 1000 * k))

    def work(i: int) -> None:
        ways = Roads(town.end_at(i), limit=SECONDS)
        flights: dict[int, list[tuple[int, torch.Tensor, list[Half]]]] = {}

        def post(t: int, k: int) -> None:
            shift = 1 + t // 2 % 2
            flights[k] = []
            for j in {(i + shift) % n, (i - shift) % n}:
                into = torch.zeros_like(value(j, t, k))
                flights[k].append((j, into, ways.to(j).carry([into], [value(i, t, k)], t, t)))

        for k in range(buckets):
            post(0, k)
        for t in range(steps):
            for k in range(buckets):
                for j, into, halves in flights[k]:
                    land(halves)
                    assert torch.equal(into, value(j, t, k))
                time.sleep(0.001 * ((i + t + k) % 3 == 0))
                if t + 1 < steps:
                    post(t + 1, k)

    together(*(partial(work, i) for i in range(n)))
