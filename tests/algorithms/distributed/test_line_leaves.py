"""Messages that are read where they lie in the room: nobody writes there before they are let go of."""

from datetime import timedelta

import pytest
import torch
from test_line import ROOM_BYTES, SOON, Transport, _cramped, landed, numbers, pair  # noqa: F401

from dissensus.algorithms.engines.distributed.line import CONFIRMED, Line
from dissensus.algorithms.engines.distributed.message import Left


def left(line: Line, tag: int, size: int = 1000, dtype: torch.dtype = torch.float32) -> Left:
    """The next message, where it lies."""
    found = Left(torch.Size([size]), dtype)
    line.receive(found, tag).wait(SOON)
    return found


def test_what_lies_there_is_what_was_sent_and_stays_until_it_is_let_go_of() -> None:
    first, second = pair()
    first.send(numbers(0), 0)
    kept = left(second, 0)
    for t in range(1, 40):  # meanwhile others come and go
        first.send(numbers(t), t)
        second.send(numbers(-t), t)
        one = left(second, t)
        assert torch.equal(one.there, numbers(t))
        one.let_go()
        assert torch.equal(landed(first, t), numbers(-t))
        assert torch.equal(kept.there, numbers(0))
    assert min(first._there._taken)[0] == 0


def test_its_place_is_used_again_once_the_other_has_heard() -> None:
    first, second = pair()
    seen = set()
    for t in range(50):
        first.send(numbers(t), t)
        second.send(numbers(-t), t)
        mine, its = left(first, t), left(second, t)
        assert torch.equal(mine.there, numbers(-t))
        assert torch.equal(its.there, numbers(t))
        seen.add(its.there.data_ptr())
        mine.let_go()
        its.let_go()
    assert len(seen) == 2


def test_the_other_is_told_without_a_word_the_other_way() -> None:
    group = Transport()
    first, second = pair(group)
    for t in range(100):
        first.send(torch.full((3,), float(t)), t)
        one = left(second, t, 3)
        assert torch.equal(one.there, torch.full((3,), float(t)))
        one.let_go()
    assert not group.posted
    first._look()
    assert len(first._there._taken) <= CONFIRMED + 1


def test_where_the_room_is_full_it_lies_elsewhere() -> None:
    group = Transport()
    first, second = pair(group)
    size = ROOM_BYTES // 8
    for t in range(4):
        first.send(numbers(t, size), t)
    assert len(group.letters) == 2
    found = [left(second, t, size) for t in range(4)]
    assert all(torch.equal(one.there, numbers(t, size)) for t, one in enumerate(found))
    for one in found:
        one.let_go()
    first.send(numbers(9, size), 4)
    assert torch.equal(landed(second, 4, size), numbers(9, size))
    assert len(group.posted) == 2


@pytest.mark.parametrize("expected", [(7, 1000, torch.float32), (6, 999, torch.float32), (6, 1000, torch.int32)])
def test_another_message_than_was_expected_is_an_error(expected: tuple[int, int, torch.dtype]) -> None:
    first, second = pair()
    first.send(numbers(0), 6)
    tag, size, dtype = expected
    with pytest.raises(RuntimeError, match="it sent"):
        left(second, tag, size, dtype)


def test_a_line_that_has_ended_can_be_let_go_of() -> None:
    first, second = pair()
    first.send(numbers(0), 0)
    kept = left(second, 0)
    first.bell.socket.close()
    kept.let_go()
    assert torch.equal(kept.there, numbers(0))
    with pytest.raises(RuntimeError, match="Connection closed"):
        second.receive(torch.empty(3), 1).wait(timedelta(seconds=5))
