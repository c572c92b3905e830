"""A worker of several processes: DDP inside a node, disagreement between nodes, and what is refused there."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from plain import batch, distance, held, net, same
from pool import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dissensus
from dissensus.algorithms import AlgorithmError, node_groups

HERE = Path(__file__)
STEPS, PER_WORKER = 12, 2


def hierarchical(order: str) -> dict[str, Tensor]:
    """Two workers of two processes; process r sees the samples of half a worker."""
    inside, between = node_groups(PER_WORKER)
    assert dist.get_world_size(inside) == dist.get_world_size(between) == 2
    model = net()
    wrapped = DistributedDataParallel(model, process_group=inside)
    opt = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    algorithm = dissensus.algorithms.algorithm("dsgd", order=order, gamma=0.6)
    opt = dissensus.decentralize(opt, wrapped, algorithm=algorithm, topology="ring", group=between)
    for t in range(STEPS):
        opt.zero_grad()
        inputs, targets = batch(t, dist.get_rank())
        (wrapped(inputs) - targets).square().mean().backward()
        opt.step()
    return held(model)


def flat(order: str) -> dict[str, Tensor]:
    """Two workers of one process each, with the samples of both halves."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    algorithm = dissensus.algorithms.algorithm("dsgd", order=order, gamma=0.6)
    opt = dissensus.decentralize(opt, model, algorithm=algorithm, topology="ring")
    for t in range(STEPS):
        opt.zero_grad()
        halves = [batch(t, PER_WORKER * dist.get_rank() + k) for k in range(PER_WORKER)]
        inputs, targets = (torch.cat(parts) for parts in zip(*halves, strict=True))
        (model(inputs) - targets).square().mean().backward()
        opt.step()
    return held(model)


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_nodes_of_two_are_two_workers_with_twice_the_batch(order: str, processes: Pool) -> None:
    four, two = processes.run(4, f"{HERE}:hierarchical", order=order), processes.run(2, f"{HERE}:flat", order=order)
    assert same(four[0], four[1])
    assert same(four[2], four[3])
    assert distance(four[::2], two) <= 1e-12
    assert distance(four[:1], four[2:3]) > 1e-6, "the workers disagree"


def refused() -> str:
    with pytest.raises(AlgorithmError) as told:
        node_groups(3)
    return str(told.value)


def test_a_share_that_does_not_come_out_is_refused_with_those_that_do(processes: Pool) -> None:
    assert (
        processes.run(4, f"{HERE}:refused")
        == ["4 processes cannot be shared among workers of 3; processes_per_worker can be 1, 2, 4"] * 4
    )


def test_without_processes_there_are_no_nodes() -> None:
    with pytest.raises(AlgorithmError, match="call init_process_group first"):
        node_groups(1)


def fused_with_ddp() -> str:
    inside, between = node_groups(1)
    model = DistributedDataParallel(net(), process_group=inside)
    with pytest.raises(AlgorithmError) as told:
        dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, group=between, fused=True)
    return str(told.value)


def test_fused_moves_and_ddp_do_not_go_together(processes: Pool) -> None:
    assert all("before DDP has averaged" in said for said in processes.run(2, f"{HERE}:fused_with_ddp"))


def test_sharded_parameters_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.weight.placements = ("Shard(0)",)  # type: ignore[attr-defined]
    with pytest.raises(AlgorithmError, match=r"'weight' is sharded.*node_groups"):
        dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model)


def traced(path: str) -> int:
    model = net()
    timeline = dissensus.algorithms.Timeline(traced=True)
    opt = dissensus.decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, timeline=timeline)
    for t in range(5):
        opt.zero_grad()
        inputs, targets = batch(t, dist.get_rank())
        (model(inputs) - targets).square().mean().backward()
        opt.step()
    opt.settle()
    opt.save_trace(path)
    return opt.timeline.counts["bytes"]


def test_a_trace_has_work_and_messages_of_every_process(processes: Pool, tmp_path: Path) -> None:
    import json

    size = sum(value.numel() for value in net().parameters())
    sent = processes.run(2, f"{HERE}:traced", path=str(tmp_path / "trace.json"))
    assert sent == [6 * 8 * size] * 2, "five steps, and the first message of the sixth"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0, 1}
    assert {"step", "wait", "mix", "move", "flight"} <= {e["name"] for e in spans}
    for process in (0, 1):
        steps = [e for e in spans if e["name"] == "step" and e["pid"] == process]
        assert len(steps) == 5
        for flight in (e for e in spans if e["name"] == "flight" and e["pid"] == process):
            assert flight["tid"] == 1
            assert flight["dur"] >= 0
