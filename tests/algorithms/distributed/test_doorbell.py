"""A doorbell, both ends in this process: records come whole however the socket cuts them, and who waits sleeps."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from dissensus.algorithms.engines.distributed import doorbell
from dissensus.algorithms.engines.distributed.doorbell import RECORD, YIELDS, Doorbell, Record

RECORDS: list[Record] = [(k, k + 1, k << 40, -k, 7 * k) for k in range(5)]


End = tuple[Doorbell, socket.socket, list[Record]]


@pytest.fixture
def end() -> Iterator[End]:
    """One end, the bare socket of the other, and what is heard."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    heard: list[Record] = []
    with here, there:
        yield Doorbell(here, heard.append, 5.0), there, heard


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("piece", [1, RECORD.size - 1, RECORD.size, RECORD.size + 1, 3 * RECORD.size, 1000])
def test_records_come_whole_however_they_are_cut(end: End, piece: int, first: int) -> None:
    bell, there, heard = end
    said = b"".join(RECORD.pack(*record) for record in RECORDS)
    cuts = [0, *range(first or piece, len(said), piece), len(said)]
    for begin, until in pairwise(cuts):
        there.sendall(said[begin:until])
        assert bell.listen()
        assert heard == RECORDS[: until // RECORD.size]
    assert not bell.listen()


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[None]:
    """One entry for every call of a function from now on."""
    calls: list[None] = []
    plain: Callable[..., object] = getattr(owner, name)

    def count(*args: object) -> object:
        calls.append(None)
        return plain(*args)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_who_waits_lets_others_compute_first_and_then_sleeps(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    bell, there, heard = end
    yields, looks = counted(monkeypatch, os, "sched_yield"), counted(monkeypatch, bell, "listen")
    late = threading.Timer(0.3, lambda: there.sendall(RECORD.pack(*RECORDS[1])))
    late.start()
    bell.until(lambda: bool(heard), lambda: None)
    late.join()
    assert heard == [RECORDS[1]]
    assert len(yields) == YIELDS
    assert len(looks) <= 5


def test_what_comes_while_others_compute_is_heard_without_sleeping(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    bell, there, heard = end
    yields: list[None] = []

    def compute() -> None:
        yields.append(None)
        if len(yields) == 3:
            there.sendall(RECORD.pack(*RECORDS[2]))

    monkeypatch.setattr(doorbell.os, "sched_yield", compute)
    bell.until(lambda: bool(heard), lambda: None, timedelta(seconds=1))
    assert heard == [RECORDS[2]]
    assert len(yields) == 3


def test_nothing_comes_in_time(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    bell, _, _ = end
    looks = counted(monkeypatch, bell, "listen")
    with pytest.raises(RuntimeError, match="timed out"):
        bell.until(lambda: False, lambda: None, timedelta(seconds=0.2))
    assert len(looks) <= 5
