"""One of two processes: products over spread data, written beside the meeting file.

Arguments: rank, world, meeting file, dtype.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.probes import Curvature, ProbeError, top_eigenvalues
from dissensus.probes.across_ranks import AcrossRanks


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def problem(dtype: torch.dtype) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A model, and batches of 5, 4 and 2 samples: the first rank holds the first, the second one the others."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(11, 3, generator=draw, dtype=torch.float64), torch.randint(0, 3, (11,), generator=draw)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    return model, [(part.to(dtype), label) for part, label in zip(x.split([5, 4, 2]), y.split([5, 4, 2]), strict=True)]


class Failing(Curvature):
    """A Hessian whose products are not to be had."""

    def matvec(self, v: Tensor) -> Tensor:
        raise ProbeError("no product here")


def main() -> None:
    rank, world, place, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dtype = getattr(torch, kind)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    model, batches = problem(dtype)
    mine = batches[:1] if rank == 0 else batches[1:]
    op = AcrossRanks(Curvature(model, loss, mine), sum(len(batch[1]) for batch in mine))
    v = torch.randn(3, op.size, generator=torch.Generator().manual_seed(rank), dtype=dtype)  # the first rank's counts
    found = op.matvec(v)
    wrong = ""
    try:
        AcrossRanks(Curvature(model, loss, mine, "2.*" if rank else None), 1)
    except ProbeError as error:
        wrong = str(error)
    one_sided = ""
    try:
        AcrossRanks(Failing(model, loss, mine) if rank else Curvature(model, loss, mine), 1).matvec(v)
    except ProbeError as error:
        one_sided = str(error)
    answer = {
        "one-sided": one_sided,
        "products": found.double().tolist(),
        "counted": op.products,
        "share": op.share,
        "eigenvalue": top_eigenvalues(op, 1)[0].value,
        "wrong": wrong,
    }
    dist.destroy_process_group()
    Path(f"{place}.{rank}").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
