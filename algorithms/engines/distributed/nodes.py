"""A worker of several processes: gradients are averaged inside a node, and nodes are the workers that disagree.

    inside, between = dissensus.algorithms.node_groups(processes_per_worker=4)
    model = DistributedDataParallel(model, process_group=inside)
    opt = dissensus.decentralize(opt, model, topology="ring", group=between)

With P processes and m of them in a worker there are P/m workers. Process r belongs to worker r // m. DDP sees to it
that the processes of a worker have the same gradients, so they stay one model; each of them exchanges with its
counterparts in the other workers, so that a node's links carry m equal messages side by side. What comes out is the
algorithm on P/m workers with m times the batch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dissensus.algorithms.errors import AlgorithmError


def node_groups(
    processes_per_worker: int, *, timeout: float | None = None
) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The group inside this process's worker, and the group of its counterparts; every process must call it."""
    if not (dist.is_available() and dist.is_initialized()):
        raise AlgorithmError("node_groups() needs torch.distributed: call init_process_group first")
    size, rank, m = dist.get_world_size(), dist.get_rank(), processes_per_worker
    if isinstance(m, bool) or not isinstance(m, int) or m < 1 or size % m:
        whole = [k for k in range(1, size + 1) if size % k == 0]
        raise AlgorithmError(
            f"{size} processes cannot be shared among workers of {m!r}; processes_per_worker can be "
            f"{', '.join(map(str, whole))}"
        )
    limit = None if timeout is None else timedelta(seconds=timeout)
    inside: list[Any] = [dist.new_group(list(range(k, k + m)), timeout=limit) for k in range(0, size, m)]
    between: list[Any] = [dist.new_group(list(range(k, size, m)), timeout=limit) for k in range(m)]
    return inside[rank // m], between[rank % m]
