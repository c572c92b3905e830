"""How many bytes may be under way, on links known in closed form, and how a road keeps to that."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transports import SECONDS, SHORT, ByHand, alive, both, land, pieces, soon, stays

from dissensus.algorithms.engines.distributed import pace
from dissensus.algorithms.engines.distributed.pace import AT_FIRST, AT_LEAST, LATE, PIECE_BYTES, Pace
from dissensus.algorithms.engines.distributed.road import Half, Roads

MESSAGE = 64 << 20
DOZENS = 36
MBIT, GBIT = 1e6 / 8, 1e9 / 8
RATES = [10 * MBIT, 30 * MBIT, 100 * MBIT, 200 * MBIT, 500 * MBIT, GBIT, 3 * GBIT, 10 * GBIT]
LATENCIES = [0.0, 0.0001, 0.001, 0.003, 0.010, 0.030, 0.100]


class Link:
    """Carries a piece within `latency` and the time that its bytes take, and never more bytes a second than `rate`."""

    def __init__(self, rate: float, latency: float) -> None:
        self.rate, self.latency = rate, latency

    @property
    def alone(self) -> float:
        """Seconds that a piece takes with nothing before it."""
        return self.latency + PIECE_BYTES / self.rate

    @property
    def holds(self) -> float:
        """How many bytes must be under way for the link to be full."""
        return self.rate * self.alone

    def throughput(self, window: float) -> float:
        """Bytes a second with so many of them under way."""
        return min(self.rate, window / self.alone)

    def carry(self, pace: Pace, factor: float = 1.0) -> None:
        """A message, whose rate is seen `factor` times as high as it is."""
        pace.carried(MESSAGE, MESSAGE / (factor * self.throughput(pace.window)))


def known(link: Link, factor: float = 1.0, messages: int = 5) -> Pace:
    """The pace of one who saw a lone piece and some messages on that link."""
    pace = Pace()
    pace.took(link.alone)
    for _ in range(messages):
        link.carry(pace, factor)
    return pace


def settled(link: Link, factor: float = 1.0) -> Pace:
    pace = known(link, factor)
    for _ in range(DOZENS):
        link.carry(pace)
    return pace


def test_of_an_unknown_link_the_first_window_may_be_under_way() -> None:
    pace = Pace()
    assert (pace.window, pace.awaited) == (AT_FIRST, math.inf)
    pace.took(0.001)
    assert (pace.window, pace.awaited) == (AT_FIRST, math.inf)
    pace = Pace()
    pace.carried(MESSAGE, 1.0)
    assert (pace.window, pace.awaited) == (AT_FIRST, math.inf)
    pace.took(0.001)
    assert pace.window < AT_FIRST + MESSAGE


@pytest.mark.parametrize("rate", [100 * MBIT, 200 * MBIT])
@pytest.mark.parametrize("latency", [0.0, 0.00005])
@pytest.mark.parametrize("factor", [0.05, 1.0, 20.0])
def test_on_a_slow_link_nearby_fewer_than_three_pieces_do(rate: float, latency: float, factor: float) -> None:
    link = Link(rate, latency)
    pace = settled(link, factor)
    assert pace.window < 3 * PIECE_BYTES
    assert pace.ahead < PIECE_BYTES / 100
    assert pace.awaited < 3 * PIECE_BYTES
    assert pace.window >= link.holds


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("factor", [0.05, 1.0, 20.0])
def test_the_window_grows_until_the_link_is_full(rate: float, latency: float, factor: float) -> None:
    link = Link(rate, latency)
    pace = known(link, factor)
    for _ in range(DOZENS):
        if pace.window >= link.holds:
            break
        before = pace.window
        for _ in range(5):
            link.carry(pace)
        assert pace.window > before
    pace = settled(link, factor)
    assert pace.window >= link.holds
    assert link.throughput(pace.window) == rate
    link.carry(pace)
    assert pace.window >= link.holds  # and it stays full


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("latency", LATENCIES)
def test_the_window_settles_at_what_is_said_of_it(rate: float, latency: float) -> None:
    pace = settled(Link(rate, latency))
    travel = rate * latency
    assert pace.ahead == pytest.approx(2 * travel, abs=1e-3)
    assert pace.window == pytest.approx(2 * PIECE_BYTES + 2 * travel + rate * LATE)
    assert pace.awaited == pytest.approx(pace.window + 8 * travel)


@pytest.mark.parametrize("seed", range(5))
def test_as_much_is_awaited_as_may_be_under_way_whatever_was_seen(seed: int) -> None:
    drawn, pace = np.random.default_rng(seed), Pace()
    for _ in range(200):
        if drawn.random() < 0.3:
            pace.took(float(10 ** drawn.uniform(-6, 1)))
        else:
            pace.carried(int(drawn.integers(1, 1 << 30)), float(10 ** drawn.uniform(-6, 2)))
        assert pace.awaited >= pace.window >= AT_LEAST
        assert pace.ahead >= 0.0


def test_now_and_then_a_message_may_be_late() -> None:
    link = Link(GBIT, 0.010)
    pace = settled(link)
    window = pace.window
    for _ in range(10):
        link.carry(pace, 0.01)
        link.carry(pace)
        link.carry(pace)
        assert pace.window == pytest.approx(window)


def test_the_least_time_of_a_piece_counts_and_one_that_took_none_tells_nothing() -> None:
    link = Link(GBIT, 0.010)
    pace, window = settled(link), settled(link).window
    pace.took(1.0)
    pace.carried(MESSAGE, 0.0)
    assert pace.window == window
    pace.took(link.alone / 2)
    assert pace.window < window


@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_posted_in_the_order_of_the_messages_and_never_more_than_may_be_under_way(
    group: ByHand, window: Callable[..., None], seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    may = float(drawn.integers(0, 5))
    window(may)
    road, halves, due = Roads(group, limit=SECONDS).to(1), list[Half](), {"recv": list[int](), "send": list[int]()}
    values = [(pieces(int(drawn.integers(1, 6))), pieces(int(drawn.integers(1, 6)))) for _ in range(8)]
    for into, value in values:
        for doing, whole in (("recv", into), ("send", value)):
            due[doing] += [part.data_ptr() for part in whole.split(SHORT // 4)]
        halves += road.carry([into], [value], 0, 3)
    most = 0
    while True:
        assert soon(lambda: any(not deed.over.is_set() for deed in group.deeds) or all(h.started for h in halves))
        left = [deed for deed in group.deeds if not deed.over.is_set()]
        if not left and all(half.started for half in halves):
            break
        most = max(most, *(sum(deed.doing == doing for deed in left) for doing in due))
        left[int(drawn.integers(len(left)))].end() if left else time.sleep(0.001)
        time.sleep(0.0002)
    land(halves)
    assert most == max(1, may)
    for doing, order in due.items():
        assert [deed.value.data_ptr() for deed in group.of(doing)] == order


def test_more_may_be_awaited_than_is_sent(group: ByHand, window: Callable[..., None]) -> None:
    window(2, awaited=4)
    halves = both(Roads(group, limit=SECONDS).to(1), 6)
    assert soon(lambda: [deed.doing for deed in group.deeds] == 4 * ["recv"] + 2 * ["send"])
    group.of("recv")[2].end()  # it has come; its turn to go has not
    assert stays(lambda: len(group.deeds) == 6)
    group.end(0)
    assert soon(lambda: len(group.deeds) == 8)
    assert [deed.doing for deed in group.deeds[6:]] == ["recv", "send"]
    for k in range(1, 6):
        assert soon(lambda k=k: group.begun() > k)
        group.end(k)
    land(halves)


@pytest.mark.parametrize("first", ["recv", "send"])
def test_a_piece_has_its_turn_when_one_before_it_is_over_in_both_directions(
    group: ByHand, window: Callable[..., None], first: str
) -> None:
    window(2)
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 5)
    for k in range(3):
        assert soon(lambda k=k: group.begun() == len(group.of("recv")) == 2 + k)
        group.of(first)[k].end()
        assert stays(lambda k=k: len(group.deeds) == 2 * (2 + k))
        group.of("send" if first == "recv" else "recv")[k].end()
        assert soon(lambda k=k: len(group.deeds) == 2 * (3 + k))
    assert soon(lambda: not alive())  # all have had their turn
    for k in (3, 4):
        group.end(k)
    land(halves)


def test_what_travels_anyway_holds_nobody_up(group: ByHand, window: Callable[..., None]) -> None:
    window(6, ahead=3)
    ways = Roads(group, limit=SECONDS)
    halves = both(ways.to(1), 4, 0)
    assert soon(lambda: group.begun(1) == 4)
    halves += both(ways.to(2), 1, 1)
    assert group.begun(2) == 0
    group.end(0)
    assert soon(lambda: group.begun(2) == 1)
    group.end(0, 2)
    for k in range(1, 4):
        group.end(k)
    land(halves)


def test_a_road_sees_its_pace_in_what_it_waits_for(
    group: ByHand, window: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    window(2)
    sizes, alone = list[int](), list[float]()
    monkeypatch.setattr(Pace, "carried", lambda _, size, seconds: sizes.append(size) if seconds > 0.0 else None)
    monkeypatch.setattr(Pace, "took", lambda _, seconds: alone.append(seconds))
    road = Roads(group, limit=SECONDS).to(1)
    halves = both(road, 1) + both(road, 1)
    assert not alive()
    halves += both(road, 6)
    for k in range(8):
        assert soon(lambda k=k: group.begun() > k)
        assert stays(lambda: True)  # the thread waits by now
        group.end(k)
    land(halves)
    assert soon(lambda: not alive())
    assert sizes == [3 * SHORT]  # the first two were under way before; of the next four the first is where time begins
    assert len(alone) == 1


@pytest.mark.parametrize(("said", "found"), [("bbr\n", True), ("bbr2\n", True), ("cubic\n", False), (None, False)])
def test_tcp_stalls_where_it_goes_by_rates(
    said: str | None, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_CONTROL", tmp_path / "control")
    if said is not None:
        (tmp_path / "control").write_text(said)
    assert pace.stalls() is found
