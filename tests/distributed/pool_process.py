"""The other end of `pool.py`: a template process that has imported everything once, and the processes it forks.

Started as `pool_process.py CONTROL FOLDER`, where CONTROL is a socket to whoever runs the tests. The template never
computes; it forks, tells exit codes, and when the socket closes (the tests have ended or were killed) it kills
its whole process group, itself included. So nothing outlives the tests, whatever it is stuck in.
"""

import faulthandler
import gc
import importlib.util
import os
import pickle
import shutil
import signal
import socket
import sys
import traceback
import warnings
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest  # noqa: F401  what test files import is imported once, here
import torch
import torch._dynamo  # what torch imports when the first optimizer is made, in more than a second
import torch.distributed as dist

import dissensus.algorithms  # noqa: F401

FORK, WAIT = b"fork", b"wait"


def template(control: socket.socket, folder: Path) -> None:
    """Forks on demand until nobody is there any more."""
    gc.collect()
    gc.freeze()  # what has been imported is never looked at again: a collection is quick in what is forked
    control.sendall(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)
        if message == FORK:
            pid = os.fork()
            if pid == 0:
                control.close()
                process(Connection(descriptors[0]), folder)
            os.close(descriptors[0])
            control.sendall(str(pid).encode())
        elif message.startswith(WAIT):
            _, status = os.waitpid(int(message.removeprefix(WAIT)), 0)
            control.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def process(tests: Connection, folder: Path) -> None:
    """Answers calls until the tests hang up. Leaves by `_exit`: gloo's threads may abort an orderly one."""
    with (folder / f"{os.getpid()}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, (folder / f"{os.getpid()}.stacks").open("w"), all_threads=True)
    warnings.resetwarnings()
    warnings.simplefilter("error")  # as the tests themselves run
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    torch.set_num_threads(1)
    try:
        while True:
            call = tests.recv()
            tests.send(outcome(**call))
            tests.recv()  # everybody is done: from here on nobody waits for a message of anybody
            leave_group()
            tests.send(("value", pickle.dumps("left")))
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def outcome(
    target: str, arguments: dict[str, Any], rank: int, size: int, store: str, group_timeout: float
) -> tuple[str, Any]:
    """Runs a function of a file in a new process group: ("value", pickled) or ("error", text)."""
    try:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  a call must not depend on the calls before it
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=group_timeout),
        )
        file, name = target.rsplit(":", 1)
        return "value", pickle.dumps(getattr(loaded(file), name)(**arguments))
    except BaseException:
        return "error", traceback.format_exc()


def leave_group() -> None:
    """Ends the process group: what refers to it goes first, else gloo may abort."""
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


@cache
def loaded(file: str) -> ModuleType:
    """The module of a file; what lies beside it can be imported, as in the tests."""
    folder = str(Path(file).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    template(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
