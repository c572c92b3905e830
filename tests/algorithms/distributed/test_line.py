"""A line between two processes of one host, both ends in this one: what comes, in which order, and what ends it."""

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms.engines.distributed import line as lines
from dissensus.algorithms.engines.distributed import shared_room
from dissensus.algorithms.engines.distributed.line import CONFIRMED, SHORT_BYTES, Line
from dissensus.algorithms.engines.distributed.same_host import End
from dissensus.algorithms.engines.distributed.shared_room import HALL_BYTES, MOST, Hall, Room, new_file

SOON = timedelta(seconds=5.0)
OUTSIDE, ROOM_BYTES = shared_room.ROOM_BYTES, 8 << 20


@pytest.fixture(autouse=True)
def _cramped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rooms are smaller than outside of tests, and full the sooner."""
    for module in (shared_room, lines):
        monkeypatch.setattr(module, "ROOM_BYTES", ROOM_BYTES)


class Transport:
    """The transport's own way, on paper: what was sent lies there by tag."""

    def __init__(self) -> None:
        self.letters: dict[int, torch.Tensor] = {}
        self.posted: list[int] = []

    def send(self, values: list[torch.Tensor], place: int, tag: int) -> Any:
        assert tag not in self.letters
        self.letters[tag] = values[0].clone()
        return Work()

    def recv(self, values: list[torch.Tensor], place: int, tag: int) -> Any:
        self.posted.append(tag)
        return Work(lambda: self._deliver(values[0], tag))

    def _deliver(self, into: torch.Tensor, tag: int) -> None:
        until = time.monotonic() + 5.0
        while tag not in self.letters and time.monotonic() < until:
            time.sleep(0.001)
        into.copy_(self.letters.pop(tag))


class Work:
    def __init__(self, done: Callable[[], None] = lambda: None) -> None:
        self._done = done

    def wait(self, limit: timedelta) -> None:
        assert isinstance(limit, timedelta)
        self._done()


def mapped_twice(kind: Any = Room) -> tuple[Any, Any]:
    """A room or a hall as two processes have it."""
    descriptor = new_file(ROOM_BYTES if kind is Room else HALL_BYTES)
    try:
        return kind(descriptor), kind(descriptor)
    finally:
        os.close(descriptor)


def pair(group: Transport | None = None) -> tuple[Line, Line]:
    return ends(group)[0]


def ends(group: Transport | None = None) -> tuple[tuple[Line, Line], tuple[Hall, Hall]]:
    """Both ends of a line, and the halls of both processes."""
    bells = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    (first_there, second_here), (second_there, first_here) = mapped_twice(), mapped_twice()
    (first_hall, second_theirs), (second_hall, first_theirs) = mapped_twice(Hall), mapped_twice(Hall)
    group = group or Transport()
    first = End(bells[0], first_here, first_there, first_theirs)
    second = End(bells[1], second_here, second_there, second_theirs)
    lines = Line(first, group=group, place=1, limit=5.0), Line(second, group=group, place=0, limit=5.0)
    return lines, (first_hall, second_hall)


def numbers(k: int, size: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(k), dtype=torch.float64).to(dtype)


def landed(line: Line, tag: int, size: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    into = torch.full((size,), 7, dtype=dtype)
    line.receive(into, tag).wait(SOON)
    return into


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1, 4097)])
def test_what_comes_is_what_was_sent_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first, second = pair()
    value = numbers(3, int(np.prod(shape)), dtype).reshape(shape)
    work = first.send(value, 4)
    into = torch.zeros(shape, dtype=dtype)
    received = second.receive(into, 4)
    received.wait(SOON)
    work.wait(SOON)
    assert torch.equal(into, value)


def test_messages_of_one_who_is_ahead_wait_each_in_a_place_of_its_own() -> None:
    first, second = pair()
    value = torch.empty(1000)
    for t in range(10):
        first.send(value.copy_(numbers(t)), t)
    value.fill_(-1.0)  # whoever has sent may write over it
    assert all(torch.equal(landed(second, t), numbers(t)) for t in range(10))


def test_both_directions_at_once_and_receives_that_were_posted_first() -> None:
    first, second = pair()
    into = [torch.empty(1000) for _ in range(6)]
    waiting = [second.receive(box, t) for t, box in enumerate(into)]
    for t in range(6):
        second.send(numbers(100 + t), t)
        first.send(numbers(t), t)
    assert all(torch.equal(landed(first, t), numbers(100 + t)) for t in range(6))
    waiting[-1].wait(SOON)  # brings those before it
    for t, box in enumerate(into):
        waiting[t].wait(timedelta(0))
        assert torch.equal(box, numbers(t))


def test_what_was_read_makes_room_again_without_a_word_the_other_way() -> None:
    group = Transport()
    first, second = pair(group)
    size = ROOM_BYTES // 4 // 10
    for t in range(100):
        first.send(numbers(t, size), t)
        assert torch.equal(landed(second, t, size), numbers(t, size))
    for t in range(1000):
        first.send(torch.full((3,), float(t)), t)
        assert torch.equal(landed(second, t, 3), torch.full((3,), float(t)))
    assert not group.posted


def test_a_room_remembers_a_few_tensors_only() -> None:
    room, _ = mapped_twice()
    for at in range(0, 64 * 10 * MOST, 64):
        room.write(at, torch.zeros(1))
    assert len(room._places) <= MOST


