"""Hosts on this machine, joined by a network with a rate and a delay: for speed where the wire is what costs.

    with hosts(4, rate="200mbit", delay_ms=0) as net:
        running = [net.popen(i, [sys.executable, "train.py"], env={"RANK": str(i)}) for i in range(4)]

Every host is a network namespace. Without a delay they hang on one bridge, in a namespace of its own, by a pair of
virtual Ethernets each; with one, their packets go through a relay process (see `network_relay`). What leaves a host is
held to the rate by `tc tbf`. Nothing touches the network of this machine, and all of it, processes included, is gone
when the block ends, however it ends (see `network_keeper`).

Needs Linux, root, and `ip` and `tc` of iproute2; where that is not given, an error says what is missing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus.algorithms.engines.distributed.same_host import VARIABLE
from dissensus.experiments.bench.network_keeper import GRACE, prefix_of, remove, remove_stale
from dissensus.experiments.bench.network_relay import DEVICE
from dissensus.experiments.errors import ConfigError

CONGESTION = ("cubic", "reno")
"""How TCP shares a link inside, whatever this machine prefers: the first of these that a namespace may choose here.

Both send more until something is lost. Under `bbr`, which goes by rates and delays, exchanges stall whoever makes them:
at 200 Mbit/s steps of 403 ms become ones of 400 to 540.
"""

OUTPUT_BYTES = 262144
"""What a connection may have in the queue of its host. TCP's own bound is sized for fast cards: on a slow link it lets
megabytes wait there, and every word to anybody else behind them."""

MOST = 250
"""Hosts of one network: they share the last byte of an address."""

PATIENCE = 20.0
"""Seconds after which a command that sets something up is given up."""

_CHOSEN, _CHOICE = (Path(f"/proc/sys/net/ipv4/tcp_{what}congestion_control") for what in ("", "allowed_"))
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_numbers = itertools.count()


class NetworkError(ConfigError):
    """A network that cannot be built here: the message says why it is not permitted."""


class Network:
    """Hosts that are up. Made by `hosts`."""

    def __init__(self, prefix: str, size: int) -> None:
        self.size = size
        self._prefix = prefix
        self.congestion = ""
        """How TCP shares a link."""
        self.running: list[subprocess.Popen[Any]] = []
        """What was started inside, and the relay."""
        self.env = {"GLOO_SOCKET_IFNAME": DEVICE, "MASTER_ADDR": self.address(0), VARIABLE: "gloo"}
        """What gloo and `init_process_group` need to know inside; messages must not find a way around the links."""

    def address(self, i: int) -> str:
        """The address of host i."""
        return f"10.77.0.{i + 1}"

    def popen(
        self, i: int, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a program on host i, in this environment with `self.env` and then `env` added.

        It ends with the network at the latest. Further options are those of `subprocess.Popen`.
        """
        if not 0 <= i < self.size:
            raise NetworkError(f"there is no host {i}: the network has hosts 0 to {self.size - 1}")
        command = ["ip", "netns", "exec", self.name(i), *argv]
        started = subprocess.Popen(command, env={**os.environ, **self.env, **(env or {})}, **options)
        self.running.append(started)
        return started

    def name(self, i: int) -> str:
        """The namespace of host i."""
        return f"{self._prefix}host{i}"

    def reap(self) -> None:
        """Kills what was started and is still there, and waits for it."""
        for started in self.running:
            started.kill()
        for started in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(GRACE)


@contextlib.contextmanager
def hosts(
    n: int, *, rate: str | None = None, delay_ms: float = 0.0, congestion: str | None = None
) -> Iterator[Network]:
    """Hosts on one network, n of them; `rate` holds what each of them sends ("200mbit"), `delay_ms` is one way.

    A delay adds up over a chain of messages as on a real wire: an answer comes back after twice the delay.

    Args:
        n: how many.
        rate: a number with kbit, mbit or gbit.
        delay_ms: from one to another.
        congestion: TCP's congestion control ("bbr"); the first of `CONGESTION` if it is not given.
    """
    if not 1 <= n <= MOST:
        raise NetworkError(f"a network has 1 to {MOST} hosts, got {n}")
    if delay_ms < 0:
        raise NetworkError(f"the delay must not be negative, got {delay_ms:g} ms")
    shape = [] if rate is None else _shape(rate)
    if reason := why_not(delay=delay_ms > 0):
        raise NetworkError(reason)
    remove_stale()
    prefix = prefix_of(os.getpid(), next(_numbers))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "dissensus.experiments.bench.network_keeper", prefix],
        stdin=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is not for it
    )
    net = Network(prefix, n)
    try:
        _build(net, f"{prefix}hub", shape, delay_ms)
        net.congestion = _regulate(net, CONGESTION if congestion is None else (congestion,))
        yield net
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            left = keeper.wait(2 * PATIENCE) != 0
        except subprocess.TimeoutExpired:
            keeper.kill()
            left = True
        net.reap()
        if left:
            remove(prefix)


