"""`dissensus train` when something goes wrong: what is said, how it ends, what is left, and how it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.records import Run

CONFIG = """
name = "tiny"
[data]
name = "digits"
[model]
name = "mlp"
width = 12
[optimizer]
name = "adam"
eps = 1e-3
[lr]
peak = 0.01
schedule = "constant"
[train]
steps = {steps}
workers = 4
batch = 8
dtype = "float64"
checkpoint_every = 10
[probes]
every = 5
curvature_every = 0
samples = 64
trace_error = 0.5
[arms.dsgd]
algorithm = "gradient-tracking"
"""
FOREVER = 10**6


class Training:
    """A run of two processes, started as a user starts it."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        steps: int = FOREVER,
        verb: str = "train",
        by: Sequence[str] = (),
        nproc: int = 2,
    ) -> None:
        self.out, self.seen = folder / "runs", list[int]()
        config = folder / "tiny.toml"
        config.write_text(CONFIG.format(steps=steps))
        command = [sys.executable, *by, "-m", "dissensus", verb, str(config), "--out", str(self.out), "--quiet"]
        command += more if by else ["--nproc", str(nproc), *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def path(self) -> Path:
        return next((self.out / "tiny").glob("dsgd-*"))

    def until(self, pattern: str) -> None:
        """Waits until there is such a file in the run directory."""
        limit = time.monotonic() + 120.0
        while not list(self.out.glob(f"tiny/dsgd-*/{pattern}")):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < limit, f"no {pattern} in 120 s"
            time.sleep(0.05)

    def children(self) -> list[int]:
        """The processes of the workers, in the order of their numbers."""
        found = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid="], capture_output=True, text=True)
        self.seen = sorted(int(pid) for pid in found.stdout.split())
        return self.seen

    def ended(self) -> tuple[int, str]:
        """The exit code and everything that was said."""
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, " ".join(said.replace("│", " ").split())


def ended(run: Training) -> Iterator[Training]:
    """Hands a run out and leaves nothing of it behind."""
    yield run
    run.process.kill()
    for pid in alive(run.seen):
        os.kill(pid, signal.SIGKILL)
    if run.process.stdout is not None and not run.process.stdout.closed:
        run.process.communicate(timeout=60)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    yield from ended(Training(tmp_path))


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            found.append(pid)
    return found


def test_a_process_that_is_killed_ends_the_run(training: Training) -> None:
    training.until("checkpoints/step_*/state.json")
    first, second = training.children()
    os.kill(second, signal.SIGKILL)
    code, said = training.ended()
    assert code == 128 + signal.SIGKILL, said
    assert "process 1 of 2 was killed by SIGKILL, and the others were ended" in said
    assert not alive([first, second])
    summary = Run.read(training.path).summary
    assert summary["status"] == "failed"
    assert "process 0 lost its peer at step" in summary["error"]
    assert "process 1" in summary["error"]


def test_the_process_of_the_records_is_killed(training: Training) -> None:
    training.until("checkpoints/step_*/state.json")
    first, second = training.children()
    os.kill(first, signal.SIGKILL)
    code, said = training.ended()
    assert code == 128 + signal.SIGKILL, said
    assert "process 0 of 2 was killed by SIGKILL, and the others were ended" in said
    assert not alive([first, second])
    assert Run.read(training.path).status == "interrupted"


def test_ctrl_c_leaves_a_readable_run(training: Training) -> None:
    training.until("metrics.jsonl")
    training.until("checkpoints/step_*/state.json")
    children = training.children()
    training.process.send_signal(signal.SIGINT)
    code, said = training.ended()
    assert code == 130
    assert "dissensus: interrupted" in said
    assert not alive(children)
    assert Run.read(training.path).summary["status"] == "interrupted"


def test_when_the_command_is_killed_nobody_goes_on(training: Training) -> None:
    training.until("checkpoints/step_*/state.json")
    children = training.children()
    assert len(alive(children)) == 2
    training.process.kill()
    assert gone(children)


def gone(pids: list[int], within: float = 30.0) -> bool:
    until = time.monotonic() + within
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pids)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Training]:
    yield from ended(Training(tmp_path, verb="study", nproc=1))


