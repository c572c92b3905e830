"""A process per worker, as a rival of the simulation: it does the same work, and is gone afterwards, however it ends.

No time is asserted.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dissensus.experiments.bench.simulate_processes import Group, against_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
NARROW = "mlp 64-64-10, b=16"


def alive(pid):
    """Whether there is such a process, and it is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, within=20.0):
    until = time.monotonic() + within
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def test_rows_agree_and_nobody_is_left():
    with Group(3) as group:
        pids = [p.pid for p in group.processes]
        assert all(alive(pid) for pid in pids)
        rows = list(against_processes(group, NARROW, "momentum", [1], 0.05, 1))
    assert gone(pids, within=0.0)
    assert [row["threads"] for row in rows] == [1]
    for row in rows:
        assert row["agree"] is True, row["difference"]
        assert {row["met"], row["met_by_fastest"]} <= {True, False}
        json.dumps(row, allow_nan=False)
        assert set(row["seconds"]) == {"processes, front door", "processes, by hand", "ours"}
        rates = row["worker_steps_per_second"]
        assert rates["ours"] == pytest.approx(3 / row["seconds"]["ours"]["median"])
        better = max(rates["processes, front door"], rates["processes, by hand"])
        assert row["times_more"] == pytest.approx(rates["ours"] / better)
        assert row["met"] == (row["times_more"] >= 10)


def test_an_interrupt_leaves_nobody():
    pids = []

    def interrupted():
        with Group(2) as group:
            pids.extend(p.pid for p in group.processes)
            group.build(NARROW, "sgd")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(pids, within=0.0)


def test_a_process_that_dies_is_named_and_takes_the_others_along():
    with Group(2) as group:
        pids = [p.pid for p in group.processes]
        group.build(NARROW, "sgd")
        os.kill(pids[1], signal.SIGKILL)
        assert gone(pids[1:])
        with pytest.raises(RuntimeError, match=r"worker process [01] ended during 'run'"):
            group.run("by hand", 3)
    assert gone(pids, within=0.0)


def test_a_process_that_does_not_answer_is_given_up(monkeypatch):
    with Group(2) as group:
        pids = [p.pid for p in group.processes]
        group.build(NARROW, "sgd")
        os.kill(pids[0], signal.SIGSTOP)
        monkeypatch.setattr(Group, "patience", 0.4)
        monkeypatch.setattr(Group, "grace", 0.5)
        with pytest.raises(TimeoutError, match=r"worker process 0 did not answer to 'run' within 0\.4 seconds"):
            group.run("front door", 1)
    assert gone(pids, within=0.0)


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_whoever_started_them_may_go(with_signal, tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(
        "from dissensus.experiments.bench.simulate_processes import Group\n"
        "if __name__ == '__main__':\n"
        "    with Group(2) as group:\n"
        f"        group.build({NARROW!r}, 'sgd')\n"
        "        print(*(p.pid for p in group.processes), flush=True)\n"
        "        while True:\n"
        "            group.run('by hand', 5)\n"
    )
    command = [sys.executable, str(script)]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert started.stdout is not None
    pids = [int(word) for word in started.stdout.readline().split()]
    assert len(pids) == 2
    if with_signal is signal.SIGINT:
        os.killpg(started.pid, with_signal)  # as a terminal does: to everybody
    else:
        os.kill(started.pid, with_signal)
    started.wait(timeout=30)
    started.stdout.close()
    assert gone(pids)
