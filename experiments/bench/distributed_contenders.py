"""What is timed against each other: one worker's step, alone, by exchange, by ours, by torch's DDP and by decent-dp.

Every contender has a model of its own and a process group of its own, so that none meets another's messages. All of
them take the same batches, the same optimizer and, where they mix, the same pairs: the *ring* of decent-dp is one peer
at a time (ours calls it `one-peer-ring`), and so is its *one-peer-exp* (here `one-peer-hypercube`).
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dissensus.algorithms import Decentralized, algorithm, decentralize
from dissensus.experiments.bench.distributed_models import OPTIMIZERS, Pace, Perceptron
from dissensus.theory.registry import topology

SCHEDULES = {"ring": "one-peer-ring", "one-peer-exp": "one-peer-hypercube", "complete": "complete"}
"""What decent-dp calls its schedules, and the same in our words."""


@dataclass(frozen=True)
class Post:
    """Where a contender stands: which worker of how many, with what to train, and whom to meet."""

    case: Perceptron
    optimizer: str
    schedule: str
    worker: int
    size: int
    group: Any
    seconds: float = 0.0
    """What computing a step takes beside what it really computes."""
    sigma: float = 0.0
    """How much that differs from step to step (see `Pace`)."""

    def pace(self) -> Pace:
        """The pace of a contender, at its first step."""
        return Pace(self.seconds, self.sigma, self.worker)


class Contender(Protocol):
    """Something that takes the steps of one worker."""

    def step(self) -> None:
        """One step."""
        ...

    def settle(self) -> None:
        """Waits until nothing of it is on the wire."""
        ...

    @property
    def x(self) -> Tensor:
        """The point of this worker, (d,)."""
        ...


class Local:
    """Forward, backward and the optimizer: the part of a step that a worker does for itself."""

    def __init__(self, post: Post) -> None:
        self._pace = post.pace()
        self._case, self._batch = post.case, post.case.samples(post.worker)
        self.model = post.case.model(self._pace if post.seconds else None)
        self.trained: nn.Module = self.model
        """What the loss is taken of: the model, or a wrapper around it."""
        self.optimizer: torch.optim.Optimizer | None = OPTIMIZERS[post.optimizer](self.model.parameters())

    def step(self) -> None:
        """The loop as users write it."""
        self._pace.begin()
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self._case.loss(self.trained, self._batch).backward()
        if self.optimizer is not None:
            self.optimizer.step()

    def settle(self) -> None:
        """Waits until nothing of it is on the wire."""
        if isinstance(self.optimizer, Decentralized):
            self.optimizer.settle()
        for work in getattr(self.trained, "_comm_ops", ()):  # decent-dp's, which has no other way
            if work is not None:
                work.wait()

    @property
    def x(self) -> Tensor:
        """The point of this worker, (d,)."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


class Exchange:
    """Messages alone: as many bytes as the parameters to everybody who hears us in this round, and back.

    Receives are posted before sends. The other way round, gloo puts the word that we are ready to receive behind all of
    what we send, and the two directions take turns.
    """

    def __init__(self, post: Post, chunk: int | None) -> None:
        rounds = [w.dense() for w in topology(SCHEDULES[post.schedule], post.size).rounds]
        me, others = post.worker, [j for j in range(post.size) if j != post.worker]
        self._peers = [([j for j in others if w[me, j]], [j for j in others if w[j, me]]) for w in rounds]
        """Whom this worker hears, and who hears it, round by round."""
        self._group, self._t = post.group, 0
        self._message = torch.zeros(post.case.d, dtype=torch.float64 if post.case.double else torch.float32)
        self._inboxes: list[Tensor] = []
        size = self._message.numel() if chunk is None else max(1, chunk // self._message.element_size())
        self._cut = lambda value: value.split(size)

    def step(self) -> None:
        """One round."""
        heard, hears = self._peers[self._t % len(self._peers)]
        while len(self._inboxes) < len(heard):
            self._inboxes.append(torch.empty_like(self._message))
        works = [
            dist.irecv(part, j, group=self._group, tag=k)
            for inbox, j in zip(self._inboxes, heard, strict=False)
            for k, part in enumerate(self._cut(inbox))
        ]
        works += [
            dist.isend(part, j, group=self._group, tag=k)
            for j in hears
            for k, part in enumerate(self._cut(self._message))
        ]
        for work in works:
            assert work is not None
            work.wait()
        self._t += 1

    def settle(self) -> None:
        """Nothing is left on the wire."""

    @property
    def x(self) -> Tensor:
        """Nothing is trained."""
        return self._message


class AllReduce:
    """The sum over all workers of as many bytes as the parameters, alone."""

    def __init__(self, post: Post) -> None:
        self._group = post.group
        self._message = torch.zeros(post.case.d, dtype=torch.float64 if post.case.double else torch.float32)

    def step(self) -> None:
        """One sum."""
        dist.all_reduce(self._message, group=self._group)

    def settle(self) -> None:
        """Nothing is left on the wire."""

    @property
    def x(self) -> Tensor:
        """Nothing is trained."""
        return self._message


def ours(post: Post, **options: Any) -> Local:
    """The loop of `Local` with the one line that makes it decentralized: DSGD, adapt while communicate."""
    made = Local(post)
    assert made.optimizer is not None
    made.optimizer = decentralize(
        made.optimizer,
        made.model,
        algorithm=algorithm("dsgd", order="awc"),
        topology=topology(SCHEDULES[post.schedule], post.size),
        group=post.group,
        **options,
    )
    return made


def ddp(post: Post, **options: Any) -> Local:
    """The loop of `Local` with torch's wrapper around the model."""
    made = Local(post)
    made.trained = DistributedDataParallel(made.model, process_group=post.group, **options)
    return made


def decent_dp(post: Post) -> Local:
    """The loop of `Local` with decent-dp's wrapper, which has an optimizer of its own in every bucket."""
    peer = importlib.import_module("decent_dp.ddp")  # an extra of the benchmark
    importlib.import_module("loguru").logger.remove()
    made = Local(post)
    made.optimizer = None
    made.trained = peer.DecentralizedDataParallel(
        made.model, lambda named: OPTIMIZERS[post.optimizer]([p for _, p in named]), topology=post.schedule
    )
    return made


CONTENDERS: Mapping[str, Callable[[Post], Contender]] = {
    "local": Local,
    "exchange, whole": lambda post: Exchange(post, None),
    "exchange, 4 MB": lambda post: Exchange(post, 4 << 20),
    "all-reduce": AllReduce,
    "ours": ours,
    "ours, bfloat16": lambda post: ours(post, message_dtype=torch.bfloat16),
    "ours, fused": lambda post: ours(post, fused=True),
    "ours, fused, bfloat16": lambda post: ours(post, fused=True, message_dtype=torch.bfloat16),
    "ddp": ddp,
    "ddp, small buckets": lambda post: ddp(post, bucket_cap_mb=2),
    "decent-dp": decent_dp,
}
"""By name."""

_NEEDS = {"bfloat16": "message_dtype", "fused": "fused"}


def missing() -> dict[str, str]:
    """Which contenders cannot be had here, and why."""
    return dict(_missing())


def _missing() -> Iterator[tuple[str, str]]:
    known = inspect.signature(decentralize).parameters
    for name in CONTENDERS:
        for word, keyword in _NEEDS.items():
            if word in name and keyword not in known:
                yield name, f"decentralize() has no {keyword}= yet"
    for module in ("decent_dp", "loguru"):
        if importlib.util.find_spec(module) is None:
            yield "decent-dp", f"{module} is not installed: pip install 'dissensus[bench-distributed]'"
