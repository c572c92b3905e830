"""Entering the processes of a run, for the first time or again.

    dissensus.init_process_group()      # as torch's own, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    opt = dissensus.decentralize(opt, model, ..., on_failure="continue")
    for t in range(opt.t, steps):       # a process that was started again begins where the others are

A process that is started a second time with the same number cannot connect to the group of the first time: torch's own
function would wait for processes that have long met. This one finds out from the store that it comes again, and leaves
it to `decentralize` to ask the others in. It then has a default group of its own, which knows its number and the number
of all processes and in which nobody else is: talk to the others through the optimizer only.

The store must outlive the process, so whoever starts the processes should hold it, as torchrun and `dissensus train`
do. (torchrun ends all processes when one fails, and may start all of them again: then they enter for the first time.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place
from dissensus.algorithms.errors import AlgorithmError

LAZY = "TORCH_GLOO_LAZY_INIT"
"""With it a group of gloo connects to nobody before it must."""
MEETS_WITHIN = 300.0


@dataclass(frozen=True)
class Again:
    """A process that comes again, and where the others were."""

    number: int
    size: int
    secret: str
    places: Mapping[int, Place]
    in_pieces: bool
    """Whether their long messages go in pieces (see `pace`)."""


@dataclass
class _Entered:
    store: Any
    number: int
    size: int
    again: bool


_entered: _Entered | None = None


def init_process_group(backend: str = "gloo", *, timeout: float | None = None) -> None:
    """Enters the processes of the environment, as `torch.distributed.init_process_group` does, or comes again."""
    global _entered
    limit = timedelta(seconds=MEETS_WITHIN if timeout is None else timeout)
    store, number, size = next(iter(rendezvous("env://", timeout=limit)))
    store.set_timeout(limit)
    store = of_this_start(store)
    elsewhere = _by_torchrun() and not started_here()
    times = 1 if elsewhere else store.add(f"dissensus/entered/{number}", 1)
    _entered = _Entered(store, number, size, again=times > 1)
    options: dict[str, Any] = {"backend": backend, "rank": number, "world_size": size}
    if timeout is not None:
        options["timeout"] = limit
    if times == 1:
        dist.init_process_group(store=store, **options)
        return
    before = os.environ.get(LAZY)
    os.environ[LAZY] = "1"
    try:
        dist.init_process_group(store=_prefixed(f"dissensus/again/{number}/{times}", store), **options)
    finally:
        os.environ.pop(LAZY) if before is None else os.environ.update({LAZY: before})


def announce(box: Letterbox, *, in_pieces: bool) -> None:
    """Says in the store where this process can be reached, and how, for those that come again."""
    if _entered is not None and box.number == _entered.number:
        _entered.store.set(_key(box.number), json.dumps([*box.place, box.secret, in_pieces]))


def comes_again() -> Again | None:
    """Whether this process comes again, and where the others were when they entered or came again themselves."""
    if _entered is None or not _entered.again:
        return None
    store, others = _entered.store, [q for q in range(_entered.size) if q != _entered.number]
    places, secret, in_pieces = {}, "", False
    for q in others:
        if store.check([_key(q)]):
            host, port, secret, in_pieces = json.loads(store.get(_key(q)))
            places[q] = Place(host, port)
    if not places:
        raise AlgorithmError(
            f"process {_entered.number} was started again, but no other process has said where it is: runs that "
            "processes can come back to need on_failure='continue'"
        )
    return Again(_entered.number, _entered.size, secret, places, in_pieces)


def started_here() -> bool:
    """Whether torchrun has started all processes, and on this machine: several may count restarts differently."""
    return _by_torchrun() and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def of_this_start(store: Any) -> Any:
    """The part of a store that is of this start of all processes: torchrun keeps it when it starts them again."""
    return _prefixed(f"dissensus/{os.environ['TORCHELASTIC_RESTART_COUNT']}", store) if started_here() else store


def _by_torchrun() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "TORCHELASTIC_RESTART_COUNT" in os.environ


def _prefixed(prefix: str, store: Any) -> Any:
    with_prefix: Any = dist
    return with_prefix.PrefixStore(prefix, store)


def _key(number: int) -> str:
    return f"dissensus/place/{number}"
