"""Roads in one process: what comes, in which order pieces are posted and when."""

import math
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from transports import NONE, SECONDS, SHORT, ByHand, Town, alive, both, land, pieces, soon, stays, together

from dissensus.algorithms.engines.distributed.pace import PIECE_BYTES, Pace
from dissensus.algorithms.engines.distributed.road import Half, Roads


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
    assert soon(lambda: group.begun(1) == 2)
    assert stays(lambda: group.begun(2) == 0)
    group.end(1)
    assert stays(lambda: group.begun(2) == 0)
    sooner = both(ways.to(3), 2, step=3), both(ways.to(4), 2, step=4)
    assert soon(lambda: group.begun(3) == 2)
    assert stays(lambda: group.begun(4) == 0)
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
    assert soon(lambda: len(group.deeds) == 4)
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


def test_where_nothing_stalls_messages_go_as_they_are_and_at_once(group: ByHand, window: Callable[..., None]) -> None:
    window(1)
    ways = Roads(group, limit=SECONDS, in_pieces=False)
    incoming, outgoing = [pieces(5), pieces(1)], [pieces(3), pieces(2)]
    halves = ways.to(1).carry(incoming, outgoing, 0, 7)
    assert [(deed.doing, deed.tag, deed.value.numel()) for deed in group.deeds] == [
        ("recv", 7, incoming[0].numel()),
        ("recv", 7, incoming[1].numel()),
        ("send", 7, outgoing[0].numel()),
        ("send", 7, outgoing[1].numel()),
    ]
    halves += both(ways.to(2), 4, 1)
    assert len(group.deeds) == 6
    assert not alive()
    for deed in group.deeds:
        deed.end()
    land(halves)
    group.broken = "send"
    with pytest.raises(RuntimeError, match="cannot be posted"):
        both(ways.to(1), 1)
