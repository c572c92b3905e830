"""One process of the front-door test: a plain training loop on a quadratic, decentralized in one line.

Called as `front_door_worker.py RANK SIZE FOLDER STEPS`; runs every case of FOLDER/cases.json in one process group and
writes FOLDER/RANK.npz, one path a case.
"""

import datetime
import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from dissensus.algorithms import algorithm
from dissensus.algorithms.engines.distributed.front_door import decentralize


def main(rank: int, size: int, folder: Path, steps: int) -> None:
    """Runs all cases."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    problem = np.load(folder / "problem.npz")
    a, b, x0 = (torch.from_numpy(problem[key][rank]) for key in ("A", "b", "x0"))
    cases = json.loads((folder / "cases.json").read_text())
    paths = {name: train(spec, topology, a, b, x0, steps) for name, (spec, topology) in cases.items()}
    np.savez(folder / f"{rank}.npz", **paths, **looked(rank))  # pyright: ignore[reportArgumentType]
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def looked(rank: int) -> dict[str, np.ndarray]:
    """What a worker and the consensus model hold in training: parameters, a frozen one, BatchNorm's buffers."""
    torch.manual_seed(rank)
    norm, last = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), norm, last).double()
    last.bias.requires_grad_(False)
    opt = decentralize(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), model, start="own")
    for t in range(3):
        opt.zero_grad()
        model(
            torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * t + rank)).double()
        ).square().mean().backward()
        opt.step()
    norm.weight.grad = torch.full((4,), float(rank), dtype=torch.float64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    with opt.consensus() as mean:
        held = {f"mean.{name}": value.numpy().copy() for name, value in mean.state_dict().items()}
        assert not mean.training
        assert all(p.grad is None for p in mean.parameters())
        torch.rand(3)
        for p in mean.parameters():
            p.data.zero_()
    assert model.training
    assert norm.weight.grad.tolist() == [rank] * 4
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    return {f"own.{name}": value.numpy() for name, value in before.items()} | held


def train(spec: dict, topology: str, a: torch.Tensor, b: torch.Tensor, x0: torch.Tensor, steps: int) -> np.ndarray:
    """Trains f(x) = 1/2 x'Ax - b'x from x0 with momentum, weight decay and a step schedule."""
    model = torch.nn.ParameterDict({"left": torch.zeros(2, 2), "right": torch.zeros(1)}).double()
    with torch.no_grad():
        model["left"].copy_(x0[:4].view(2, 2))
        model["right"].copy_(x0[4:])
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    opt = decentralize(inner, model, algorithm=algorithm(**spec), topology=topology, start="own")
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=10, gamma=0.7)
    path = [x0.numpy()]
    for _ in range(steps):
        opt.zero_grad()
        x = torch.cat([model["left"].reshape(-1), model["right"]])
        (0.5 * x @ a @ x - b @ x).backward()
        opt.step()
        schedule.step()
        path.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy())
    return np.stack(path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
