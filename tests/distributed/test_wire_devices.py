"""What a transport without a backend for the CPU needs, tried without one: devices, and who waits for a message."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.distributed.wire import Wire


class Works:
    """A message that notes which threads wait for it."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    def wait(self, *limit: Any) -> None:
        del limit
        self.waited.append(threading.get_ident())


def coalesced(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Wire:
    """A wire that believes to be one of two processes under NCCL, whose device is `meta`."""
    wire = Wire(**options)
    monkeypatch.setattr(Wire, "_device", torch.device("meta"))
    monkeypatch.setattr(wire, "present", (0, 1))
    monkeypatch.setattr(wire, "_coalesced", True)
    return wire


def test_rows_of_the_cpu_travel_on_the_device_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, seen = coalesced(monkeypatch), []

    def gathered(value: Tensor) -> list[Tensor]:
        seen.append(value.device.type)
        return [torch.zeros(value.shape), torch.ones(value.shape)]

    monkeypatch.setattr(wire, "_all", gathered)
    rows, whose = wire.rows(torch.tensor(data=True), what="who is there")
    assert whose == (0, 1)
    assert seen == ["meta"]
    assert rows.device.type == "cpu"
    assert rows.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("traced", [False, True], ids=["", "traced"])
def test_who_wants_a_message_waits_for_it_on_its_own_stream(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under NCCL to wait is to make the stream of the calling thread wait: another thread cannot do it."""
    work = Works()
    wire = coalesced(monkeypatch, timeline=Timeline(traced=traced))
    monkeypatch.setattr(wire, "_post_together", lambda flight, sends, receives: flight.works.append((work, 1, "with")))
    flight = wire.post([(1, torch.zeros(3))], [], what="exchange", step=0)
    wire.land(flight)
    assert work.waited[-1] == threading.get_ident()
    wire.land(flight)
    assert len(work.waited) == 1 + traced


def test_under_gloo_a_traced_message_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work, wire = Works(), Wire(timeline=Timeline(traced=True))
    monkeypatch.setattr(wire, "_post_each", lambda flight, *rest: flight.works.append((work, 1, "with")))
    wire.land(wire.post([(1, torch.zeros(3))], [], what="exchange", step=0))
    assert len(work.waited) == 1
    assert work.waited[0] != threading.get_ident()
