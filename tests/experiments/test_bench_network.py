"""Hosts on one machine: they reach each other and nobody else, at the rate and with the delay asked for, and go."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dissensus.experiments.bench import network, network_keeper
from dissensus.experiments.bench.network import NetworkError, hosts, why_not

SERVER = """
import socket, sys
with socket.create_server(("0.0.0.0", 5000)) as server:
    print("listening", flush=True)
    with server.accept()[0] as line:
        while data := line.recv(1 << 20):
            line.sendall(data)
"""
CLIENT = """
import socket, sys, time
sent = bytes(i % 251 for i in range(int(sys.argv[2])))
with socket.create_connection((sys.argv[1], 5000), timeout=30) as line:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin = time.perf_counter()
    line.sendall(sent)
    line.shutdown(socket.SHUT_WR)
    back = b"".join(iter(lambda: line.recv(1 << 20), b""))
    print(back == sent, time.perf_counter() - begin)
"""


@pytest.fixture(scope="module")
def permitted():
    """Skips, with the reason, where no network can be built."""
    try:
        with hosts(1):
            pass
    except NetworkError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def relayed(permitted):
    """The same for a network with a delay."""
    try:
        with hosts(1, delay_ms=1):
            pass
    except NetworkError as error:
        pytest.skip(str(error))


def python(net, i, code, *arguments):
    return net.popen(i, [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def echoed(net, count):
    """Sends so many bytes from host 1 to host 0 and back; whether they came back, and in how many seconds."""
    with python(net, 0, SERVER) as server:
        assert server.stdout.readline() == "listening\n"
        with python(net, 1, CLIENT, net.address(0), count) as client:
            said, _ = client.communicate(timeout=60)
        assert server.wait(timeout=20) == 0
    same, seconds = said.split()
    return same == "True", float(seconds)


def names(prefix="dissensus-"):
    return sorted(p.name for p in network_keeper.FOLDER.glob(f"{prefix}*"))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(check, within=20.0):
    until = time.monotonic() + within
    while check() and time.monotonic() < until:
        time.sleep(0.05)
    return not check()


def test_packets_of_a_device_are_taken_in_by_one_core(permitted):
    """Where any core may take them in they overtake each other, and TCP slows down as if some had been lost."""
    with hosts(2, rate="100mbit") as net:
        for i in range(2):
            where = f"/sys/class/net/{network.DEVICE}/queues/rx-0/rps_cpus"
            with net.popen(i, ["cat", where], stdout=subprocess.PIPE, text=True) as said:
                mask = said.communicate(timeout=20)[0]
            if said.returncode != 0:
                pytest.skip("this kernel does not spread packets over cores")
            assert int(mask.replace(",", ""), 16) == 1 << i % (os.cpu_count() or 1)


def controls(net):
    """What the hosts themselves say of how TCP shares their links."""
    said = []
    for i in range(net.size):
        with net.popen(i, ["cat", str(network._CHOSEN)], stdout=subprocess.PIPE, text=True) as told:
            said.append(told.communicate(timeout=20)[0].strip())
    return said


def test_hosts_share_links_in_the_same_way_whatever_this_machine_prefers(permitted, monkeypatch):
    with hosts(2) as net:
        assert net.congestion in network.CONGESTION
        assert controls(net) == 2 * [net.congestion]
    with hosts(2, congestion="reno") as net:  # every namespace may choose it
        assert controls(net) == 2 * [net.congestion] == ["reno", "reno"]
    monkeypatch.setattr(network, "CONGESTION", ("yodel", "reno"))
    with hosts(2) as net:
        assert controls(net) == 2 * [net.congestion] == ["reno", "reno"]


def test_what_a_host_does_not_take_is_not_passed_over(permitted, monkeypatch):
    output = Path("/proc/sys/net/ipv4/tcp_limit_output_bytes")
    with hosts(1) as net, net.popen(0, ["cat", str(output)], stdout=subprocess.PIPE, text=True) as told:
        said = told.communicate(timeout=20)[0]
        if told.returncode != 0:
            pytest.skip("this kernel does not bound what waits in a host")
        assert int(said) == network.OUTPUT_BYTES
    for old, new in ((f"{network.OUTPUT_BYTES} ", "much "), ("put 1 ", "put no ")):
        with monkeypatch.context() as patch:
            patch.setattr(network, "_SETTINGS", network._SETTINGS.replace(old, new))
            with pytest.raises(NetworkError, match="not permitted here"), hosts(1):
                pass
        assert names(f"dissensus-{os.getpid()}-") == []


def test_a_control_of_congestion_that_is_not_permitted_is_named(permitted):
    with (
        pytest.raises(NetworkError, match=r"control cannot be 'yodel' here: hosts may choose among .*reno"),
        hosts(2, congestion="yodel"),
    ):
        pass
    assert names(f"dissensus-{os.getpid()}-") == []


def test_hosts_reach_each_other_and_are_gone_afterwards(permitted):
    outside = socket.if_nameindex()
    with hosts(2) as net:
        mine = names(f"dissensus-{os.getpid()}-")
        assert len(mine) == 3
        assert socket.if_nameindex() == outside
        assert echoed(net, 100_000)[0]
        with python(net, 0, "import socket; print(sorted(name for _, name in socket.if_nameindex()))") as told:
            assert told.communicate(timeout=20)[0] == "['eth0', 'lo']\n"
        way = subprocess.run(["ip", "-n", net.name(0), "route"], capture_output=True, text=True, check=True, timeout=20)
        assert way.stdout.split()[0] == "10.77.0.0/24"
        assert "default" not in way.stdout
    assert not set(mine) & set(names())
    assert socket.if_nameindex() == outside


def test_what_runs_inside_ends_with_the_network(permitted):
    parent = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"

    def failing():
        with hosts(1) as net:
            started = python(net, 0, parent)
            assert started.stdout is not None
            with started.stdout as line:
                pids.extend((started.pid, int(line.readline())))
            assert all(alive(pid) for pid in pids)
            raise KeyboardInterrupt

    pids = []
    with pytest.raises(KeyboardInterrupt):
        failing()
    assert gone(lambda: any(alive(pid) for pid in pids), within=0.0)
    assert names(f"dissensus-{os.getpid()}-") == []


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("delay_ms", [0, 5])
def test_whoever_built_it_may_be_killed(permitted, relayed, with_signal, delay_ms, tmp_path):
    script = tmp_path / "build.py"
    script.write_text(
        "import time\n"
        "from dissensus.experiments.bench.network import hosts\n"
        f"with hosts(2, delay_ms={delay_ms}) as net:\n"
        "    print(net.popen(1, ['sleep', '600']).pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    builder = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert builder.stdout is not None
    with builder.stdout as line:
        inside = int(line.readline())
    assert len(names(f"dissensus-{builder.pid}-")) == 3
    assert alive(inside)
    if with_signal is signal.SIGINT:
        os.killpg(builder.pid, with_signal)  # as a terminal does: to everybody
    else:
        os.kill(builder.pid, with_signal)
    builder.wait(timeout=30)
    assert gone(lambda: names(f"dissensus-{builder.pid}-"))
    assert gone(lambda: alive(inside))


def test_what_a_killed_builder_and_its_keeper_left_is_removed_by_the_next(permitted):
    dead = subprocess.Popen(["true"])
    dead.wait(timeout=20)
    left = f"{network_keeper.prefix_of(dead.pid, 0)}host0"
    subprocess.run(["ip", "netns", "add", left], check=True, timeout=20)
    inside = subprocess.Popen(["ip", "netns", "exec", left, "sleep", "600"])
    assert gone(lambda: inside.pid not in network_keeper.processes([left]))
    with hosts(1) as net:
        assert left not in names()
        assert net.name(0) in names()
    assert inside.wait(timeout=20) == -signal.SIGKILL


def test_a_rate_holds_what_a_host_sends(permitted):
    count = 400_000
    with hosts(2, rate="10mbit") as net:
        same, seconds = echoed(net, count)
    assert same
    assert seconds >= 0.5 * count * 8 / 10e6  # what the wire does, not how fast this machine is


def test_a_delay_is_at_least_what_was_asked_and_loses_nothing(relayed):
    with hosts(3, delay_ms=20) as net:
        _, seconds = echoed(net, 1)
        same, _ = echoed(net, 300_000)
    assert same
    assert seconds >= 2 * 0.020  # there and back, and nothing else: no timing of this machine


def test_a_rate_and_a_delay_together(relayed):
    with hosts(2, rate="20mbit", delay_ms=10) as net:
        same, seconds = echoed(net, 200_000)
    assert same
    assert seconds >= 0.5 * 200_000 * 8 / 20e6


def test_the_environment_of_a_host(permitted):
    code = "import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.environ['MASTER_ADDR'], os.environ['RANK'])"
    with hosts(1) as net:
        command = [sys.executable, "-c", code]
        with net.popen(0, command, env={"RANK": "3"}, stdout=subprocess.PIPE, text=True) as told:
            assert told.communicate(timeout=20)[0] == "eth0 10.77.0.1 3\n"
        with pytest.raises(NetworkError, match="there is no host 1: the network has hosts 0 to 0"):
            net.popen(1, command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "a network has 1 to 250 hosts, got 0"),
        ({"n": 251}, "a network has 1 to 250 hosts, got 251"),
        ({"n": 2, "delay_ms": -1}, "the delay must not be negative, got -1 ms"),
        ({"n": 2, "rate": "fast"}, "a rate is a number with kbit, mbit or gbit, as in '200mbit', got 'fast'"),
        ({"n": 2, "rate": "0mbit"}, "a rate is a number with kbit, mbit or gbit, as in '200mbit', got '0mbit'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(NetworkError, match=message), hosts(**arguments):
        pass


def test_it_says_why_it_is_not_permitted(monkeypatch):
    monkeypatch.setattr(network.sys, "platform", "linux")
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.setattr(network.shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert why_not() == "networks are built by `tc`, which is not here: install iproute2"
    monkeypatch.setattr(network.shutil, "which", lambda tool: tool)
    assert "built by root only" in why_not()
    with pytest.raises(NetworkError, match="built by root only"), hosts(2):
        pass
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr(network.Path, "exists", lambda self: False)
    assert why_not() == ""
    assert "there is no /dev/net/tun" in why_not(delay=True)
    monkeypatch.setattr(network.sys, "platform", "win32")
    assert why_not() == "networks are made of Linux namespaces, and this is win32"


def test_what_fails_half_way_is_named_and_leaves_nothing(permitted, monkeypatch):
    monkeypatch.setattr(network, "_shape", lambda rate: ["rate", "nonsense"])
    with (
        pytest.raises(NetworkError, match=r"not permitted here: `tc -n dissensus-.* failed: .*nonsense"),
        hosts(2, rate="1mbit"),
    ):
        pass
    assert names(f"dissensus-{os.getpid()}-") == []


def test_a_relay_that_does_not_start_says_why(permitted):
    with pytest.raises(NetworkError, match=r"its relay did not start: .*No such file"):
        network._relay(1.0, "nowhere", ["nobody"])
