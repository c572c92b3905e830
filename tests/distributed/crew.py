"""Processes as a user starts them: each enters the group by the environment, ends by itself or by a signal, and has an
exit code. Unlike those of `pool.py` they are new for every test and may be killed, stopped and started again.

They are forked from a process that has imported everything once. When the tests are over, or are killed themselves, it
kills whatever is left.
"""

import faulthandler
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class Crew:
    """Starts processes, waits for them, and reads what they have left."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="crew-"))
        self._template = subprocess.Popen(
            [sys.executable, str(HERE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
        self._runs = 0
        assert self._ask({}) == "ready"

    def start(self, target: str, n: int, **arguments: Any) -> "Run":
        """Starts `file:function` n times, as processes 0 to n - 1 of one run."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._runs += 1
        run = Run(self, self.folder / str(self._runs), target, n, port, arguments)
        for number in range(n):
            run.start(number)
        return run

    def close(self) -> None:
        """Ends everything."""
        with suppress(ProcessLookupError):
            os.killpg(self._template.pid, signal.SIGKILL)
        self._template.wait(timeout=30)
        for pipe in (self._template.stdin, self._template.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._template.stdin is not None
        assert self._template.stdout is not None
        self._template.stdin.write(json.dumps(command) + "\n")
        self._template.stdin.flush()
        answer = self._template.stdout.readline()
        assert answer, "the process that forks the others has died"
        return json.loads(answer)


class Run:
    """The processes of one run."""

    def __init__(self, crew: Crew, folder: Path, target: str, n: int, port: int, arguments: dict[str, Any]) -> None:
        self._crew, self._folder, self._target, self._n, self._port = crew, folder, target, n, port
        self._arguments = arguments
        self.pids: dict[int, int] = {}
        folder.mkdir()

    def start(self, number: int, **arguments: Any) -> None:
        """Starts a process; one that had this number before must have ended."""
        self.pids[number] = self._crew._ask(
            {
                "target": self._target,
                "arguments": {**self._arguments, **arguments},
                "folder": str(self._folder),
                "log": str(self._folder / f"{number}.log"),
                "environment": {
                    "RANK": str(number),
                    "WORLD_SIZE": str(self._n),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(self._port),
                },
            }
        )

    def kill(self, number: int, how: int = signal.SIGKILL) -> None:
        """Sends a signal."""
        os.kill(self.pids[number], how)

    def codes(self, numbers: Sequence[int], within: float) -> list[int | None]:
        """The exit codes of processes; None for one that has not ended in that many seconds."""
        until = time.monotonic() + within
        return [self._crew._ask({"wait": self.pids[q], "for": max(until - time.monotonic(), 0.0)}) for q in numbers]

    def log(self, number: int) -> str:
        """What a process has written to its standard streams."""
        return (self._folder / f"{number}.log").read_text(errors="replace")

    def left(self, number: int) -> Any:
        """What a process has left as `left(value)`, or None."""
        import torch

        path = self._folder / f"{number}.pt"
        return torch.load(path, weights_only=True) if path.exists() else None

    def end(self) -> list[int]:
        """Kills what is still there; returns the numbers of those that were."""
        running = [q for q, code in zip(self.pids, self.codes(list(self.pids), 0.0), strict=True) if code is None]
        for q in running:
            self.kill(q, signal.SIGKILL)
        self.codes(running, 30.0)
        return running


def left(value: Any) -> None:
    """In a process of a run: leaves a value for the test."""
    import torch

    path = Path(os.environ["CREW_FOLDER"]) / f"{os.environ['RANK']}.pt"
    torch.save(value, path.with_suffix(".draft"))
    path.with_suffix(".draft").rename(path)


def template() -> None:
    """Forks on demand; ends with all it has forked when nobody asks any more."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent))
    # what tests import, and what torch imports when the first optimizer is made, in more than a second
    for name in ("plain", "pytest", "dissensus.algorithms", "dissensus.testing", "torch._dynamo"):
        importlib.import_module(name)
    for registry in ("dissensus.algorithms.registry:algorithms", "dissensus.theory.registry:catalogue"):
        module, _, known = registry.partition(":")
        getattr(importlib.import_module(module), known)()  # which imports what is registered
    ended: dict[int, int] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if "target" in command:
            pid = os.fork()
            if pid == 0:
                _be(command)
            answer: Any = pid
        elif "wait" in command:
            answer = _waited(command["wait"], command["for"], ended)
        else:
            answer = "ready"
        print(json.dumps(answer), flush=True)  # noqa: T201
    os.killpg(0, signal.SIGKILL)


def _waited(pid: int, seconds: float, ended: dict[int, int]) -> int | None:
    until = time.monotonic() + seconds
    while pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > until:
            return None
        else:
            time.sleep(0.01)
    return ended[pid]


def _be(command: dict[str, Any]) -> None:
    """What a process of a run does, from its beginning to its end."""
    with open(command["log"], "a") as log, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(command["environment"], CREW_FOLDER=command["folder"])
    faulthandler.enable()
    warnings.simplefilter("error")  # as the tests themselves run
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    file, name = command["target"].rsplit(":", 1)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    getattr(module, name)(**command["arguments"])
    sys.exit(0)  # as a script ends: with all that the interpreter does then


if __name__ == "__main__":
    template()
