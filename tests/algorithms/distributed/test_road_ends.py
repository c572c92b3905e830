"""Roads that end: pieces that fail, time-outs, and the threads that give pieces their turn."""

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from transports import SECONDS, SHORT, SOON, ByHand, Town, alive, attended, both, land, soon, stays, together, told

from dissensus.algorithms.engines.distributed import beside
from dissensus.algorithms.engines.distributed import road as roads
from dissensus.algorithms.engines.distributed.road import Half, Road, Roads

LONG = 3.0
"""Seconds that a thread stays where that is to be noticed."""


def test_when_a_piece_fails_those_behind_it_are_told_and_nothing_more_goes(
    group: ByHand, window: Callable[..., None]
) -> None:
    window(2, awaited=3)
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 5)
    assert soon(lambda: len(group.deeds) == 5)
    assert attended(group)
    group.of("send")[0].end("it broke")
    group.of("recv")[0].end()
    halves[0].wait(SOON)
    assert [told(half) for half in (halves[1], *halves[5:])] == 6 * ["it broke"]
    with pytest.raises(RuntimeError, match="it broke"):
        both(road, 1)
    assert len(group.deeds) == 5
    assert told(halves[4], timedelta(seconds=0.01)) == "the transport timed out"  # it is the transport's
    group.end(1)
    land(halves[2:4])


def test_a_failure_that_somebody_else_has_seen_ends_the_road_too(group: ByHand, window: Callable[..., None]) -> None:
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 4)
    assert attended(group)
    group.end(1, error="it broke")
    assert {told(half) for half in halves[2:4]} == {"it broke"}
    group.end(0)
    assert {told(half) for half in halves[4:]} == {"it broke"}
    assert len(group.deeds) == 4
    with pytest.raises(RuntimeError, match="it broke"):
        both(road, 1)


def test_a_piece_that_has_come_before_its_turn_says_nothing_of_the_way(
    group: ByHand, window: Callable[..., None]
) -> None:
    window(2, awaited=6)
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 6)
    assert attended(group)
    time.sleep(0.1)
    for deed in group.of("recv"):
        deed.end()
    group.of("send")[1].end()
    land(halves[2:4])
    group.of("send")[0].end()
    for k in range(2, 6):
        assert soon(lambda k=k: len(group.of("send")) > k)
        group.of("send")[k].end()
    land(halves)
    assert soon(lambda: not alive())
    assert road.pace._delay >= 0.1


@pytest.mark.parametrize("doing", ["recv", "send"])
def test_what_cannot_be_posted_is_told(group: ByHand, window: Callable[..., None], doing: str) -> None:
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 4)
    assert soon(lambda: group.begun() == 2)
    group.broken = doing
    group.end(0)
    land(halves[:2])
    assert {told(half) for half in halves[4:] if half.doing != "receiving from"} == {"cannot be posted"}
    assert {told(half) for half in halves[6:]} == {"cannot be posted"}
    with pytest.raises(RuntimeError, match="cannot be posted"):
        both(road, 1)
    with pytest.raises(RuntimeError, match="cannot be posted"):
        both(Roads(group, limit=SECONDS).to(2), 1)


def test_a_failure_elsewhere_lets_those_go_on_who_waited_for_it(group: ByHand, window: Callable[..., None]) -> None:
    ways = Roads(group, limit=SECONDS)
    lost, kept = both(ways.to(1), 3, 0), both(ways.to(2), 3, 1)
    assert stays(lambda: not group.begun(2))  # its thread waits for the first piece of the other
    group.end(0, error="it broke")
    assert soon(lambda: group.begun(2) == 2)
    assert {told(half) for half in (lost[0], *lost[4:])} == {"it broke"}
    for k in range(3):
        assert soon(lambda k=k: group.begun(2) > k)
        group.end(k, 2)
    land(kept)


def test_several_may_wait_for_one_half(group: ByHand, window: Callable[..., None]) -> None:
    halves = both(Roads(group, limit=SECONDS).to(1), 5)

    def end() -> None:
        for k in range(5):
            assert soon(lambda k=k: group.begun() > k)
            time.sleep(0.002)
            group.end(k, error="it broke" if k == 4 else "")

    together(end, *4 * [lambda: land(halves[:8])], *4 * [lambda: told(halves[8])], lambda: told(halves[9]))
    assert all(deed.waits == 1 for deed in group.deeds)


@pytest.mark.parametrize("which", [0, -1])
def test_who_has_waited_for_long_enough_closes_the_connection(
    group: ByHand, window: Callable[..., None], which: int
) -> None:
    """Whether another thread is with the transport, or its turn has not come."""
    halves = both(Roads(group, limit=SECONDS).to(1), 3)
    assert attended(group)
    assert told(halves[which], timedelta(seconds=0.01)) == "timed out"
    assert group.shut == [1]
    assert [told(half) for half in halves] == 6 * ["closed"]
    limited, began = both(Roads(group, limit=0.01).to(2), 3)[-1], time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        limited.wait()
    assert time.monotonic() - began < SECONDS


