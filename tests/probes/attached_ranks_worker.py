"""One process of several: a decentralized training loop with instruments attached, and the same loop without.

Arguments: rank, world, meeting file. Writes what was recorded, and the final parameters, beside the meeting file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.algorithms.engines.distributed.front_door import Decentralized, decentralize
from dissensus.probes import Curvature, ProbeError, hessian_trace, top_eigenvalues
from dissensus.probes.across_ranks import AcrossRanks
from dissensus.probes.attached import Attached
from dissensus.probes.schedule import Every

STEPS, EVERY = 7, 3
SIZES = (9, 5, 7)
"""How many samples every rank holds: unequal, so that a plain mean over ranks would be wrong."""


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of a batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def data(dtype: torch.dtype, world: int) -> list[tuple[Tensor, Tensor]]:
    """The samples of every rank."""
    draw = torch.Generator().manual_seed(0)
    total = sum(SIZES[:world])
    x, y = torch.randn(total, 3, generator=draw, dtype=torch.float64), torch.randint(0, 3, (total,), generator=draw)
    return list(zip(x.to(dtype).split(SIZES[:world]), y.split(SIZES[:world]), strict=True))


def network(dtype: torch.dtype) -> nn.Module:
    """The same start everywhere, with buffers, and layers that draw."""
    torch.manual_seed(1)
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3)]
    return nn.Sequential(*layers).to(dtype)


def looks(held: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Curvature over everybody's samples; the sampled trace, the exact one and the largest eigenvalues."""

    def operator(model: nn.Module) -> Any:
        torch.rand(5)  # a careless look
        mine = Curvature(model, loss, [held])
        return AcrossRanks(mine, len(held[1])) if dist.is_initialized() else mine

    return {
        "trace": lambda model: hessian_trace(operator(model), method="deflated", rtol=0.3, max_matvecs=400),
        "exact": lambda model: hessian_trace(operator(model), method="exact"),
        "tops": lambda model: dict(
            zip(("top 1", "top 2"), top_eigenvalues(operator(model), 2, tol=1e-5, max_matvecs=200), strict=True)
        ),
    }


def train(held: tuple[Tensor, Tensor], dtype: torch.dtype, attached: Attached | None) -> tuple[Decentralized, list]:
    """A plain loop with the local samples as its batch; what the consensus model was whenever it was looked at."""
    model = network(dtype)
    opt = decentralize(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), model, topology="ring")
    seen = []
    torch.manual_seed(2)  # what dropout draws from
    for t in range(STEPS + 1):
        if attached is not None:
            if t % EVERY == 0 or t == STEPS:
                with opt.consensus() as mean:
                    seen.append({name: value.tolist() for name, value in mean.state_dict().items()})
            attached.after(opt, final=t == STEPS)
        if t == STEPS:
            break
        opt.zero_grad()
        loss(model, held).backward()
        opt.step()
    return opt, seen


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class At:
    """The workers at a step of our choice."""

    def __init__(self, t: int, consensus: Callable[[], Any]) -> None:
        self.t, self.consensus = t, consensus


def shared(opt: Decentralized, rank: int) -> dict[str, list[int]]:
    """At which steps there was time left, where the clock of the first rank, or of the last one, runs slowly."""
    found = {}
    for name, slow in (("first is slow", 0), ("last is slow", dist.get_world_size() - 1)):
        clock, lines = Clock(), []

        def look(model: nn.Module, clock: Clock = clock) -> float:
            clock.now += 1.0
            return 0.0

        attached = Attached({"look": look}, Every(1), record=lines.append, share=0.25, clock=clock)
        for t in range(20):
            attached.after(At(t, opt.consensus))
            clock.now += 0.5 if rank == slow else 100.0
        found[name] = [line["step"] for line in lines if line["value"] is not None]
    return found


def main() -> None:
    """Joins the others, trains with and without instruments in both precisions, and writes what came of it."""
    rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    answer: dict[str, Any] = {}
    for kind in ("float64", "float32"):
        dtype, lines = getattr(torch, kind), []
        held = data(dtype, world)[rank]
        watched, seen = train(held, dtype, Attached(looks(held), Every(EVERY), record=lines.append))
        drawn = torch.get_rng_state().tolist()
        alone, _ = train(held, dtype, None)
        same = all(
            torch.equal(a, b)
            for a, b in zip(watched._model.state_dict().values(), alone._model.state_dict().values(), strict=True)
        )
        same = same and drawn == torch.get_rng_state().tolist()
        answer[kind] = {"lines": lines, "seen": seen, "same": same}
        if kind == "float64":
            answer["shared"] = shared(watched, rank)
            try:
                Attached({}, Every(1), record=print, workers=[1]).after(watched)
            except ProbeError as error:
                answer["workers"] = str(error)
    dist.barrier()
    dist.destroy_process_group()
    Path(f"{place}.{rank}").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
