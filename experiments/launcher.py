"""Starts the processes of a run on this machine, and sees to it that none is left behind.

They meet at a file, talk over the loopback interface, and hold one end of a pipe whose other end is here: if this
process is killed, however hard, they end. Each is the leader of a session of its own, so a Ctrl-C in the terminal
reaches this process only, which hands it on to the first one, which keeps the records; then the others are ended. When
one dies, the first may still write down why. What the others print goes to files, of which the last line is shown if
one of them is the first to fail.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dissensus.experiments.processes import PARENT, STORE

NOTICING = 5.0
"""Seconds in which the others may find out by themselves that one is gone."""
ALSO = 0.2
"""Seconds in which ends may be noticed in another order than they came about in."""
ENDING = 15.0
"""Seconds in which the first process may write down how it ended, and in which any may obey."""


class Ending(NamedTuple):
    """How the processes ended."""

    code: int
    """0, or the exit code of the one that failed first; a death by a signal counts as 128 and its number."""
    said: str = ""
    """What there is to say of it, where nobody has said it."""


def launch(command: Sequence[str], count: int) -> Ending:
    """Runs a command in `count` processes to their end."""
    with tempfile.TemporaryDirectory(prefix="dissensus-") as folder, _ended_like_ctrl_c():
        crew = _Crew(Path(folder))
        try:
            return crew.run(command, count)
        finally:
            crew.close()


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """A request to end (SIGTERM) is taken as Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Crew:
    """The processes, and a thread for each that waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._theirs, self._mine = os.pipe()
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()

    def run(self, command: Sequence[str], count: int) -> Ending:
        """Starts them all and waits for the end of all; an interrupt may come at any moment from here on."""
        try:
            self._start(command, count)
            return self._follow()
        except KeyboardInterrupt:
            self._interrupt()
            return Ending(130)

    def _start(self, command: Sequence[str], count: int) -> None:
        usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        ours = {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            STORE: str(self._folder / "store"),
            PARENT: str(self._theirs),
        }
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._start_one(command, rank, {**usual, **os.environ, **ours, **own})

    def _follow(self) -> Ending:
        failed = self._first_failure(until=None)
        if failed is None:
            return Ending(0)
        self._wait(ALSO)
        failed = next((rank for rank in range(len(self._processes)) if self._was_killed(rank)), failed)
        self._end()
        return self._ending(failed)

    def close(self) -> None:
        """Nothing is left behind."""
        for rank in self._running:
            with suppress(ProcessLookupError):
                self._processes[rank].kill()
        self._wait(None)
        os.close(self._theirs)
        os.close(self._mine)

    def _start_one(self, command: Sequence[str], rank: int, environment: Mapping[str, str]) -> None:
        with self._log(rank).open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else log,
                stderr=None if rank == 0 else log,
                pass_fds=[self._theirs],
                start_new_session=True,
            )
        self._processes.append(process)
        self._running.add(rank)

        def wait() -> None:
            process.wait()
            self._ended.put(rank)

        threading.Thread(target=wait, daemon=True).start()

    def _first_failure(self, until: float | None) -> int | None:
        """The first process that fails from now on; `None` if all ended well, or nobody failed until then."""
        while self._running:
            try:
                rank = self._ended.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            self._running.discard(rank)
            if self._processes[rank].returncode != 0:
                return rank
        return None

    def _was_killed(self, rank: int) -> bool:
        """Whether somebody killed it: no process ends so because another one is gone."""
        return rank not in self._running and self._processes[rank].returncode == -signal.SIGKILL

    def _end(self) -> None:
        """One has failed: the others find out, or are ended, the first of them last."""
        self._wait(NOTICING)
        self._signal(signal.SIGTERM, [rank for rank in self._running if rank > 0])
        self._wait(ENDING)

    def _interrupt(self) -> None:
        """Ctrl-C: the first process ends its step and its records; a second Ctrl-C does not wait for that."""
        with suppress(KeyboardInterrupt):
            self._signal(signal.SIGINT, self._running & {0})
            until = time.monotonic() + ENDING
            while 0 in self._running and time.monotonic() < until:
                self._first_failure(until)

    def _wait(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while self._running and (until is None or time.monotonic() < until):
            self._first_failure(until)

    def _signal(self, number: int, ranks: Sequence[int] | set[int]) -> None:
        for rank in ranks:
            with suppress(ProcessLookupError):
                self._processes[rank].send_signal(number)

    def _ending(self, rank: int) -> Ending:
        """How the first to fail ended, and what it said last. What the first process says is seen anyway."""
        code = self._processes[rank].returncode
        if rank == 0 and code > 0:
            return Ending(code)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = self._log(rank).read_text(errors="replace").strip().splitlines()
        said = f"; it said: {lines[-1].removeprefix('dissensus: ')}" if lines else ""
        who = f"process {rank} of {len(self._processes)}"
        return Ending(128 - code if code < 0 else code, f"{who} {how}, and the others were ended{said}")

    def _log(self, rank: int) -> Path:
        return self._folder / f"{rank}.log"
