"""A checkpoint is complete or not there: after every file operation a crash leaves the last complete one loadable."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_states import equal, in_threads, state

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed import saving
from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint, checkpoints, latest
from dissensus.algorithms.engines.distributed.saving import save

N = 2
FACTS = {"algorithm": "dsgd", "topology": "ring"}


def put(folder: Path, step: int, salt: int = 0, **options: Any) -> Path:
    return save(folder, step, {i: state(step + salt, i) for i in range(N)}, size=N, **options)


def holds(found: Checkpoint | None, step: int, salt: int = 0) -> bool:
    return (
        found is not None
        and found.step == step
        and all(equal(found.state(i), state(step + salt, i)) for i in found.workers)
    )


def steps(folder: Path) -> list[int]:
    return [one.step for one in checkpoints(folder)]


def test_what_is_saved_comes_back_to_the_bit_with_its_description(tmp_path: Path) -> None:
    place = put(tmp_path / "checkpoints", 100, facts=FACTS)
    assert place.name == "step_000100"
    assert sorted(p.name for p in place.iterdir()) == ["state.json", "worker_0000.pt", "worker_0001.pt"]
    found = latest(tmp_path / "checkpoints")
    assert holds(found, 100)
    said = json.loads((place / "state.json").read_text())
    assert (said["schema_version"], said["step"], said["size"], said["facts"]) == (1, 100, N, FACTS)
    assert said["versions"]["torch"] == str(torch.__version__)
    assert said["workers"]["1"]["bytes"] == (place / "worker_0001.pt").stat().st_size


def test_nothing_is_latest_where_nothing_was_saved(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "gone") is None


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (3, [3, 4, 5]), (None, [1, 2, 3, 4, 5])])
def test_the_last_k_are_kept(keep: int | None, left: list[int], tmp_path: Path) -> None:
    for step in range(1, 6):
        put(tmp_path, step, keep=keep)
    assert steps(tmp_path) == left
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step_{s:06d}" for s in left]


def test_the_last_is_the_one_saved_last_also_after_going_back(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        put(tmp_path, step)
    put(tmp_path, 15, keep=2)
    assert steps(tmp_path) == [30, 15]
    assert holds(latest(tmp_path), 15)


def test_a_step_saved_again_replaces_what_was_there(tmp_path: Path) -> None:
    for salt in (0, 500, 900):
        put(tmp_path, 10, salt=salt, keep=None)
        assert [p.name for p in tmp_path.iterdir()] == ["step_000010"]
        assert holds(latest(tmp_path), 10, salt=salt)


def test_what_is_incomplete_is_passed_over_and_swept(tmp_path: Path) -> None:
    put(tmp_path, 1)
    shutil.copytree(tmp_path / "step_000001", tmp_path / "step_000002")
    (tmp_path / "step_000002" / "state.json").unlink()
    (tmp_path / "step_000002" / ".worker_0000.pt.123").write_bytes(b"half")
    (tmp_path / "step_nine").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert holds(latest(tmp_path), 1)
    put(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step_000001", "step_000003", "step_nine"]


class Killed(BaseException):
    """No `except Exception` sees it, as no `except` sees a kill."""


class Mortal:
    """The file operations of this process, of which the k-th never happens, nor anything after it."""

    NAMES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "open")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, k: int | None) -> None:
        self.k, self.count = k, 0
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._dying(getattr(os, name)))
        monkeypatch.setattr(torch, "save", self._torn(torch.save))

    def _dying(self, real: Callable) -> Callable:
        def operation(*args: Any, **options: Any) -> Any:
            self._tick()
            return real(*args, **options)

        return operation

    def _torn(self, real: Callable) -> Callable:
        def write(nest: Any, stream: Any) -> None:
            real(nest, stream)
            if self.k == self.count + 1:
                stream.truncate(stream.tell() // 2)
            self._tick()

        return write

    def _tick(self) -> None:
        self.count += 1
        if self.k is not None and self.count >= self.k:
            raise Killed


def died(folder: Path, k: int | None, act: Callable[[], Any]) -> int:
    """Acts until the k-th file operation; returns how many there were."""
    with pytest.MonkeyPatch.context() as patched:
        mortal = Mortal(patched, k)
        try:
            act()
        except Killed:
            assert k is not None
        return mortal.count


# before: what is there; the step that is saved, with a salt; keep
SITUATIONS = {
    "first": ([], 5, 0, 3),
    "next": ([1, 2], 5, 0, 3),
    "prunes one": ([1, 2], 5, 0, 2),
    "prunes all others": ([1, 2, 3], 5, 0, 1),
    "same step again": ([1, 5], 5, 700, 2),
    "the only one again": ([5], 5, 700, 1),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_crash_between_any_two_file_operations_leaves_the_last_complete_one(situation: str, tmp_path: Path) -> None:
    before, step, salt, keep = SITUATIONS[situation]
    template = tmp_path / "template"
    template.mkdir()
    for s in before:
        put(template, s, keep=None)

    def act(folder: Path) -> None:
        put(folder, step, salt=salt, keep=keep)

    shutil.copytree(template, tmp_path / "whole")
    count = died(tmp_path, None, lambda: act(tmp_path / "whole"))
    assert count > 12
    outcomes = []
    for k in range(1, count + 1):
        folder = tmp_path / f"killed-{k}"
        shutil.copytree(template, folder)
        died(folder, k, lambda folder=folder: act(folder))
        found = latest(folder)
        new = holds(found, step, salt=salt)
        old = found is None if not before else holds(found, before[-1])
        assert new or old, f"after operation {k} of {count} neither the old nor the new one can be loaded"
        assert all(holds(one, one.step, salt) or holds(one, one.step) for one in checkpoints(folder)), "one is half"
        outcomes.append(new)
        for again, other in ((step, 300), (9, 0)):  # life goes on, and what was left behind is swept
            put(folder, again, salt=other, keep=1)
            assert [p.name for p in folder.iterdir()] == [f"step_{again:06d}"]
            assert holds(latest(folder), again, salt=other)
    assert outcomes == sorted(outcomes), "once the new one is complete it stays the last"
    assert not outcomes[0]
    assert outcomes[-1], "the new one is complete before the first old one goes"


def test_files_are_on_the_disk_before_the_description_that_vouches_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[tuple[str, str]] = []
    forced, moved, renamed = os.fsync, os.replace, os.rename

    def fsync(handle: int) -> None:
        same = next(p for p in (tmp_path, *tmp_path.rglob("*")) if os.path.samestat(p.stat(), os.fstat(handle)))
        what = same.name.removesuffix(f".{os.getpid()}") if same.is_file() else "directory"
        happened.append(("forced", "folder" if same == tmp_path else what))
        forced(handle)

    def replace(a: Path, b: Path) -> None:
        happened.append(("moved", Path(b).name))
        moved(a, b)

    def rename(a: Path, b: Path) -> None:
        happened.append(("renamed", Path(b).name))
        renamed(a, b)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", replace)
    put(tmp_path, 1)
    place, file = "step_000001", "state.json"
    for name in ("worker_0000.pt", "worker_0001.pt"):
        assert happened.index(("forced", f".{name}")) < happened.index(("moved", name))
    assert happened[-6:] == [
        ("forced", "directory"),
        ("forced", f".{file}"),
        ("moved", file),
        ("forced", "directory"),
        ("renamed", place),
        ("forced", "folder"),
    ]


@pytest.mark.parametrize("k", [3, 8, 11])
def test_a_kill_while_sweeping_is_swept_next_time(k: int, tmp_path: Path) -> None:
    put(tmp_path, 1)
    for step in (2, 3):
        shutil.copytree(tmp_path / "step_000001", tmp_path / f"step_00000{step}")
        (tmp_path / f"step_00000{step}" / "state.json").unlink()
    died(tmp_path, k, lambda: put(tmp_path, 4))
    assert holds(latest(tmp_path), 1)
    put(tmp_path, 5)
    assert steps(tmp_path) == [1, 5]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_should_be_dead_cannot_write_into_the_checkpoint_of_another(tmp_path: Path) -> None:
    """Two runs save the same step into one folder: one of them stands, whole, and the other is told."""

    def act(i: int, together: Callable) -> Any:
        def slow(nest: Any, stream: Any) -> None:
            if i == 0:
                together(None)  # both have made their directory
                together(None)  # the other run is done
            real(nest, stream)

        local.slow = slow
        together(None) if i else None
        place = save(tmp_path, 5, {0: state(5 + 100 * i, 0)}, size=1)
        together(None) if i else None
        return place

    local, real = threading.local(), torch.save
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "save", lambda nest, stream: local.slow(nest, stream))
        first, second = in_threads(2, act)
    assert second == tmp_path / "step_000005"
    assert isinstance(first, AlgorithmError)
    assert "No such file or directory; does another run save there and has swept it?" in str(first)
    found = latest(tmp_path)
    assert found is not None
    assert equal(found.state(0), state(105, 0))


def test_processes_save_their_own_workers_and_all_return_when_it_is_complete(tmp_path: Path) -> None:
    def act(i: int, together: Callable) -> bool:
        for step in (1, 2, 3):
            own = {w: state(step, w) for w in ((4, 2), (1, 0), (3,))[i]}
            place = save(tmp_path, step, own, size=5, together=together, keep=2, facts=FACTS)
            assert (place / "state.json").exists()
        return True

    assert in_threads(3, act) == [True] * 3
    found = latest(tmp_path)
    assert found is not None
    assert found.workers == (0, 1, 2, 3, 4)
    assert holds(found, 3)
    assert steps(tmp_path) == [2, 3]


def test_a_process_without_workers_and_workers_that_are_gone(tmp_path: Path) -> None:
    own = [{}, {3: state(7, 3), 1: state(7, 1)}]
    came = in_threads(2, lambda i, together: save(tmp_path, 7, own[i], size=4, together=together))
    assert came == [tmp_path / "step_000007"] * 2
    found = latest(tmp_path)
    assert found is not None
    assert (found.size, found.workers) == (4, (1, 3))


def test_where_one_process_fails_all_raise_its_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    put(tmp_path, 1)
    bad = {1: state(2, 1) | {"extra": {"rng": [torch.Generator()]}}}

    def act(i: int, together: Callable) -> Any:
        return save(tmp_path, 2, bad if i else {0: state(2, 0)}, size=2, together=together)

    for error in in_threads(2, act):
        assert isinstance(error, AlgorithmError)
        assert str(error).startswith(
            "worker_0001.pt cannot be written: extra.rng[0], a Generator, is no whole tensor or plain value; convert it"
        )
    assert holds(latest(tmp_path), 1)
    put(tmp_path, 3)
    assert steps(tmp_path) == [1, 3]


def test_a_full_disk_is_told_to_all_and_the_draft_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)

    def act(i: int, together: Callable) -> Any:
        return save(tmp_path, 2, {i: state(2, i)}, size=2, together=together)

    for error in in_threads(2, act):
        assert isinstance(error, AlgorithmError)
        assert "the checkpoint step_000002 could not be written" in str(error)
        assert "No space left on device" in str(error)
    [partial] = tmp_path.glob("step_000002.partial-*")
    assert list(partial.iterdir()) == []
    assert holds(latest(tmp_path), 1)


LIMITED = """
import resource, signal, sys, torch
from dissensus.algorithms.engines.distributed.saving import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    save(sys.argv[1], 2, {0: {"parameters": {"a": torch.zeros(1000, 1000)}}}, size=1)
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
def test_a_file_that_the_system_does_not_let_grow_is_told_by_the_system_and_not_by_torch(tmp_path: Path) -> None:
    put(tmp_path, 1)
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "the checkpoint step_000002 could not be written: File too large", done.stderr
    assert holds(latest(tmp_path), 1)


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        ({"step": 3}, "process 1 saves a checkpoint with step 3, process 0 with 2: all must say the same"),
        ({"size": 3}, "with size 3, process 0 with 2"),
        ({"facts": {"algorithm": "sgp"}}, "with facts {'algorithm': 'sgp'}, process 0 with {}"),
        ({"own": {0: state(2, 0)}}, "processes 0 and 1 both save worker 0: each worker is saved once"),
    ],
)
def test_processes_that_mean_different_things_are_refused(mine: dict, says: str, tmp_path: Path) -> None:
    def act(i: int, together: Callable) -> Any:
        call = {"step": 2, "own": {i: state(2, i)}, "size": 2, "facts": None} | (mine if i else {})
        return save(tmp_path, together=together, **call)  # type: ignore[arg-type]

    for error in in_threads(2, act):
        assert isinstance(error, AlgorithmError)
        assert says in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"step": -1}, "a step is counted from 0, got -1"),
        ({"keep": 0}, "keep is how many checkpoints stay and must be at least 1, got 0; None keeps all"),
        ({"own": {0: state(1, 0), 7: state(1, 7)}}, "there is no worker 7: workers are counted from 0 to 1"),
        ({"own": {0: state(1, 0)}}, "1 of 2 workers are to be saved by a process that is alone: pass together="),
        (
            {"own": {0: {"parametres": {}}, 1: state(1, 1)}},
            "the state of worker 0 has no part 'parametres'; did you mean 'parameters'",
        ),
        ({"own": {0: {"buffers": {}}, 1: state(1, 1)}}, "the state of worker 0 has no parameters"),
        ({"facts": {"lr": {1, 2}}}, "facts must be plain values that JSON has, but Object of type set"),
        ({"facts": {"lr": float("nan")}}, "facts must be plain values that JSON has, but Out of range float"),
    ],
)
def test_calls_that_cannot_be(call: dict, says: str, tmp_path: Path) -> None:
    whole = {"folder": tmp_path, "step": 1, "own": {i: state(1, i) for i in range(2)}, "size": 2} | call
    with pytest.raises(AlgorithmError, match="^" + says.replace("(", r"\(")):
        save(**whole)
    assert list(tmp_path.iterdir()) == []


def test_nobody_has_a_worker(tmp_path: Path) -> None:
    for error in in_threads(2, lambda i, together: save(tmp_path, 1, {}, size=2, together=together)):
        assert "no process has a worker to save" in str(error)


@pytest.mark.parametrize("what", ["directory", "file"])
def test_folders_that_are_not_shared_are_told(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PATIENCE", 0.1)

    def act(i: int, together: Callable) -> Any:
        def without(value: Any) -> list:
            heard = together(value)
            if what == "file" and i == 0:
                for file in tmp_path.glob("0/step_000001.partial-*/worker_0001.pt"):
                    file.unlink()
            return heard

        folder = tmp_path / (str(i) if what == "directory" else "0")
        return save(folder, 1, {i: state(1, i)}, size=2, together=without)

    for error in in_threads(2, act):
        assert isinstance(error, AlgorithmError)
        assert "was written by one process and is not seen by another: all need one folder on a shared" in str(error)


def test_an_old_one_that_cannot_go_is_told_and_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1)

    def stuck(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(saving, "remove_last", stuck)
    with pytest.warns(UserWarning, match="the old checkpoint .*step_000001 could not be removed: Permission denied"):
        put(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [1, 2]
    assert holds(latest(tmp_path), 2)
