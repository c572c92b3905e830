"""One worker of the benchmark as a process of its own: builds contenders, runs a few steps of one, tells how long.

A block of steps begins where a step ends: some steps are taken first and not measured, so that what a contender leaves
on the wire at the end of a step is there at the beginning as well, and nobody gets an exchange for nothing. (After one,
whoever sends during its backward pass would have sent earlier than it can where messages wait for each other.) They
are so many that both neighbours of a one-peer ring have been met: a connection that rested while others had their turn
starts slowly, and 20 ms away its first message takes 120 ms instead of 40.
"""

from __future__ import annotations

import datetime
import gc
import os
import signal
import socket
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # torch.optim wants it at its first use: loaded here, the server of processes does it once for all
import torch.distributed as dist

from dissensus.experiments.bench.distributed_contenders import CONTENDERS, Contender, Post
from dissensus.experiments.bench.network_relay import enter

PATIENCE = 90.0
"""Seconds after which a message is given up."""

AHEAD = 4
"""Steps that are taken before a block and not measured; in the first two, torch's DDP and decent-dp arrange buckets."""

Plan = Mapping[str, Any]
"""What `Post` wants to know beside worker, size and group."""


def serve(worker: int, size: int, namespace: str, env: Mapping[str, str], line: Connection) -> None:
    """The life of one process. It leaves without the destructors of gloo, which are known to abort now and then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides, and tells
    gc.freeze()  # what was imported stays anyway; going through it takes a third of a second
    status = 1
    try:
        _obey(worker, size, namespace, env, line)
        status = 0
    except (EOFError, ConnectionError):
        pass  # whoever started us is gone
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        line.close()
        os._exit(status)


def _obey(worker: int, size: int, namespace: str, env: Mapping[str, str], line: Connection) -> None:
    torch.set_num_threads(1)
    if namespace:
        enter(namespace)
    elif "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(env)
    limit = datetime.timedelta(seconds=PATIENCE)
    host, port = env.get("MASTER_ADDR", "127.0.0.1"), line.recv()
    opened: Any = getattr(dist, "TCPStore")  # noqa: B009  (which type checkers hold for private)
    store = opened(host, port, is_master=worker == 0, wait_for_workers=False, timeout=limit)
    line.send(store.port)
    dist.init_process_group("gloo", store=store, rank=worker, world_size=size, timeout=limit)
    line.send(None)
    contenders: dict[str, Contender] = {}
    while True:
        match line.recv():
            case ("build", case, names, plan):
                contenders.clear()
                gc.collect()
                for name in names:
                    group = dist.new_group(list(range(size)), timeout=limit)
                    contenders[name] = CONTENDERS[name](Post(case=case, worker=worker, size=size, group=group, **plan))
                line.send(None)
            case ("run", name, steps):
                line.send(_timed(contenders[name], steps))
            case ("take", names, steps):
                line.send([_taken(contenders[name], steps).numpy() for name in names])
            case ("stop",):
                return


def _timed(contender: Contender, steps: int) -> tuple[float, float]:
    """Seconds a step of this worker by the clock and of its cores, all workers beginning together."""
    dist.barrier()
    for _ in range(AHEAD):
        contender.step()
    begin, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        contender.step()
    seconds = (time.perf_counter() - begin) / steps, (time.process_time() - worked) / steps
    contender.settle()
    return seconds


def _taken(contender: Contender, steps: int) -> torch.Tensor:
    """Where the worker stands after so many steps from the start."""
    for _ in range(steps):
        contender.step()
    contender.settle()
    return contender.x
