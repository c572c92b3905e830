"""Long messages on a line: written by the sender to where the receiver wants them, when that is known."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_line import SOON, ends, numbers

from dissensus.algorithms.engines.distributed import beside
from dissensus.algorithms.engines.distributed.line import Line, Receiving
from dissensus.algorithms.engines.distributed.shared_room import HALL_BYTES, Hall


def wanted(
    line: Line, hall: Hall, tag: int, shape: tuple[int, ...] = (1000,), dtype: torch.dtype = torch.float32
) -> tuple[Receiving, torch.Tensor]:
    """A message that is wanted in a new place."""
    into = hall.inbox(shape, dtype)
    at = hall.at(into)
    assert at is not None
    return line.want(into, at, tag), into


def owes_nothing_soon(line: Line) -> bool:
    """Whether what is owed is delivered though nobody waits for it."""
    end = time.monotonic() + 5.0
    while (line._owed or line._paying) and time.monotonic() < end:
        time.sleep(0.001)
    return not line._owed and not line._paying


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (3, 5), (1, 4097)])
@pytest.mark.parametrize("early", [False, True])
def test_what_comes_is_what_was_sent_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...], early: bool) -> None:
    (first, second), (_, hall) = ends()
    value = torch.arange(10_000).to(dtype)[: int(torch.Size(shape).numel())].reshape(shape)
    sent = first.deliver(value, 4) if early else None
    coming, into = wanted(second, hall, 4, shape, dtype)
    sent = sent or first.deliver(value, 4)
    sent.wait(SOON)
    coming.wait(SOON)
    assert torch.equal(into, value)


def test_where_it_is_wanted_is_known_a_delivery_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> None:
        raise AssertionError("a thread was started")

    (first, second), (_, hall) = ends()
    monkeypatch.setattr(beside, "threading", SimpleNamespace(Thread=refused))
    for t in range(5):
        coming, into = wanted(second, hall, t)
        sent = first.deliver(numbers(t), t)
        assert sent._owed.gone
        coming.wait(timedelta(0))
        assert torch.equal(into, numbers(t))


def test_an_early_message_is_delivered_though_nobody_waits() -> None:
    (first, second), (_, hall) = ends()
    sent = [first.deliver(numbers(t), t) for t in range(3)]
    assert not sent[0]._owed.gone
    with pytest.raises(RuntimeError, match="timed out"):
        sent[0].wait(timedelta(seconds=0.05))
    coming = [wanted(second, hall, t) for t in range(3)]
    assert owes_nothing_soon(first)
    for t, (receiving, into) in enumerate(coming):
        receiving.wait(timedelta(0))
        assert torch.equal(into, numbers(t))


def test_waiting_for_the_delivery_makes_it_safe_to_overwrite() -> None:
    (first, second), (_, hall) = ends()
    value = numbers(1)
    sent = first.deliver(value, 0)
    late = threading.Timer(0.1, lambda: boxes.append(wanted(second, hall, 0)))
    boxes: list[tuple[Receiving, torch.Tensor]] = []
    late.start()
    sent.wait(SOON)
    value.fill_(-1.0)
    late.join()
    boxes[0][0].wait(SOON)
    assert torch.equal(boxes[0][1], numbers(1))


def test_short_and_long_messages_keep_their_own_order() -> None:
    (first, second), (_, hall) = ends()
    first.deliver(numbers(0), 0)
    for t in range(3):
        first.send(numbers(10 + t), t)
    box = torch.empty(1000)
    second.receive(box, 0).wait(SOON)
    assert torch.equal(box, numbers(10))
    coming, into = wanted(second, hall, 0)
    coming.wait(SOON)
    assert torch.equal(into, numbers(0))
    second.receive(box, 1).wait(SOON)
    assert torch.equal(box, numbers(11))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("tag", "shape", "dtype", "said"),
    [
        (7, (1000,), torch.float32, "the message of step 6 where that of step 7 is due"),
        (6, (999,), torch.float32, "4000 bytes where 3996 are due"),
        (6, (1000,), torch.int32, "numbers of torch.float32 where torch.int32 is due"),
    ],
)
def test_another_message_than_is_wanted_is_an_error_at_both_ends(
    tag: int, shape: tuple[int, ...], dtype: torch.dtype, said: str, early: bool
) -> None:
    (first, second), (_, hall) = ends()
    sent = first.deliver(numbers(0), 6) if early else None
    coming, into = wanted(second, hall, tag, shape, dtype)
    sent = sent or first.deliver(numbers(0), 6)
    with pytest.raises(RuntimeError, match=f"it sent {said}"):
        coming.wait(SOON)
    with pytest.raises(RuntimeError, match=f"this process has {said}"):
        sent.wait(SOON)
    assert not into.any()


def test_who_waits_is_told_when_the_other_ends() -> None:
    (first, second), (hall, _) = ends()
    sent, (coming, _) = first.deliver(numbers(0), 0), wanted(first, hall, 0)
    second.bell.socket.close()
    for work in (sent, coming):
        with pytest.raises(RuntimeError, match="Connection closed"):
            work.wait(SOON)


def test_nothing_is_delivered_to_one_who_wanted_it_and_ended() -> None:
    (first, second), (_, hall) = ends()
    wanted(second, hall, 0)
    second.bell.socket.close()
    with pytest.raises(RuntimeError, match="Connection closed"):
        first.deliver(numbers(0), 0).wait(SOON)


def test_what_was_delivered_before_the_other_ended_still_counts() -> None:
    (first, second), (_, hall) = ends()
    coming, into = wanted(second, hall, 0)
    first.deliver(numbers(0), 0).wait(SOON)
    first.bell.socket.close()
    coming.wait(SOON)
    assert torch.equal(into, numbers(0))


def test_several_threads_wait_at_one_bell() -> None:
    """One listens for all: none may sleep on while another has read what it waits for."""
    (first, second), (_, hall) = ends()
    rounds, ended = 300, []

    def left() -> None:
        for t in range(rounds):
            box = torch.empty(1000)
            second.receive(box, t).wait(SOON)
            assert torch.equal(box, numbers(t))
        ended.append("left")

    def delivered() -> None:
        for t in range(rounds):
            coming, into = wanted(second, hall, t)
            coming.wait(SOON)
            assert torch.equal(into, numbers(-t))
        ended.append("delivered")

    threads = [threading.Thread(target=run) for run in (left, delivered)]
    for thread in threads:
        thread.start()
    for t in range(rounds):
        first.deliver(numbers(-t), t)
        first.send(numbers(t), t)
        if t % 7 == 0:
            time.sleep(0.0005)
    for thread in threads:
        thread.join(20.0)
    assert sorted(ended) == ["delivered", "left"]


def test_who_is_not_the_one_who_listens_reads_nothing() -> None:
    """It would take it away from the one who does."""
    (first, second), (_, hall) = ends()
    coming, _ = wanted(second, hall, 0)
    first.bell.attended = True
    sent = first.deliver(numbers(0), 0)
    with pytest.raises(RuntimeError, match="timed out"):
        sent.wait(timedelta(seconds=0.1))
    assert first.bell.listen()
    with first.bell.lock:
        first.bell.attended = False
        first.bell._turn.notify_all()
    sent.wait(SOON)
    coming.wait(SOON)


def test_the_end_of_the_process_makes_the_deliveries_that_can_be_made() -> None:
    (first, second), (_, hall) = ends()
    first.deliver(numbers(0), 0)
    boxes: list[tuple[Receiving, torch.Tensor]] = []
    late = threading.Timer(0.1, lambda: boxes.append(wanted(second, hall, 0)))
    late.start()
    beside._end()
    late.join()
    boxes[0][0].wait(SOON)
    assert torch.equal(boxes[0][1], numbers(0))


def test_the_end_of_the_process_waits_for_no_delivery_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "LAST_BREATH", 0.2)
    (first, _second), _ = ends()
    sent = first.deliver(numbers(0), 0)
    (thread,) = [thread for thread, shut in beside._RUNNING.items() if shut == first.shut]
    began = time.monotonic()
    beside._end()
    assert not thread.is_alive()
    assert 0.2 <= time.monotonic() - began < 2.0
    with pytest.raises(RuntimeError, match="Connection closed"):
        sent.wait(SOON)


def test_places_in_a_hall_do_not_overlap_and_end_where_it_ends() -> None:
    _, (hall, _) = ends()
    boxes = [hall.inbox((k,), torch.float64) for k in (3, 1, 1000, 8)]
    begins = [hall.at(box) for box in boxes]
    assert all(a is not None and a % 64 == 0 for a in begins)
    for k, box in enumerate(boxes):
        box.fill_(k)
    assert all(bool((box == k).all()) for k, box in enumerate(boxes))
    assert hall.at(torch.empty(3)) is None
    with pytest.raises(RuntimeError, match="DISSENSUS_SAME_HOST=gloo"):
        hall.inbox((HALL_BYTES,), torch.uint8)
