"""Processes for tests: started once, alive between tests, and in a process group of its own in every call.

    values = pool.run(4, f"{__file__}:script", steps=20)   # one value per process, in the order of ranks

The function runs in every process with the same arguments, inside `init_process_group` (gloo, loopback). What it
returns comes back by pickle; an exception comes back as text; a process that dies is told with its exit code. When one
has failed or the call takes too long, the others are asked where they are (the stacks of all threads), all are killed,
and the next call finds new ones. Nothing outlives the tests: see `pool_process.py`.
"""

import fcntl
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

OTHER_END = Path(__file__).with_name("pool_process.py")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
}

LEAVING = 20.0
"""Seconds in which a process can leave its process group."""


class ProcessesFailedError(AssertionError):
    """What happened in every process of a call that failed."""


@dataclass(frozen=True)
class Outcome:
    """What became of one process in a call."""

    rank: int
    value: Any = None
    failure: str = ""
    """Why there is no value: a traceback, an exit code, or the stacks of a process that did not come to an end."""


@dataclass
class _Process:
    pid: int
    connection: Connection
    ended: bool = False
    """Whether its exit code has been asked for: the number may be another process's from then on."""


class Pool:
    """As many processes as the largest call needs; a smaller one uses the first of them."""

    def __init__(self, lock: Path | None = None) -> None:
        """`lock` is a file that pools in several processes share so that one call runs at a time."""
        self._lock, self._calls = lock, itertools.count()
        self._template: subprocess.Popen | None = None
        self._processes: list[_Process] = []

    def run(self, n: int, target: str, *, timeout: float = 60.0, group_timeout: float = 60.0, **arguments: Any) -> list:
        """The values of `file:function` on n processes; raises if any of them failed."""
        outcomes = self.outcomes(n, target, timeout=timeout, group_timeout=group_timeout, **arguments)
        failed = [o for o in outcomes if o.failure]
        if failed:
            told = "\n".join(f"--- process {o.rank} of {n}\n{o.failure}" for o in failed)
            raise ProcessesFailedError(f"{target}: {len(failed)} of {n} processes failed\n{told}")
        return [o.value for o in outcomes]

    def outcomes(
        self,
        n: int,
        target: str,
        *,
        timeout: float = 60.0,
        group_timeout: float = 60.0,
        grace: float = 10.0,
        **arguments: Any,
    ) -> list[Outcome]:
        """What became of each of n processes. `grace` is how long the others may go on after a first failure."""
        with self._turn():
            self._fork(n)
            processes, number = self._processes[:n], next(self._calls)
            for rank, process in enumerate(processes):
                call = {"target": target, "arguments": arguments, "rank": rank, "size": n}
                process.connection.send(call | {"store": f"{self._folder}/{number}", "group_timeout": group_timeout})
            found = self._collect(processes, timeout, grace)
            if not any(o.failure for o in found):
                found = self._left(processes, found)
            if any(o.failure for o in found):
                self._kill()
            return found

    def close(self) -> None:
        """Ends all processes."""
        self._kill()
        if self._template is not None:
            self._control.close()
            self._template.wait(timeout=30)
            self._template = None

    def _collect(self, processes: list[_Process], timeout: float, grace: float) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        waiting = {p.connection: rank for rank, p in enumerate(processes)}
        until = time.monotonic() + timeout
        while waiting and (left := until - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                rank = waiting.pop(connection)  # type: ignore[arg-type]
                found[rank] = self._received(rank)
                if found[rank].failure:
                    until = min(until, time.monotonic() + grace)
        after = "after another process had failed" if any(o.failure for o in found.values()) else f"in {timeout:g} s"
        stacks = self._stacks(list(waiting.values()))
        found |= {k: Outcome(k, failure=f"did not come to an end {after}; it was in\n{s}") for k, s in stacks.items()}
        return [found[rank] for rank in range(len(processes))]

    def _received(self, rank: int) -> Outcome:
        process = self._processes[rank]
        try:
            kind, value = process.connection.recv()
        except (EOFError, ConnectionError):
            return Outcome(rank, failure=f"died with exit code {self._exit_code(process)}\n{self._told(rank)}")
        return Outcome(rank, failure=value) if kind == "error" else Outcome(rank, pickle.loads(value))

    def _left(self, processes: list[_Process], found: list[Outcome]) -> list[Outcome]:
        """The same outcomes, or what went wrong when everybody left the process group."""
        for process in processes:
            with suppress(ConnectionError):
                process.connection.send("leave")
        outcomes = self._collect(processes, LEAVING, LEAVING)
        wrong = [Outcome(o.rank, failure=f"when leaving the process group: {o.failure}") for o in outcomes if o.failure]
        return [next((w for w in wrong if w.rank == o.rank), o) for o in found]

    def _stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where these processes are."""
        for rank in ranks:
            os.kill(self._processes[rank].pid, signal.SIGUSR1)
        time.sleep(0.5 if ranks else 0.0)  # they are being written
        return {rank: self._told(rank) for rank in ranks}

    def _told(self, rank: int) -> str:
        texts = [Path(f"{self._folder}/{self._processes[rank].pid}.{kind}") for kind in ("stacks", "log")]
        return "\n".join(path.read_text(errors="replace")[-6000:] for path in texts if path.exists())

    def _fork(self, n: int) -> None:
        if self._template is None or self._template.poll() is not None:
            self._processes = []
            self._start()
        while len(self._processes) < n:
            mine, its = socket.socketpair()
            socket.send_fds(self._control, [b"fork"], [its.fileno()])
            its.close()
            self._processes.append(_Process(int(self._answer()), Connection(mine.detach())))

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="processes-")
        self._control, its = socket.socketpair()
        command = [sys.executable, str(OTHER_END), str(its.fileno()), self._folder]
        self._template = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, pass_fds=[its.fileno()], start_new_session=True
        )
        its.close()
        self._control.settimeout(120.0)
        assert self._answer() == b"ready"

    def _answer(self) -> bytes:
        answer = self._control.recv(64)
        assert answer, f"the template of the processes has died; see {OTHER_END.name}"
        return answer

    def _kill(self) -> None:
        for process in self._processes:
            process.connection.close()
            if not process.ended:
                os.kill(process.pid, signal.SIGKILL)
                self._exit_code(process)
        self._processes = []

    def _exit_code(self, process: _Process) -> int:
        """Of a process that has ended or is about to."""
        self._control.sendall(b"wait%d" % process.pid)
        process.ended = True
        return int(self._answer())

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
