"""The processes of one run: how a process joins them, what only the first one does, and how it leaves.

A process is started by `torchrun` or by `launcher`; both tell it by the environment who it is (RANK, WORLD_SIZE,
LOCAL_RANK) and where the others are. Without that it is alone, and does what all of them would do together.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist

from dissensus.algorithms.engines.distributed.entering import of_this_start, started_here
from dissensus.algorithms.engines.distributed.handshake import together
from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.experiments.errors import ConfigError

T = TypeVar("T")
Backend = Literal["gloo", "nccl"]
STORE, PARENT = "DISSENSUS_STORE", "DISSENSUS_PARENT"
"""Where `launcher` says which file the processes meet at, and which pipe closes when whoever started them is gone."""
LOOKING = timedelta(minutes=10)
"""How long one wait for the first process takes at most; then the next one begins."""


@dataclass
class Processes:
    """The processes of a run as one of them sees them; without a wire, the only one."""

    wire: Wire | None = None
    device: torch.device = torch.device("cpu")  # noqa: RUF009  a value that nobody can change
    _looks: int = field(default=0, init=False)
    _timeline: Timeline = field(default_factory=Timeline, init=False)

    @property
    def first(self) -> bool:
        """Whether this is the process of worker 0, which keeps the records and shows progress."""
        return self.wire is None or self.wire.rank == 0

    @property
    def alone(self) -> bool:
        """Whether it has all workers."""
        return self.wire is None or self.wire.alone

    @property
    def timeline(self) -> Timeline:
        """Where its time goes."""
        return self._timeline if self.wire is None else self.wire.timeline

    def facts(self) -> dict[str, Any]:
        """What the records of a run say of its processes."""
        if self.wire is None or self.wire.alone:
            return {}
        return {"processes": self.wire.size, "backend": self.wire.backend}

    def gather(self, value: T, *, what: str, step: int = 0) -> Sequence[T]:
        """One value of every process, in their order."""
        return [value] if self.wire is None else self.wire.gather(value, what=what, step=step)

    def told_by_first(self, decide: Callable[[], T]) -> T:
        """What the first process decides, in all of them; where that fails all end with its sentence."""
        if self.wire is None:
            return decide()
        decided = together(self.wire, lambda: [decide()] if self.first else [])
        return self.gather(decided, what="decision of the first process")[0][0]

    def leave(self, code: int) -> None:
        """The work is done. With an exit code other than 0 this process ends here, so that the others notice."""
        if code and not self.alone:
            end(code)

    @contextmanager
    def only_first(self) -> Iterator[None]:
        """What the first process does alone, however long it takes; the others wait here without a time limit.

        A time limit is for messages. Whoever dies in here is noticed by whoever started the processes.
        """
        key, self._looks = f"dissensus/looked/{self._looks}", self._looks + 1
        began = time.perf_counter()
        yield
        if not self.alone:
            store = dist.distributed_c10d._get_default_store()
            if self.first:
                store.set(key, "done")
            else:
                _wait(store, key)
        self.timeline.add("look", began, time.perf_counter())


def count(environment: Mapping[str, str] = os.environ) -> int | None:
    """How many processes there are by the environment; `None` if nobody has started any."""
    return int(environment["WORLD_SIZE"]) if "RANK" in environment and "WORLD_SIZE" in environment else None


def launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether it was `launcher` that has started them."""
    return PARENT in environment


def usual_backend() -> Backend:
    """NCCL where there are devices for it."""
    return "nccl" if torch.cuda.is_available() and dist.is_available() and dist.is_nccl_available() else "gloo"


def check_backend(backend: str) -> None:
    """Refuses a backend that cannot work here."""
    if backend == "nccl" and not torch.cuda.is_available():
        raise ConfigError("backend nccl needs CUDA devices, and there are none here: use --backend gloo")


@contextmanager
def joined(backend: Backend | None = None, *, timeout: float = 300.0, traced: bool = False) -> Iterator[Processes]:
    """Joins the processes that the environment speaks of, or is alone. `timeout` is for one message, in seconds.

    Left without an error, a process waits for the others first, so that nobody is cut off in the middle of a sentence.
    """
    chosen = backend or usual_backend()
    check_backend(chosen)
    device, timeline = _device(chosen), Timeline(traced=traced)
    if launched():
        _end_with_parent(int(os.environ["RANK"]))
    if count() in (None, 1):
        yield Processes(Wire(timeline=timeline), device)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if threading.current_thread() is threading.main_thread():
        _obey(first=rank == 0)
    dist.init_process_group(chosen, rank=rank, world_size=size, timeout=timedelta(seconds=timeout), **_meeting())
    processes = Processes(Wire(timeout=timeout, timeline=timeline), device)
    yield processes
    processes.gather(None, what="leaving")
    del processes
    gc.collect()  # gloo may abort where something of it is still referred to
    dist.destroy_process_group()


def started_again(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started these processes in place of others that have ended."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _meeting() -> dict[str, Any]:
    """Where the processes meet, if not where torch looks for it."""
    said = os.environ
    if launched():
        return {"init_method": f"file://{said[STORE]}"}
    if not (started_again() and started_here()):
        return {}
    from torch._C._distributed_c10d import TCPStore

    # in torchrun's store, which outlives those that are gone, are their addresses
    return {"store": of_this_start(TCPStore(said["MASTER_ADDR"], int(said["MASTER_PORT"]), is_master=False))}


def end(code: int) -> NoReturn:
    """Ends this process at once: the others notice by its closed connections, which only its end closes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device(backend: Backend) -> torch.device:
    if backend != "nccl":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local} of this machine has no CUDA device of its own, there are {torch.cuda.device_count()}: "
            "start fewer processes on it, or use --backend gloo"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _wait(store: Any, key: str) -> None:
    while True:
        try:
            store.wait([key], LOOKING)
        except RuntimeError as error:
            if "timeout" not in str(error).lower():
                raise ConfigError(f"process 0 is gone, where the others waited for it: {error}") from error
        else:
            return


def _obey(*, first: bool) -> None:
    """How a process takes it when it is told to end: the first one in good order, for it keeps the records.

    Ctrl-C may be ignored by whoever started us all. A request to end (SIGTERM) is what torchrun sends to the rest when
    one has failed. It is taken as Ctrl-C is: the step is ended first, in which who is gone is noticed, if anybody is.
    """
    if not first:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return
    if launched():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def _end_with_parent(rank: int) -> None:
    """Ends this process when whoever started it is gone: then nobody holds the other end of the pipe."""

    def watch() -> None:
        os.read(int(os.environ[PARENT]), 1)
        if rank == 0:
            shutil.rmtree(Path(os.environ[STORE]).parent, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
