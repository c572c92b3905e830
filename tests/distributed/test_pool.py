"""The pool itself: values, errors, deaths and time-outs come back, and nothing outlives the tests."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pool import Pool, ProcessesFailedError

HERE = Path(__file__)


def where(scale: int) -> tuple[int, int, int, float]:
    total = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(total)
    return scale * dist.get_rank(), dist.get_world_size(), os.getpid(), total.item()


def one_raises(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("this one has had enough")


def one_raises_and_the_others_wait(rank: int) -> None:
    one_raises(rank)
    time.sleep(1000)


def one_dies(rank: int, sign: Path) -> int:
    """Not before the others are in the process group."""
    if dist.get_rank() == rank:
        while not sign.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    sign.touch()
    return dist.get_rank()


class Fragile:
    """Kills its process when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGABRT)


def one_cannot_leave() -> None:
    if dist.get_rank() == 1:
        gc.disable()  # until the group is left
        Fragile()


def everybody_waits() -> None:
    time.sleep(1000)


def test_every_process_answers_in_the_order_of_ranks_and_stays_alive(processes: Pool) -> None:
    first, second = (processes.run(4, f"{HERE}:where", scale=3) for _ in range(2))
    assert [(a, n, total) for a, n, _, total in first] == [(3 * r, 4, 10.0) for r in range(4)]
    assert first == second, "the processes are the same ones"
    assert len({pid for _, _, pid, _ in first}) == 4
    assert [(n, total) for _, n, _, total in processes.run(2, f"{HERE}:where", scale=1)] == [(2, 3.0)] * 2
    assert processes.run(1, f"{HERE}:where", scale=1)[0][1] == 1


def test_an_error_comes_back_as_text_and_the_next_call_finds_new_processes(processes: Pool) -> None:
    with pytest.raises(ProcessesFailedError, match=r"1 of 2 processes failed[\s\S]*this one has had enough"):
        processes.run(2, f"{HERE}:one_raises", rank=1)
    assert [a for a, *_ in processes.run(2, f"{HERE}:where", scale=1)] == [0, 1]


def test_a_process_that_waits_for_one_that_failed_tells_where_it_is(processes: Pool) -> None:
    failed, waits = processes.outcomes(2, f"{HERE}:one_raises_and_the_others_wait", rank=0, grace=0.3)
    assert "this one has had enough" in failed.failure
    assert "after another process had failed" in waits.failure
    assert "one_raises_and_the_others_wait" in waits.failure


def test_a_process_that_dies_is_told_with_its_exit_code(processes: Pool, tmp_path: Path) -> None:
    outcomes = processes.outcomes(2, f"{HERE}:one_dies", rank=0, sign=tmp_path / "sign", grace=20.0)
    assert "died with exit code -9" in outcomes[0].failure
    assert (outcomes[1].value, outcomes[1].failure) == (1, "")
    assert len(processes.run(2, f"{HERE}:where", scale=1)) == 2


def test_a_call_that_takes_too_long_ends_with_the_stacks_of_all(processes: Pool) -> None:
    with pytest.raises(ProcessesFailedError, match=r"2 of 2[\s\S]*in 0.5 s; it was in[\s\S]*everybody_waits"):
        processes.run(2, f"{HERE}:everybody_waits", timeout=0.5)


def test_a_process_that_cannot_leave_its_group_has_failed(processes: Pool) -> None:
    outcomes = processes.outcomes(2, f"{HERE}:one_cannot_leave")
    assert outcomes[0].failure == ""
    assert "when leaving the process group: died with exit code -6" in outcomes[1].failure


def test_nothing_outlives_tests_that_are_killed() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(HERE.parent)!r}); from pool import Pool; p = Pool()\n"
        f"print(*[pid for _, _, pid, _ in p.run(2, {f'{HERE}:where'!r}, scale=1)], flush=True)\n"
        f"p.run(2, {f'{HERE}:everybody_waits'!r})"
    )
    tests = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert tests.stdout is not None
    pids = [int(pid) for pid in tests.stdout.readline().split()]
    assert len(pids) == 2
    tests.kill()
    tests.wait(timeout=30)
    until = time.monotonic() + 30
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)
    tests.stdout.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")
