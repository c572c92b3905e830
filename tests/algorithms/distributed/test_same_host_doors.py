"""Who knocks where: both ends of a pair have a line or neither has, whatever went wrong at one of them."""

import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from dissensus.algorithms.engines.distributed import same_host
from dissensus.algorithms.engines.distributed.same_host import Door, End


def met(monkeypatch: pytest.MonkeyPatch, size: int = 3) -> list[dict[int, End]]:
    """The ends of the lines of so many processes, each of which is a thread here."""
    monkeypatch.delenv(same_host.VARIABLE, raising=False)
    doors = [Door(size) for _ in range(size)]
    barrier, told = Barrier(size), [None] * size

    def lines(rank: int) -> dict[int, End]:
        def gather(value: Any) -> list[Any]:
            told[rank] = value
            barrier.wait(5.0)
            heard = list(told)
            barrier.wait(5.0)
            return heard

        return doors[rank].lines(rank, "secret", [door.name for door in doors], gather)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lines, range(size)))


def closed(found: list[dict[int, End]]) -> list[list[int]]:
    for ends in found:
        for end in ends.values():
            end.bell.close()
    return [sorted(ends) for ends in found]


def test_everybody_has_a_line_to_everybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert closed(met(monkeypatch)) == [[1, 2], [0, 2], [0, 1]]


def test_where_one_end_fails_neither_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_first(knocked: dict[int, Any]) -> dict[int, End]:
        failed.extend(bell for q, (bell, _) in knocked.items() if q == 0)
        return answered({q: line for q, line in knocked.items() if q != 0})

    failed: list[socket.socket] = []
    answered = same_host._let_in_by
    monkeypatch.setattr(same_host, "_let_in_by", without_the_first)
    assert closed(met(monkeypatch)) == [[], [2], [1]]
    assert len(failed) == 2
    for bell in failed:
        bell.close()


def test_a_door_that_cannot_be_reached_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of other hosts."""
    door = Door(2)
    try:
        assert door._knock(1, "secret", "\0nobody") is None
        assert door.lines(1, "secret", ["\0nobody", door.name], lambda value: [[], value]) == {}
    finally:
        assert door._slot is not None
        door._slot.close()


def test_a_knock_with_another_secret_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_host, "PATIENCE", 0.2)
    door, stranger = Door(2), Door(2)
    knock = stranger._knock(1, "guessed", door.name)
    assert knock is not None
    assert door.lines(0, "secret", [door.name, stranger.name], lambda value: [value, [0]]) == {}
    knock[0].close()
    for one in (door, stranger):
        assert one._slot is not None
        one._slot.close()
