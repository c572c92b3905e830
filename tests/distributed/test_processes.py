"""The processes of a run: what only the first one does, and what it decides for all."""

import time
from pathlib import Path

import pytest
import torch
from pool import Pool

from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.processes import Processes, check_backend, count

HERE = Path(__file__)


def looking() -> tuple[float, float]:
    """The first process takes longer than a message may; then a message is exchanged."""
    crew = Processes(Wire(timeout=1.5))
    wire = crew.wire
    assert wire is not None
    for _ in range(2):
        with crew.only_first():
            if crew.first:
                time.sleep(2.5)
        other, mine, theirs = 1 - wire.rank, torch.ones(3) * wire.rank, torch.empty(3)
        wire.land(wire.post([(other, mine)], [(other, theirs)], what="exchange", step=0))
        assert torch.equal(theirs, torch.ones(3) * other)
    return crew.timeline.totals["look"], crew.timeline.totals["wait"]


def test_the_others_wait_for_the_first_longer_than_for_any_message(processes: Pool) -> None:
    for look, wait in processes.run(2, f"{HERE}:looking"):
        assert look > 4.9, "which is counted as looking"
        assert wait < 1.5, "and not as waiting for messages"


def overwritten() -> torch.Tensor:
    """A tensor whose rows lie apart, and what was between them."""
    wire = Wire(timeout=20)
    whole = torch.full((4, 6), float(wire.rank))
    wire.broadcast(whole[:, ::2], 1, what="start")
    return whole


def test_a_tensor_is_overwritten_however_it_lies(processes: Pool) -> None:
    first, second = processes.run(2, f"{HERE}:overwritten")
    assert torch.equal(first, torch.tensor([1.0, 0.0] * 3).expand(4, 6))
    assert torch.equal(second, torch.ones(4, 6))


def deciding(fails: bool) -> str:
    crew = Processes(Wire(timeout=20))

    def decide() -> str:
        assert crew.first, "nobody else is asked"
        if fails:
            raise ConfigError("there is nothing to decide on")
        return "forward"

    try:
        return crew.told_by_first(decide)
    except Exception as error:
        return str(error)


def test_the_first_decides_for_all(processes: Pool) -> None:
    assert processes.run(2, f"{HERE}:deciding", fails=False) == ["forward"] * 2
    said = processes.run(2, f"{HERE}:deciding", fails=True)
    assert said[0] == "there is nothing to decide on"
    assert "process 0 could not start: there is nothing to decide on" in said[1]


def test_one_process_does_everything_itself() -> None:
    crew = Processes()
    assert (crew.first, crew.alone, crew.facts()) == (True, True, {})
    assert crew.told_by_first(lambda: 3) == 3
    assert crew.gather("here", what="roll call") == ["here"]
    with crew.only_first():
        pass
    crew.leave(1)  # its exit code is told by the command itself


def test_who_has_been_started_is_told_by_the_environment() -> None:
    assert count({}) is None
    assert count({"RANK": "1", "WORLD_SIZE": "4"}) == 4


def test_a_backend_without_its_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_backend("gloo")
    with pytest.raises(ConfigError, match="backend nccl needs CUDA devices, and there are none here: use --backend gl"):
        check_backend("nccl")
