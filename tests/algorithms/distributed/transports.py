"""Transports for roads in one process: one in which nothing happens by itself, and one in memory."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dissensus.algorithms.engines.distributed import beside
from dissensus.algorithms.engines.distributed import road as roads
from dissensus.algorithms.engines.distributed.pace import Pace
from dissensus.algorithms.engines.distributed.road import NEVER, Half, Road, break_off

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


def attended(group: ByHand) -> bool:
    """Whether a thread waits for the first piece."""
    return soon(lambda: bool(group.deeds) and group.deeds[0].waits == 1)


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


def transport(group: Any) -> Iterator[Any]:
    yield group
    for place in {deed.place for deed in group.deeds}:
        break_off(group, place)
    assert soon(lambda: not alive())
    assert all(deed.waits <= 1 for deed in group.deeds)