def test_messages_of_one_piece_that_may_be_under_way_need_no_thread(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    window(math.inf)
    monkeypatch.setattr(roads, "beside", lambda *_: pytest.fail("a thread was started"))
    road = Roads(group, limit=SECONDS).to(1)
    halves = [half for t in range(20) for half in both(road, 1, t)]
    for k in range(20):
        group.end(k)
    land(halves)


@pytest.mark.parametrize("count", [1, 8])
def test_a_thread_that_is_still_there_takes_the_next_message_and_pauses_are_no_part_of_the_pace(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    started, start = list[None](), beside.beside
    monkeypatch.setattr(roads, "beside", lambda *given: (started.append(None), start(*given)))
    monkeypatch.setattr(roads, "LINGER", LONG)
    road, at = Roads(group, limit=SECONDS).to(1), 0
    for size in (8, count, 8):
        halves, began = both(road, size, at), time.monotonic()
        assert soon(lambda at=at: group.begun() > at)
        assert time.monotonic() - began < LONG / 2  # it is woken
        for k in range(at, at + size):
            assert soon(lambda k=k: group.begun() > k)
            group.end(k)
        land(halves)
        assert soon(lambda: road._idle)
        at += size
        time.sleep(0.2)
    assert len(road.pace._rates) == (3 if count == 8 else 2)
    assert min(road.pace._rates) > 8 * SHORT / 0.2
    assert soon(lambda: not alive())
    halves = both(road, 1, at)
    group.end(at)
    land(halves)
    assert len(started) == 1


def test_a_message_that_may_be_under_way_does_not_wait_for_a_thread_that_waits(
    group: ByHand, window: Callable[..., None]
) -> None:
    window(2)
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 4)
    assert attended(group)
    window(9)
    halves += both(road, 2)
    assert group.begun() == 6
    for k in range(6):
        group.end(k)
    land(halves)


def test_a_message_that_comes_before_the_thread_rests_has_its_turn(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    halves, give = list[Half](), Road._give_turns

    def give_and_add(road: Road, since: float) -> None:
        give(road, since)
        if len(halves) == 6:
            halves.extend(both(road, 3, 1))

    monkeypatch.setattr(roads, "LINGER", LONG)
    monkeypatch.setattr(Road, "_give_turns", give_and_add)
    halves += both(Roads(group, limit=SECONDS).to(1), 3)
    began = time.monotonic()
    for k in range(6):
        assert soon(lambda k=k: group.begun() > k)
        group.end(k)
    assert time.monotonic() - began < LONG / 2
    land(halves)


def test_a_thread_waits_without_turning_round_and_there_is_another_one_when_it_has_ended(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, next_one = [0], Road._go_on
    monkeypatch.setattr(Road, "_go_on", lambda road: (turns.append(1), next_one(road)))
    ways = Roads(group, limit=SECONDS)
    for t in range(20):
        halves = both(ways.to(1), 3, t) + both(ways.to(2), 3, t + 1)
        assert alive()
        assert stays(lambda: True)
        for place in (1, 2):
            for k in range(3 * t, 3 * t + 3):
                assert soon(lambda k=k, place=place: group.begun(place) > k)
                group.end(k, place)
        land(halves)
        assert soon(lambda: not alive())
    assert len(turns) < 20 * 20


@pytest.mark.parametrize("linger", [0.0, 2e-5, 1e-4, 0.05])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_message_that_comes_as_the_thread_ends_has_its_turn(
    town: Town, window: Callable[..., None], slow: int, linger: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roads, "LINGER", linger)

    def say(k: int) -> None:
        road = Roads(town.end_at(k), limit=SECONDS).to(1 - k)
        for t in range(300):
            land(both(road, 1 + t % 5, t, t))
            time.sleep(1e-5 * (t % 7) * (k == slow))

    together(lambda: say(0), lambda: say(1))


def test_when_the_process_ends_threads_that_cannot_are_ended(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "LAST_BREATH", 0.05)
    halves = both(Roads(group, limit=SECONDS).to(1), 3)
    beside._end()
    assert not alive()
    assert group.shut == [1]
    assert {told(half) for half in halves} == {"closed"}
    monkeypatch.setattr(beside, "LAST_BREATH", SECONDS)
    halves = both(Roads(group, limit=SECONDS).to(2), 3)
    later = threading.Timer(0.1, lambda: group.end(0, 2))
    later.start()
    beside._end()
    assert group.begun(2) == 3  # it had the time
    assert not alive()
    later.join()
