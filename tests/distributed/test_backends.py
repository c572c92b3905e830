"""Which backend of a group carries what lies on a device, and what is said where none does."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from crew import Crew, left
from plain import net, squared

import dissensus
from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed import peers
from dissensus.algorithms.engines.distributed.peers import backend_of

HERE = Path(__file__)


def unnamed() -> None:
    """A loop in a group that was made without naming a backend: torch takes one for every device there is."""
    dist.init_process_group()
    model, worker = net(), dist.get_rank()
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, topology="complete", timeout=30)
    for t in range(3):
        opt.zero_grad()
        squared(model, t, worker).backward()
        opt.step()
    with opt.consensus():
        pass
    left([opt.wire.backend, opt.t])


def test_a_group_without_a_name_of_its_backend(crew: Crew) -> None:
    run = crew.start(f"{HERE}:unnamed", 2)
    assert run.codes(range(2), 60.0) == [0, 0], run.log(0)
    assert [run.left(q) for q in range(2)] == [["gloo", 3]] * 2


def group(**backends: str) -> Any:
    """Stands in for a group with these backends by device."""

    def of(device: torch.device) -> Any:
        if device.type not in backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return SimpleNamespace(name=lambda: backends[device.type])

    return SimpleNamespace(_get_backend=of)


@pytest.mark.parametrize(
    ("backends", "said", "device", "found"),
    [
        ({"cpu": "gloo", "cuda": "gloo"}, "gloo", None, "gloo"),
        ({"cpu": "gloo", "cuda": "gloo"}, "gloo", "cpu", "gloo"),
        ({"cuda": "nccl"}, "nccl", None, "nccl"),
        ({"cuda": "nccl"}, "nccl", "cuda", "nccl"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ({"cpu": "gloo", "cuda": "nccl"}, "undefined", None, "gloo"),
    ],
)
def test_the_device_decides(
    backends: dict[str, str], said: str, device: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.dist, "get_backend", lambda _: said)
    assert backend_of(group(**backends), None if device is None else torch.device(device)) == found


@pytest.mark.parametrize(
    ("backends", "said", "device", "instead"),
    [
        (
            {"cpu": "gloo", "cuda": "gloo"},
            "gloo",
            "cuda",
            r"init_process_group\('nccl'\), or leave the model on the CPU",
        ),
        ({"cuda": "nccl"}, "nccl", "cpu", r"init_process_group\('gloo'\), or move the model to its device"),
    ],
)
def test_a_backend_that_cannot_send_from_there_is_refused(
    backends: dict[str, str], said: str, device: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.dist, "get_backend", lambda _: said)
    with pytest.raises(AlgorithmError, match=f"parameters are on {device}, .*{said}.*{instead}"):
        backend_of(group(**backends), torch.device(device))
