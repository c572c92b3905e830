"""The launcher: exit codes, what is said, and that nothing is left behind, tried with processes that do no training."""

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dissensus.experiments import launcher
from dissensus.experiments.launcher import launch

PRELUDE = "import os, sys, time, signal; rank = int(os.environ['RANK']); "


def command(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + code]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "NOTICING", 0.3)
    monkeypatch.setattr(launcher, "ENDING", 1.0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def pids(folder: Path, count: int) -> list[int]:
    """The processes that have said in a file that they are there."""
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        found = [path for path in folder.glob("pid*") if path.read_text()]
        if len(found) == count:
            return [int(path.read_text()) for path in sorted(found)]
        time.sleep(0.05)
    raise AssertionError(f"only {len(list(folder.glob('pid*')))} of {count} processes have started")


def here(folder: Path) -> str:
    return f"open(r'{folder}/pid' + str(rank), 'w').write(str(os.getpid())); "


def test_every_process_is_told_who_it_is(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    told = f"open(r'{tmp_path}/' + str(rank), 'w').write(' '.join(os.environ[k] for k in {names}))"
    assert launch(command(told), 3).code == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["0 0 3 3", "1 1 3 3", "2 2 3 3"]


def test_the_first_failure_decides(tmp_path: Path) -> None:
    code = here(tmp_path) + "rank == 1 and (print('no such luck', file=sys.stderr), sys.exit(7)); time.sleep(100)"
    ending = launch(command(code), 3)
    assert ending.code == 7
    assert ending.said == "process 1 of 3 ended with exit code 7, and the others were ended; it said: no such luck"
    assert gone(pids(tmp_path, 3))


def test_a_process_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    code = here(tmp_path) + "rank == 2 and os.kill(os.getpid(), signal.SIGKILL); time.sleep(100)"
    ending = launch(command(code), 3)
    assert ending.code == 128 + signal.SIGKILL
    assert "process 2 of 3 was killed by SIGKILL, and the others were ended" in ending.said
    assert gone(pids(tmp_path, 3))


def test_who_was_killed_is_the_cause_though_its_end_was_noticed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(queue.Queue[int]):
        def put(self, item: int, block: bool = True, timeout: float | None = None) -> None:
            time.sleep(0.1 * item)
            super().put(item, block, timeout)

    monkeypatch.setattr(launcher, "ALSO", 5.0)
    monkeypatch.setattr(launcher.queue, "SimpleQueue", Late)
    sees = f"w = r'{tmp_path}/pid1'\nwhile not (os.path.exists(w) and open(w).read()): time.sleep(0.002)\n"
    ends = "p = '/proc/' + open(w).read()\nwhile os.path.exists(p): time.sleep(0.002)\nsys.exit(1)"
    killed = f"{here(tmp_path)}os.kill(os.getpid(), signal.SIGKILL)"
    ending = launch(command(f"\nif rank: {killed}\n{sees}{ends}"), 2)
    assert ending.code == 128 + signal.SIGKILL
    assert ending.said == "process 1 of 2 was killed by SIGKILL, and the others were ended"


def test_the_first_process_may_write_down_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked to go last, and gets the time that the others do not."""
    monkeypatch.setattr(launcher, "ENDING", 60.0)
    waits = f"time.sleep(1.5); open(r'{tmp_path}/summary', 'w').write('failed')"
    code = here(tmp_path) + f"rank == 1 and sys.exit(3); exec({waits!r}) if rank == 0 else time.sleep(100)"
    assert launch(command(code), 3).code == 3
    assert (tmp_path / "summary").read_text() == "failed"


def test_what_the_first_process_says_of_its_failure_is_not_said_twice() -> None:
    assert launch(command("sys.exit(1 if rank == 0 else 0)"), 2) == (1, "")


LAUNCHES = """
import sys
from dissensus.experiments.launcher import launch
sys.exit(launch([sys.executable, "-c", sys.argv[1]], 3).code)
"""


def started(tmp_path: Path, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LAUNCHES, PRELUDE + code], stderr=subprocess.DEVNULL)


def test_when_the_launcher_is_killed_all_processes_end(tmp_path: Path) -> None:
    joins = "from dissensus.experiments.processes import _end_with_parent; _end_with_parent(rank); "
    parent = started(tmp_path, joins + here(tmp_path) + "time.sleep(200)")
    try:
        children = pids(tmp_path, 3)
        parent.kill()
        assert parent.wait(timeout=30) == -signal.SIGKILL
        assert gone(children)
    finally:
        parent.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_goes_to_the_first_process_and_then_all_end(number: signal.Signals, tmp_path: Path) -> None:
    noted = f"open(r'{tmp_path}/noted' + str(rank), 'w').write('interrupted')"
    code = f"signal.signal(signal.SIGINT, lambda *_: (exec({noted!r}), os._exit(130))); {here(tmp_path)}time.sleep(200)"
    parent = started(tmp_path, code)
    try:
        children = pids(tmp_path, 3)
        parent.send_signal(number)
        assert parent.wait(timeout=60) == 130
        assert gone(children)
        assert [path.name for path in tmp_path.glob("noted*")] == ["noted0"]
    finally:
        parent.kill()


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    asked = f"open(r'{tmp_path}/asked', 'w').write('once')"
    code = f"signal.signal(signal.SIGINT, lambda *_: exec({asked!r})); {here(tmp_path)}\nwhile True: time.sleep(200)"
    parent = started(tmp_path, code)
    try:
        children = pids(tmp_path, 3)
        parent.send_signal(signal.SIGINT)
        while not (tmp_path / "asked").exists():
            time.sleep(0.05)
        assert all(alive(pid) for pid in children), "the first may end its step"
        parent.send_signal(signal.SIGINT)
        assert parent.wait(timeout=30) == 130
        assert gone(children)
    finally:
        parent.kill()


def test_nothing_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = "open(os.environ['DISSENSUS_STORE'], 'w').write('x')"
    assert launch(command(store), 2).code == 0
    assert os.listdir(tmp_path) == []
