"""A wire with a delay: takes what every host sends and hands it to whom it is for, so many seconds later.

The kernel here may have no `tc netem`. So every host gets a TUN device instead of an Ethernet, all of them end in this
one process, and a packet waits in a queue (of one length for all, so first in is first out) until its time has come. A
packet is never early; it is late by what the process needs, some hundredths of a millisecond when it gets a core.

Called as `network_relay.py SECONDS HUB HOST...`, the last being namespaces; host i has the address that ends in i + 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

from dissensus.experiments.bench.network_keeper import FOLDER

DEVICE = "eth0"
"""What the network of a host is called inside, whatever it is."""

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_DEVICE, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000  # TUNSETIFF, IFF_TUN, IFF_NO_PI
_AT_ONCE = 64
"""Packets that are read from one host before the others have their turn."""


def enter(name: str) -> None:
    """Moves this process into the network of that namespace; what it has open stays where it was opened."""
    fd = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    finally:
        os.close(fd)


def tun(name: str) -> int:
    """A new TUN device in that namespace."""
    enter(name)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, _SET_DEVICE, struct.pack("16sH22x", DEVICE.encode(), _TUN | _NO_HEADER))
    return fd


def relay(ends: Sequence[int], seconds: float) -> None:
    """Carries IPv4 packets between the ends, for ever; whatever is for none of them is dropped."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, end, packet = waiting.popleft()
            with contextlib.suppress(OSError):  # a device that is down loses packets, as a wire does
                os.write(end, packet)
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], pause)[0]:
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(end, 65536)
                except OSError:
                    break
                host = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                if 0 <= host < len(ends):
                    waiting.append((time.monotonic() + seconds, ends[host], packet))


if __name__ == "__main__":
    _seconds, _hub, *_hosts = sys.argv[1:]
    _ends = [tun(name) for name in _hosts]
    enter(_hub)
    with contextlib.suppress(OSError, AttributeError):  # a wire does not wait for a core
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    relay(_ends, float(_seconds))