def test_in_lockstep_two_places_do() -> None:
    first, second = pair()
    taken = set()
    for t in range(50):
        first.send(numbers(t), t)
        second.send(numbers(-t), t)
        taken |= {begin for begin, _ in first._there._taken}
        assert torch.equal(landed(second, t), numbers(t))
        assert torch.equal(landed(first, t), numbers(-t))
    assert len(taken) == 2


def test_where_the_room_is_full_the_transport_takes_over_and_the_order_stays() -> None:
    group = Transport()
    first, second = pair(group)
    size, count = 200_000, 25  # 0.8 MB each: ten of them fit
    for t in range(count):
        first.send(numbers(t, size), t)
    assert len(group.letters) == count - ROOM_BYTES // (4 * size)
    assert all(torch.equal(landed(second, t, size), numbers(t, size)) for t in range(count))
    assert len(group.posted) == len(set(group.posted)) == count - ROOM_BYTES // (4 * size)
    first.send(numbers(0, size), count)
    assert torch.equal(landed(second, count, size), numbers(0, size))
    assert not group.letters


def test_more_words_than_a_socket_holds() -> None:
    group = Transport()
    first, second = pair(group)
    for t in range(3000):
        first.send(torch.tensor([float(t)]), t)
    assert len(group.letters) == 3000 - MOST
    assert all(landed(second, t, 1).item() == t for t in range(3000))


@pytest.mark.parametrize(
    ("tag", "size", "dtype", "said"),
    [
        (7, 1000, torch.float32, "sent the message of step 6 where that of step 7 is due"),
        (6, 999, torch.float32, "sent 4000 bytes where 3996 are due"),
        (6, 1000, torch.int32, "sent numbers of torch.float32 where torch.int32 is due"),
    ],
)
def test_a_message_that_was_not_expected_is_an_error(tag: int, size: int, dtype: torch.dtype, said: str) -> None:
    first, second = pair()
    first.send(numbers(0), 6)
    with pytest.raises(RuntimeError, match=said):
        landed(second, tag, size, dtype)


def test_what_lay_there_before_the_other_ended_still_comes() -> None:
    first, second = pair()
    second.send(numbers(9), 0)  # never read: the kernel then resets the connection
    for t in range(3):
        first.send(numbers(t), t)
    first.bell.socket.close()
    assert all(torch.equal(landed(second, t), numbers(t)) for t in range(3))
    with pytest.raises(RuntimeError, match="Connection closed"):
        landed(second, 3)
    with pytest.raises(RuntimeError, match="Connection closed"):
        second.send(numbers(0), 4).wait(SOON)


def test_a_message_that_does_not_come_in_time_is_an_error() -> None:
    first, second = pair()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        second.receive(torch.empty(3), 0).wait(timedelta(seconds=0.2))
    assert 0.2 <= time.monotonic() - began < 3.0
    with pytest.raises(RuntimeError, match="timed out"):
        Line(
            End(second.bell.socket, second._here, second._there, second._theirs), group=None, place=0, limit=0.1
        ).receive(torch.empty(3), 0).wait()
    first.bell.socket.close()


def test_shut_ends_who_waits_at_either_end_from_another_thread() -> None:
    first, second = pair()
    ended: list[str] = []

    def wait(line: Line) -> None:
        try:
            line.receive(torch.empty(3), 0).wait(timedelta(seconds=30))
        except RuntimeError as error:
            ended.append(str(error))

    waiting = [threading.Thread(target=wait, args=(line,)) for line in (first, second)]
    for thread in waiting:
        thread.start()
    time.sleep(0.05)
    first.shut()
    for thread in waiting:
        thread.join(5.0)
    assert len(ended) == 2
    assert all("Connection closed" in said for said in ended)


def test_one_thread_waits_while_another_sends_into_a_full_room() -> None:
    """As in a trace, where a thread waits for what comes while the loop goes on."""
    group = Transport()
    first, second = pair(group)
    got: list[bool] = []

    def watch() -> None:
        got.extend(torch.equal(landed(second, t), numbers(t)) for t in range(200))

    watching = threading.Thread(target=watch)
    watching.start()
    for t in range(200):
        second.send(torch.tensor([float(t)]), t)
        first.send(numbers(t), t)
        if t % 3 == 0:
            time.sleep(0.0005)
    watching.join(10.0)
    assert got == [True] * 200
    assert all(landed(first, t, 1).item() == t for t in range(200))


def test_reading_is_told_after_so_many_messages_at_the_latest() -> None:
    first, second = pair()
    for t in range(CONFIRMED + 1):
        first.send(numbers(t, 10), t)
        landed(second, t, 10)
    assert first.bell.listen()
    assert len(first._there._taken) <= 1


def test_a_room_never_gives_two_messages_one_place() -> None:
    room, _ = mapped_twice()
    drawn, held = np.random.default_rng(0), {}
    for _ in range(2000):
        size = int(drawn.integers(1, ROOM_BYTES // 8))
        at = room.take(size)
        if at is None:
            assert sum(held.values()) + size > ROOM_BYTES // 3 or len(held) == MOST
            gone = int(drawn.choice(list(held)))
            room.give_back(gone)
            del held[gone]
            continue
        assert at % shared_room.ALIGNED == 0
        assert at + size <= ROOM_BYTES
        assert all(at + size <= other or other + length <= at for other, length in held.items())
        held[at] = size


def test_lengths_and_tags_fit() -> None:
    assert 2 * SHORT_BYTES <= OUTSIDE
    assert lines.BESIDE * 2 < 1 << 31
