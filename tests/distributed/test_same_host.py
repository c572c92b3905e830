"""Processes of one host that reach each other through memory: the same numbers as over gloo, and nothing is left."""

import gc
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from narrow import narrow
from plain import flat, net, squared
from pool import Pool

import dissensus
from dissensus.algorithms.engines.distributed import peers, shared_room
from dissensus.algorithms.engines.distributed import wire as wires
from dissensus.algorithms.engines.distributed.same_host import VARIABLE
from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.distributed.wire import Wire

HERE = Path(__file__)
N, STEPS = 4, 7
SHORT_BYTES, ROOM_BYTES = 1 << 20, 8 << 20
"""Smaller than outside of tests, so that small messages are long and fill a room."""
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ring": ("dsgd", "ring", {}),
    "one peer at a time": ("dsgd", "one-peer-exponential", {}),
    "push-sum on directed rounds": ("sgp", "one-peer-exponential", {}),
    "push-sum on a directed graph": ("sgp", "exponential", {}),
    "two messages a step": ("gradient-tracking", "ring", {}),
    "several buckets": ("dsgd", "complete", {"fused": True}),
    "bfloat16": ("dsgd", "ring", {"message_dtype": torch.bfloat16}),
    "a trace": ("dsgd", "ring", {"timeline": Timeline}),
    "a model that grows long": ("dsgd", "ring", {"fused": True}),
}


@contextmanager
def cramped(short: int = SHORT_BYTES) -> Iterator[None]:
    """In this process messages are long and rooms are full from those sizes on."""
    before = wires.SHORT_BYTES, shared_room.ROOM_BYTES
    wires.SHORT_BYTES, shared_room.ROOM_BYTES = short, ROOM_BYTES
    try:
        yield
    finally:
        wires.SHORT_BYTES, shared_room.ROOM_BYTES = before