@pytest.fixture
def under_torchrun(tmp_path: Path) -> Iterator[Training]:
    yield from ended(Training(tmp_path, by=["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]))


def test_when_a_study_in_one_process_is_killed_nobody_goes_on(study: Training) -> None:
    study.until("checkpoints/step_*/state.json")
    children = study.children()
    assert len(alive(children)) == 1
    study.process.kill()
    assert gone(children)


def test_under_torchrun_a_request_to_end_leaves_a_readable_run(under_torchrun: Training) -> None:
    """It is what torchrun sends to the rest when one has failed."""
    under_torchrun.until("checkpoints/step_*/state.json")
    children = under_torchrun.children()
    os.kill(children[0], signal.SIGTERM)
    code, said = under_torchrun.ended()
    assert code != 0, said
    assert gone(children)
    assert Run.read(under_torchrun.path).summary["status"] in ("interrupted", "failed")


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    config = tmp_path / "tiny.toml"
    text = CONFIG.format(steps=20).replace("eps = 1e-3\n", "").replace("adam", "sgd").replace("float64", "float32")
    config.write_text(text.replace("peak = 0.01", "peak = 1e38"))
    command = ["train", str(config), "--out", str(tmp_path / "runs"), "--nproc", "2", "--json"]
    done = subprocess.run([sys.executable, "-m", "dissensus", *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert "worker" in error
    assert "finite" in error or "has the loss" in error
    assert "at step" in error


def uninterrupted(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Run:
    """The whole run in one process."""
    config = folder / "tiny.toml"
    assert main(["simulate", str(config), "--out", str(folder / "whole"), "--json", *more]) == 0
    return Run.read(Path(json.loads(capsys.readouterr().out)["path"]))


def series(run: Run) -> dict[tuple[int, str, str], float]:
    rows = {(row["step"], row["name"], row["which"]): row["value"] for row in run.metrics}
    assert len(rows) == len(run.metrics), "every number is recorded once"
    return {key: value for key, value in rows.items() if key[1] != "probe_seconds"}


def test_a_run_that_was_killed_goes_on_in_any_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in two processes after some checkpoint, gone on with in two and in one, against a run never killed."""
    training = Training(tmp_path, steps=300)
    training.until("checkpoints/step_*/state.json")
    for pid in training.children():
        os.kill(pid, signal.SIGKILL)
    assert training.ended()[0] != 0
    kept = tmp_path / "kept"
    subprocess.run(["cp", "-r", str(training.out), str(kept)], check=True)

    again = Training(tmp_path, "--resume", steps=300)
    code, said = again.ended()
    assert code == 0, said
    in_two = Run.read(again.path)
    config = tmp_path / "tiny.toml"
    assert main(["simulate", str(config), "--out", str(kept), "--resume", "--json"]) == 0
    in_one = Run.read(Path(json.loads(capsys.readouterr().out)["path"]))

    whole = series(uninterrupted(tmp_path, capsys))
    for run in (in_two, in_one):
        found = series(run)
        assert found.keys() == whole.keys()
        np.testing.assert_allclose(list(found.values()), list(whole.values()), rtol=1e-9, atol=1e-12)


def test_a_run_that_is_done_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(CONFIG.format(steps=8))
    before = uninterrupted(tmp_path, capsys)
    stamp = (before.path / "metrics.jsonl").stat().st_mtime_ns
    command = ["train", str(config), "--out", str(tmp_path / "whole"), "--nproc", "2", "--resume", "--json"]
    done = subprocess.run([sys.executable, "-m", "dissensus", *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters_hash"] == before.summary["parameters_hash"]
    assert (before.path / "metrics.jsonl").stat().st_mtime_ns == stamp
