"""Processes that save one checkpoint after the other together, and a hand that kills one of them at a random moment.

Called as `saving_processes.py FOLDER SEED SECONDS PROCESSES`. Children are forked, so that a kill costs milliseconds;
every kill is a SIGKILL. After each, the folder is looked at as a new run would: the last complete checkpoint must load,
equal what was saved, and be no older than the last one whose `save` had returned. Prints what was seen as JSON.
"""

import json
import os
import pickle
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from saved_states import equal, state

from dissensus.algorithms.engines.distributed.checkpoint import checkpoints, latest
from dissensus.algorithms.engines.distributed.saving import save

SIZE = 4
KEEP = 2


class Line:
    """Whole values through a socket; a peer that was killed ends this process."""

    def __init__(self, end: socket.socket) -> None:
        self._file = end.makefile("rwb")

    def say(self, value: Any) -> None:
        """Sends."""
        pickle.dump(value, self._file)
        self._file.flush()

    def hear(self) -> Any:
        """Receives."""
        return pickle.load(self._file)


def work(process: int, count: int, folder: Path, lines: list[Line], returned: int) -> None:
    """Saves until it is killed, or until a peer is."""

    def together(value: Any) -> list[Any]:
        if process:
            lines[0].say(value)
            return lines[0].hear()
        heard = [value, *(line.hear() for line in lines)]
        for line in lines:
            line.say(heard)
        return heard

    last = latest(folder)
    step = 1 if last is None else last.step + 1
    while True:
        own = {w: state(step, w) for w in range(SIZE) if w % count == process}
        save(folder, step, own, size=SIZE, together=together, keep=KEEP)
        os.write(returned, step.to_bytes(4, "little"))
        step += 1


def once(folder: Path, count: int, delay: float, victim: int) -> int:
    """Starts the processes, kills one, waits for all; returns the last step whose save had returned somewhere."""
    pairs = [socket.socketpair() for _ in range(count - 1)]
    read, write = os.pipe()
    children = []
    for process in range(count):
        child = os.fork()
        if child == 0:
            try:
                mine = [a for a, _ in pairs] if process == 0 else [pairs[process - 1][1]]
                for a, b in pairs:
                    for end in (a, b):
                        if end not in mine:
                            end.close()
                work(process, count, folder, [Line(end) for end in mine], write)
            except (EOFError, OSError, pickle.UnpicklingError):
                os._exit(3)  # a peer is dead
            finally:
                os._exit(4)
        children.append(child)
    for a, b in pairs:
        a.close()
        b.close()
    os.close(write)
    time.sleep(delay)
    os.kill(children[victim], signal.SIGKILL)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 3), f"a process ended with {status}"
    said = b""
    while part := os.read(read, 1 << 16):
        said += part
    os.close(read)
    return max((int.from_bytes(said[i : i + 4], "little") for i in range(0, len(said), 4)), default=0)


def main(folder: Path, seed: int, seconds: float, count: int) -> None:
    """Kills until the time is over and enough has been seen."""
    draw = random.Random(seed)
    seen = {"kills": 0, "incomplete": 0, "steps": 0, "complete": 0}
    until = time.monotonic() + seconds
    last = 0
    while time.monotonic() < until or seen["kills"] < 10 or not seen["incomplete"] or last < 6:
        last = max(last, once(folder, count, draw.uniform(0.0, 0.08), draw.randrange(count)))
        places = list(folder.glob("step_*"))
        seen["kills"] += 1
        seen["incomplete"] += any(not (p / "state.json").exists() for p in places)
        complete = checkpoints(folder)
        seen["complete"] = max(seen["complete"], len(complete))
        found = latest(folder)
        assert (found.step if found else 0) >= last, f"step {last} had been saved, the last complete one is {found}"
        for one in complete:
            assert one.workers == tuple(range(SIZE))
            assert all(equal(one.state(w), state(one.step, w)) for w in one.workers), f"{one.path} holds something else"
        seen["steps"] = last
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    signal.alarm(120)
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
