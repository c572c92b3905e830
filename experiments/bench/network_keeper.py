"""Takes a network of namespaces away: kills who is in it, then removes it.

A keeper is a process of its own, started before the first namespace is made. It waits for the end of its standard
input, and that comes when whoever builds the network closes it, fails, is interrupted or is killed: one way out for all
of these. The names carry the process id of the builder, so that what a keeper could not remove (it was killed too) is
found and removed when the next network is built.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/run/netns")
"""Where `ip netns` keeps the names of namespaces."""

GRACE = 5.0
"""Seconds that killed processes have to be gone."""

_NAME = re.compile(r"dissensus-(\d+)-\d+-\w+")


def prefix_of(builder: int, number: int) -> str:
    """How the names of all namespaces of one network begin."""
    return f"dissensus-{builder}-{number}-"


def remove(prefix: str) -> list[str]:
    """Kills everything inside the namespaces of this prefix and removes them; the names of those that are left."""
    names = _names(prefix)
    until = time.monotonic() + GRACE
    while (inside := list(processes(names))) and time.monotonic() < until:
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for name in names:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)
    return _names(prefix)


def remove_stale() -> list[str]:
    """Removes the networks whose builders are gone; the prefixes of those."""
    builders = {name: int(found[1]) for name in _names("dissensus-") if (found := _NAME.fullmatch(name))}
    stale = {name.rsplit("-", 1)[0] + "-" for name, pid in builders.items() if not Path(f"/proc/{pid}").exists()}
    for prefix in sorted(stale):
        remove(prefix)
    return sorted(stale)


def processes(names: Iterable[str]) -> Iterator[int]:
    """Who lives in these namespaces, but for this process."""
    inodes = set()
    for name in names:
        with contextlib.suppress(OSError):
            inodes.add((FOLDER / name).stat().st_ino)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino in inodes:
                    yield int(entry.name)


def _names(prefix: str) -> list[str]:
    return sorted(p.name for p in FOLDER.glob(f"{prefix}*")) if FOLDER.is_dir() else []


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sys.exit(1 if remove(sys.argv[1]) else 0)