def why_not(*, delay: bool = False) -> str:
    """Why a network cannot be built here, as far as that can be seen without trying; empty if it seems it can."""
    if sys.platform != "linux":
        return f"networks are made of Linux namespaces, and this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"networks are built by `{tool}`, which is not here: install iproute2"
    if os.geteuid() != 0:
        return "networks are built by root only (namespaces, tc); this process is not: run it as root"
    if delay and not Path("/dev/net/tun").exists():
        return "a delay needs TUN devices, and there is no /dev/net/tun: ask for delay_ms=0, or load the module tun"
    return ""


def _build(net: Network, hub: str, shape: Sequence[str], delay_ms: float) -> None:
    names = [net.name(i) for i in range(net.size)]
    for name in (hub, *names):
        _do("ip", "netns", "add", name)
        _do("ip", "netns", "exec", name, "sh", "-c", _SETTINGS)
        _do("ip", "-n", name, "link", "set", "lo", "up")
    if delay_ms > 0:
        net.running.append(_relay(delay_ms, hub, names))
    else:
        _do("ip", "-n", hub, "link", "add", "name", "bridge0", "type", "bridge")
        _do("ip", "-n", hub, "link", "set", "bridge0", "up")
    for i, name in enumerate(names):
        if delay_ms > 0:
            _do("ip", "-n", name, "link", "set", DEVICE, "mtu", "9000", "txqueuelen", "2000")
        else:
            port = f"port{i}"
            ends = ("name", port, "type", "veth", "peer", "name", DEVICE, "netns", name)
            _do("ip", "-n", hub, "link", "add", *ends)
            _do("ip", "-n", hub, "link", "set", port, "master", "bridge0", "up")
            for where, device in ((hub, port), (name, DEVICE)):
                _keep_order(where, device, i % (os.cpu_count() or 1))
        _do("ip", "-n", name, "address", "add", f"{net.address(i)}/24", "dev", DEVICE)
        _do("ip", "-n", name, "link", "set", DEVICE, "up")
        if shape:
            _do("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", *shape)


_SETTINGS = f"""
put() {{ test ! -e "$2" || echo "$1" > "$2" || exit 1; }}
put {OUTPUT_BYTES} /proc/sys/net/ipv4/tcp_limit_output_bytes
put 1 /proc/sys/net/ipv6/conf/all/disable_ipv6
"""
"""What a host's kernel is told, where it knows of it. A kernel that refuses makes no network: it would be another."""


def _regulate(net: Network, wanted: Sequence[str]) -> str:
    """Has all hosts share their links alike; how. A kernel lets a namespace choose among some of what it has only."""
    for control in wanted:
        if all(_chooses(net.name(i), control) for i in range(net.size)):
            return control
    raise NetworkError(
        f"TCP's congestion control cannot be {' or '.join(map(repr, wanted))} here: hosts may choose among "
        f"{' '.join(_CHOICE.read_text().split())} (see {_CHOICE})"
    )


def _chooses(host: str, control: str) -> bool:
    line = f'test "$(cat {_CHOSEN})" = "$1" || echo "$1" > {_CHOSEN}'
    try:
        _do("ip", "netns", "exec", host, "sh", "-c", line, "sh", control)
    except NetworkError:
        return False
    return True


def _keep_order(where: str, device: str, core: int) -> None:
    """Has one core take in all packets of a device, if the kernel lets it: where any may, packets overtake each other.

    TCP takes that for a loss and sends slower for a while, which no wire does to it.
    """
    mask = f"{1 << core % 32:x}" + ",00000000" * (core // 32)
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    _do("ip", "netns", "exec", where, "sh", "-c", f"test ! -w {queue} || echo {mask} > {queue} || true")


def _relay(delay_ms: float, hub: str, names: Sequence[str]) -> subprocess.Popen[Any]:
    command = [sys.executable, "-m", "dissensus.experiments.bench.network_relay", f"{delay_ms / 1000:.6f}", hub, *names]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert started.stdout is not None
    with started.stdout as line:
        ready = select.select([line], [], [], PATIENCE)[0]
        first = line.readline() if ready else b"it did not answer"
        if first != b"ready\n":
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(GRACE)
            started.kill()
            started.wait(GRACE)
            last = (first + line.read()).decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise NetworkError(f"a network with a delay is not permitted here: its relay did not start: {last[0]}")
    return started


def _shape(rate: str) -> list[str]:
    """What `tbf` is told: one large packet may go at once, and a twentieth of a second may wait."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not found or float(found[1]) == 0:
        raise NetworkError(f"a rate is a number with kbit, mbit or gbit, as in '200mbit', got {rate!r}")
    per_second = float(found[1]) * _UNITS[found[2]] / 8
    burst = int(min(70e3, max(16e3, 0.003 * per_second)))
    return ["rate", rate, "burst", str(burst), "limit", str(int(burst + max(100e3, 0.05 * per_second)))]


def _do(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NetworkError(f"`{' '.join(command)}` did not end within {PATIENCE:g} seconds") from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"it ended with status {done.returncode}"
        raise NetworkError(f"a network is not permitted here: `{' '.join(command)}` failed: {said}")
