"""A study whose cells are shared by processes: the numbers of one process, recorded failures, what is skipped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.config import Study
from dissensus.experiments.in_step import run_in_step
from dissensus.experiments.loading import load
from dissensus.experiments.processes import Processes
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell
from dissensus.experiments.study import run_study
from dissensus.theory.errors import DissensusError

CONFIG = """
name = "two"
seeds = [0]
[data]
name = "digits"
[model]
name = "mlp"
width = 6
[optimizer]
name = "sgd"
[train]
steps = 6
workers = 4
batch = 8
checkpoint_every = 3
dtype = "float64"
[probes]
every = 3
curvature_every = 0
samples = 64
noise_batches = 4
trace_error = 0.5
[arms.big]
algorithm = "dsgd"
changes = {"train.batch" = 500}
[arms.wild]
algorithm = "dsgd"
changes = {"lr.peak" = 1e38, "train.dtype" = "float32"}
[arms.ac]
algorithm = "dsgd-ac"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def study(config: Path) -> Study:
    return load(config)


def statuses(outcomes: list) -> list[tuple[str, str]]:
    return [(outcome.arm, outcome.status) for outcome in outcomes]


def test_failures_are_recorded_and_the_others_are_those_of_one_process(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dissensus", "study", str(config), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--nproc", "2", "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert [(r["arm"], r["status"]) for r in said["runs"]] == [("big", "failed"), ("wild", "failed"), ("ac", "ok")]
    assert "need 2000 training samples a step" in said["runs"][0]["error"]
    assert "worker" in said["runs"][1]["error"]
    assert done.stderr.count("Traceback") == 0
    ours = Run.read(Path(said["runs"][2]["path"]))
    theirs = Run.read(run_cell(load(config).cell("ac", 0), tmp_path / "alone").path)
    assert ours.meta["processes"] == 2
    assert ours.path.name == theirs.path.name
    assert [(r["step"], r["name"]) for r in ours.metrics] == [(r["step"], r["name"]) for r in theirs.metrics]
    for mine, expected in zip(ours.metrics, theirs.metrics, strict=True):
        if mine["name"] != "probe_seconds":
            np.testing.assert_allclose(mine["value"], expected["value"], rtol=1e-10, atol=1e-13)


def test_what_has_ended_since_the_study_was_begun_is_not_done_again(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under torchrun with --max-restarts: a cell that failed in training ends the processes, and is left behind."""
    with pytest.raises(DissensusError, match=r"^wild, seed 0 failed and is recorded as that .*takes new processes$"):
        run_in_step(study, tmp_path, Processes())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr("dissensus.experiments.in_step.check_parts", lambda cell, _: cell.only[0] == "ac" or 1 / 0)
    outcomes = run_in_step(study, tmp_path, Processes())
    assert statuses(outcomes) == [("big", "failed"), ("wild", "failed"), ("ac", "ok")]
    assert "2000 training samples" in outcomes[0].error
    stamp = (outcomes[2].path / "summary.json").stat().st_mtime_ns
    assert statuses(run_in_step(study, tmp_path, Processes())) == statuses(outcomes)
    assert (outcomes[2].path / "summary.json").stat().st_mtime_ns == stamp


def test_a_new_start_does_all_again_and_resume_only_what_is_not_ok(study: Study, tmp_path: Path) -> None:
    good = study.model_copy(update={"arms": {"ac": study.arms["ac"]}, "seeds": (0, 1)})
    first = run_study(good, tmp_path)
    (first[1].path / "summary.json").unlink()  # killed: no word of its end, and checkpoints at 3 and 6
    stamps = [(o.path / "metrics.jsonl").stat().st_ino for o in first]
    before = [(o.path / "config.toml").stat().st_mtime_ns for o in first]
    resumed = run_in_step(good, tmp_path, Processes(), resume=True)
    assert statuses(resumed) == [("ac", "ok"), ("ac", "ok")]
    assert [(o.path / "config.toml").stat().st_mtime_ns for o in first] == before, "neither was begun anew"
    assert (first[0].path / "metrics.jsonl").stat().st_ino == stamps[0]
    assert (first[1].path / "metrics.jsonl").stat().st_ino != stamps[1], "the other went on from its checkpoint"
    run_in_step(good, tmp_path, Processes())
    assert all((o.path / "config.toml").stat().st_mtime_ns > at for o, at in zip(first, before, strict=True)), (
        "without resume all of it runs again"
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--nproc", "2", "--processes", "2"], {}, "--processes runs several cells at a time"),
        (["--processes", "2"], {"RANK": "0", "WORLD_SIZE": "2"}, "--processes runs several cells at a time"),
        (["--nproc", "3"], {}, "train.workers = 4 of arm big cannot be shared evenly by 3 processes: start 1, 2, 4"),
        (["--nproc", "0"], {}, "study: --nproc is a number of processes, at least 1, got 0"),
        (["--nproc", "2"], {"RANK": "0", "WORLD_SIZE": "2"}, "2 processes were started already (by torchrun?)"),
    ],
)
def test_what_is_refused_before_any_process_starts(
    arguments: list[str],
    environment: dict[str, str],
    said: str,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dissensus.experiments.launcher.launch", lambda *_: pytest.fail("processes were started"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["study", str(config), "--out", os.devnull + "/x", *arguments]) == 2
    assert said in capsys.readouterr().err
