"""A plain script, changed in two lines, and the same script on DDP: ATC on the complete graph is the same training."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from plain import batch, distance, held, net, same
from pool import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dissensus

HERE = Path(__file__)
ACCUMULATE, STEPS = 4, 25


def script(kind: str) -> dict[str, Tensor]:
    model = net()
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.02}, {"params": biases, "lr": 0.05}]
    trained: nn.Module = model
    opt: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    if kind == "ddp":
        trained = DistributedDataParallel(model)
    else:
        algorithm = dissensus.algorithms.algorithm("dsgd", order="atc")
        more = {"fused": True, "accumulate": ACCUMULATE} if kind == "fused" else {}
        opt = dissensus.decentralize(opt, model, algorithm=algorithm, topology="complete", **more)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=[0.2, 0.1], total_steps=STEPS)
    for t in range(STEPS):
        opt.zero_grad()
        for k in range(ACCUMULATE):
            last = k == ACCUMULATE - 1
            with trained.no_sync() if isinstance(trained, DistributedDataParallel) and not last else nullcontext():
                inputs, targets = batch(ACCUMULATE * t + k, dist.get_rank())
                ((trained(inputs) - targets).square().mean() / ACCUMULATE).backward()
        opt.step()
        schedule.step()
    return held(model)


@pytest.mark.parametrize("kind", ["plain", "fused"])
def test_a_script_changed_in_two_lines_equals_its_ddp_twin(kind: str, processes: Pool) -> None:
    ddp, ours = processes.run(4, f"{HERE}:script", kind="ddp"), processes.run(4, f"{HERE}:script", kind=kind)
    assert all(same(ddp[0], other) for other in ddp)
    assert distance(ddp[:1], [held(net())]) > 0.1, "something has been learned"
    assert distance(ours, ddp) <= 1e-10