def wide() -> torch.nn.Module:
    """A model of several buckets."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 12_000), torch.nn.Tanh(), torch.nn.Linear(12_000, 3)).double()


def wider() -> torch.nn.Module:
    """A model that is short while half of it is frozen, and of which no part is long."""
    torch.manual_seed(0)
    sizes = [(5, 12_000), (12_000, 5), (5, 12_000), (12_000, 3)]
    model = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes)).double()
    for p in model.parameters():
        p.data *= 0.1
    model[:2].requires_grad_(False)
    return model


BUILT = {"several buckets": wide, "a model that grows long": wider}


def trained(way: str, short: int = SHORT_BYTES) -> dict[str, tuple[torch.Tensor, int, int, int]]:
    """Where this process ends in every case, and how many messages were left, delivered, and sent in any way."""
    os.environ[VARIABLE] = way
    worker, found = dist.get_rank(), {}
    with cramped(short):
        for case, (name, topology, options) in CASES.items():
            model = BUILT.get(case, net)()
            options = {k: v(traced=True) if k == "timeline" else v for k, v in options.items()}
            inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            opt = dissensus.decentralize(inner, model, algorithm=name, topology=topology, timeout=30.0, **options)
            for t in range(STEPS):
                opt.zero_grad()
                squared(model, t, worker).backward()
                opt.step()
                if t == 3:
                    opt.settle()
                    model.requires_grad_(True)
            opt.settle()
            left, sent = (sum(getattr(line, kind) for line in opt.wire.lines.values()) for kind in ("left", "sent"))
            found[case] = flat(model).clone(), left, sent - left, opt.timeline.counts["messages"]
    del os.environ[VARIABLE]
    return found


@narrow(2048)
def trained_in_pieces() -> dict[str, tuple[torch.Tensor, int, int, int]]:
    """The same with messages that go in up to 300 pieces."""
    return trained("gloo")


def test_messages_in_pieces_change_no_bit(processes: Pool) -> None:
    whole = processes.run(N, f"{HERE}:trained", way="gloo")
    pieces = processes.run(N, f"{HERE}:trained_in_pieces")
    for case in CASES:
        for one, other in zip(whole, pieces, strict=True):
            assert torch.equal(one[case][0], other[case][0]), case
            assert one[case][3] == other[case][3], case


def test_all_is_equal_to_the_bit_to_what_it_is_over_gloo(processes: Pool) -> None:
    ways = [("memory", SHORT_BYTES), ("memory", 0), ("gloo", SHORT_BYTES)]
    memory, delivered, gloo = (processes.run(N, f"{HERE}:trained", way=way, short=short) for way, short in ways)
    for case in CASES:
        for here, all_long, there in zip(memory, delivered, gloo, strict=True):
            assert torch.equal(here[case][0], there[case][0]), case
            assert torch.equal(all_long[case][0], there[case][0]), case
            assert here[case][3] == all_long[case][3] == there[case][3] > STEPS, case
            assert there[case][1:3] == (0, 0), case
            assert all_long[case][1:3] == (0, all_long[case][3]), case
            assert sum(here[case][1:3]) == here[case][3], case
            if BUILT.get(case) is wider:
                assert min(here[case][1:3]) > 0
            else:
                assert here[case][2] == 0, case


@cramped()
def streamed(sizes: list[int], window: int, wanted: bool) -> list[list[int]]:
    """Messages from process to process round a directed circle, so many in the air; whether each was as it should."""
    wire = Wire(timeout=20.0)
    wires.SHORT_BYTES = 0 if wanted else SHORT_BYTES
    to, of = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size

    def message(who: int, t: int) -> torch.Tensor:
        return torch.full((sizes[t % len(sizes)],), float(1000 * who + t))

    air, wrong = [], []
    for t in range(40):
        size = sizes[t % len(sizes)]
        delivered = wanted and wire.delivers(of, 4 * size, torch.device("cpu"))
        into = wire.inbox((size,), torch.float32) if delivered else torch.empty(size)
        sends, receives = [(to, message(wire.rank, t))], [(of, into)]
        air.append((t, into, wire.post(sends, receives, what="exchange", step=t, wanted=wanted)))
        while len(air) > (window if t < 39 else 0):
            s, box, flight = air.pop(0)
            wire.land(flight)
            if not torch.equal(box, message(of, s)):
                wrong.append(s)
    return [wrong, [wire.lines[to].sent]]


@pytest.mark.parametrize(
    "sizes", [[10], [100_000, 7, 2 * SHORT_BYTES // 4], [200_000], [0, 5]], ids=["tiny", "mixed", "full", "empty"]
)
@pytest.mark.parametrize("wanted", [False, True])
def test_many_in_the_air_on_a_directed_circle(sizes: list[int], wanted: bool, processes: Pool) -> None:
    window = 30
    for wrong, sent in processes.run(3, f"{HERE}:streamed", sizes=sizes, window=window, wanted=wanted):
        assert not wrong
        assert sent == [27 if len(sizes) == 3 and not wanted else 40]
    assert window * 4 * 200_000 > ROOM_BYTES


@cramped(0)
def used() -> list[float]:
    """How much of the hall is in use after some steps, in messages."""
    model, found = net(), []
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    opt = dissensus.decentralize(inner, model, topology="one-peer-exponential", timeout=20.0)
    for t in range(9):
        squared(model, t, dist.get_rank()).backward()
        opt.step()
        assert opt.wire.hall is not None
        found.append(opt.wire.hall._used / sum(-(-b.flat.nbytes // 64) * 64 for b in opt.held.buckets))
    opt.settle()
    return found


def test_one_message_in_flight_has_one_place_whoever_it_comes_from(processes: Pool) -> None:
    assert processes.run(N, f"{HERE}:used") == [[1.0] * 9] * N


@cramped()
def far_ahead() -> list[float]:
    """Process 0 sends all it has before process 1 looks at any of it."""
    wire = Wire(timeout=20.0)
    boxes = [torch.full((100_000,), -1.0) for _ in range(60)]
    if wire.rank == 0:
        flights = [wire.post([(1, box.fill_(t))], [], what="exchange", step=t) for t, box in enumerate(boxes)]
        dist.barrier()
        for flight in flights:
            wire.land(flight)
    else:
        dist.barrier()
        for t, box in enumerate(boxes):
            wire.land(wire.post([], [(0, box)], what="exchange", step=t))
    return [box.mean().item() for box in boxes]


def test_one_is_far_ahead_and_waits_for_nobody(processes: Pool) -> None:
    assert processes.run(2, f"{HERE}:far_ahead") == [[float(t) for t in range(60)]] * 2


@cramped(0)
def settled_alone(folder: str) -> bool:
    """Process 0 waits for what is under way; process 1 does nothing for it, and has not even been ready for it."""
    wire, done = Wire(timeout=20.0), Path(folder) / "done"
    other, own = 1 - wire.rank, torch.full((9,), float(wire.rank))
    box = wire.inbox((9,), torch.float32)
    if wire.rank == 0:
        time.sleep(0.2)
    flight = wire.post([(other, own)], [(other, box)], what="exchange", step=0, wanted=True)
    if wire.rank == 0:
        wire.land(flight)
        done.touch()
    until = time.monotonic() + 15.0
    while not done.exists() and time.monotonic() < until:
        time.sleep(0.01)
    wire.land(flight)
    return box.tolist() == [float(other)] * 9 and time.monotonic() < until


def test_who_settles_alone_needs_nobody_else_to_wait(processes: Pool, tmp_path: Path) -> None:
    assert processes.run(2, f"{HERE}:settled_alone", folder=str(tmp_path)) == [True, True]


def skipped(short: int) -> str:
    with cramped(short):
        wire = Wire(timeout=20.0)
        other = 1 - wire.rank
        try:
            for t in (4, 5, 6) if wire.rank == 0 else (4, 6):
                box = torch.empty(3) if short else wire.inbox((3,), torch.float32)
                flight = wire.post([(other, torch.zeros(3))], [(other, box)], what="exchange", step=t, wanted=True)
                wire.land(flight)
        except dissensus.algorithms.PeerError as error:
            return str(error)
        return ""


@pytest.mark.parametrize("short", [SHORT_BYTES, 0], ids=["left", "delivered"])
def test_a_process_that_has_skipped_a_step_is_found_out_at_once(short: int, processes: Pool) -> None:
    for said in processes.run(2, f"{HERE}:skipped", short=short):
        assert re.search(r"lost its peer at step [56], exchange, (receiving from|sending to) process [01]", said), said
        assert re.search(r"the message of step [56] where that of step [56] is due|others have ended", said), said


def ended(folder: str) -> str:
    """Process 0 ends what waits, and lives on until process 1 has noticed."""
    wire, noticed = Wire(timeout=20.0), Path(folder) / "noticed"
    box = torch.empty(3)
    flight = wire.post([], [(1 - wire.rank, box)], what="exchange", step=0)
    if wire.rank == 0:
        wire.interrupt()
        until = time.monotonic() + 15.0
        while not noticed.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return str(noticed.exists())
    try:
        wire.land(flight)
    except dissensus.algorithms.PeerError as error:
        noticed.touch()
        return str(error)
    return ""


def test_who_waits_at_a_line_is_ended_by_one_that_lives(processes: Pool, tmp_path: Path) -> None:
    noticed, said = processes.run(2, f"{HERE}:ended", folder=str(tmp_path))
    assert noticed == "True"
    assert "exchange, receiving from process 0" in said


def mixed(ways: list[str]) -> list[int]:
    os.environ[VARIABLE] = ways[dist.get_rank()]
    wire = Wire(timeout=20.0)
    del os.environ[VARIABLE]
    others = [q for q in range(wire.size) if q != wire.rank]
    boxes = [torch.empty(5) for _ in others]
    own = torch.full((5,), float(wire.rank))
    wire.land(wire.post([(q, own) for q in others], list(zip(others, boxes, strict=True)), what="exchange", step=0))
    assert [box[4].item() for box in boxes] == others
    return list(wire.lines)


def test_whoever_keeps_to_gloo_is_reached_by_gloo(processes: Pool) -> None:
    assert processes.run(4, f"{HERE}:mixed", ways=["memory", "gloo", "memory", "memory"]) == [
        [2, 3],
        [],
        [0, 3],
        [0, 2],
    ]


def test_a_setting_that_means_nothing_ends_all_with_the_same_sentence(processes: Pool) -> None:
    for outcome in processes.outcomes(3, f"{HERE}:mixed", ways=["memory", "gloo", "memry"]):
        said = f"process 2 could not start: {VARIABLE} must be 'memory' or 'gloo', got 'memry'; did you mean 'memory'"
        assert said in outcome.failure


def descriptors() -> list[str]:
    found = []
    for k in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{k}"))
    return found


def left() -> dict[str, tuple[int, int, int, list[str], list[str]]]:
    """By way: lines, descriptors that a wire needs, those it leaves, unnamed files among them, what is in /dev/shm."""
    found = {}
    for way in ("gloo", "gloo", "memory"):  # the first time gloo and torch open what they keep
        os.environ[VARIABLE] = way
        before = len(descriptors())
        wire = Wire(timeout=20.0)
        peer = wire.rank ^ 1
        wire.land(wire.post([(peer, torch.ones(9))], [(peer, torch.ones(9))], what="exchange", step=0))
        here, new = descriptors(), [name for name in os.listdir("/dev/shm") if "dissensus" in name]
        count, files = len(wire.lines), [x for x in here if "memfd" in x]
        wire.barrier()
        del wire
        gc.collect()
        found[way] = count, len(here) - before, len(descriptors()) - before, files, new
    del os.environ[VARIABLE]
    return found


def test_nothing_is_left_but_a_socket_for_every_line_in_use(processes: Pool) -> None:
    for found in processes.run(4, f"{HERE}:left"):
        count, used, after, files, shared = found["memory"]
        assert (count, used - found["gloo"][1], after) == (3, 3, 0)
        assert not files
        assert not shared


def pieces_of_one(stalling: bool) -> tuple[bool, bool]:
    """Whether messages go in pieces, where TCP stalls at the last process or at nobody; the roads say so, too."""
    last = dist.get_rank() == dist.get_world_size() - 1
    with mock.patch.object(peers, "stalls", return_value=stalling and last):
        wire = Wire()
    return wire.in_pieces, wire.roads.in_pieces


@pytest.mark.parametrize("stalling", [False, True])
def test_messages_go_in_pieces_at_all_processes_where_tcp_stalls_at_one(stalling: bool, processes: Pool) -> None:
    assert processes.run(3, f"{HERE}:pieces_of_one", stalling=stalling) == 3 * [(stalling, stalling)]
