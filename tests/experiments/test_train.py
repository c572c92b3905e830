"""`dissensus train`: the numbers of `simulate` from several processes, its records, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.problem import Problem
from dissensus.experiments.records import Run
from dissensus.experiments.state import finished

WITHIN = 1e-10
CONFIG = """
name = "tiny"
[data]
name = "digits"
[model]
name = "mlp"
width = 12
[optimizer]
name = "sgd"
momentum = 0.9
[lr]
peak = 0.1
[train]
steps = 20
workers = 4
batch = 8
dtype = "float64"
keep = true
[faults]
drop = 0.2
away = 0.1
[probes]
every = 5
curvature_every = 10
curvature_of = [2]
samples = 128
noise_batches = 4
trace_error = 0.3
[arms.ac]
algorithm = "dsgd-ac"
p = 2.0
"""
QUADRATIC = [
    *("--algorithm", "gradient-tracking", "--topology", "one-peer-exponential", "--lr", "0.05", "--steps", "40"),
    *("--optimizer.momentum", "0.5", "--lr.schedule", "cosine"),
]


def dissensus(*arguments: str | int | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dissensus", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | environment)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def simulated(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("simulated")
    assert main(["simulate", str(config), "--out", str(out), "--quiet"]) == 0
    return Run.read(next((out / "tiny").glob("ac-*")))


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("trained")
    told = ("--json", "--trace", out / "trace.json")
    done = dissensus("train", config, "--out", out, "--nproc", 2, *told)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    return Run.read(Path(said["path"])), said, out / "trace.json"


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    """A record without what is about time."""
    return {key: value for key, value in line.items() if key != "wall_s"}


def test_records_are_those_of_simulate(simulated: Run, trained: tuple) -> None:
    run, said, _ = trained
    assert said["status"] == run.status == "ok"
    assert (run.path.name, run.study) == (simulated.path.name, simulated.study)
    for which in ("metrics", "probes"):
        ours, theirs = getattr(run, which), getattr(simulated, which)
        assert len(ours) == len(theirs) > 5
        for mine, expected in zip(ours, theirs, strict=True):
            assert list(mine) == list(expected)
            if mine["name"] == "probe_seconds":
                continue
            for key, value in numbers(expected).items():
                about = f"step {mine['step']}, {mine['name']}, {key}"
                if isinstance(value, float) or key == "interval":
                    np.testing.assert_allclose(mine[key], value, rtol=WITHIN, atol=1e-13, err_msg=about)
                else:
                    assert mine[key] == value, about


def test_what_is_equal_to_the_bit(simulated: Run, trained: tuple) -> None:
    """Everything but sums that are taken in another order."""
    run = trained[0]
    kept = ("digest", "start_hash", "data_hash", "order_hash", "topology_hash", "parameters", "workers")
    assert {k: run.meta[k] for k in kept} == {k: simulated.meta[k] for k in kept}
    assert (run.path / "config.toml").read_bytes() == (simulated.path / "config.toml").read_bytes()
    assert (run.meta["processes"], run.meta["backend"]) == (2, "gloo")
    assert run.summary.keys() == simulated.summary.keys()


def test_the_state_that_is_kept_is_read_like_any_other(simulated: Run, trained: tuple) -> None:
    ours, theirs = finished(trained[0]), finished(simulated)
    np.testing.assert_allclose(ours.engine.x.numpy(), theirs.engine.x.numpy(), rtol=WITHIN, atol=1e-13)
    for t in range(20, 23):  # and it can be gone on with
        ours.engine.step(ours.batch(t))
        theirs.engine.step(theirs.batch(t))
    np.testing.assert_allclose(ours.engine.x.numpy(), theirs.engine.x.numpy(), rtol=WITHIN, atol=1e-13)


def test_times_of_every_process(trained: tuple) -> None:
    timing = json.loads((trained[0].path / "timing.json").read_text())
    assert (timing["backend"], timing["steps"]) == ("gloo", 20)
    assert [(p["process"], p["workers"]) for p in timing["processes"]] == [(0, [0, 1]), (1, [2, 3])]
    for process in timing["processes"]:
        assert min(process[k] for k in ("compute_s", "communicate_s", "wait_s", "data_s", "look_s")) > 0
        assert process["compute_s"] <= process["step_s"]
        assert process["messages"] > 0
        assert process["bytes"] > 0


def test_the_trace_has_all_processes(trained: tuple) -> None:
    events = json.loads(trained[2].read_text())["traceEvents"]
    for process in (0, 1):
        names = {e["name"] for e in events if e["pid"] == process}
        assert names >= {"gradient", "flight", "post", "wait", "mix", "move", "data", "look", "step"}


def test_one_process_is_simulate_to_the_bit(config: Path, simulated: Run, tmp_path: Path) -> None:
    assert main(["train", str(config), "--out", str(tmp_path), "--quiet"]) == 0
    run = Run.read(next((tmp_path / "tiny").glob("ac-*")))
    assert run.summary["parameters_hash"] == simulated.summary["parameters_hash"]
    names = [line for line in simulated.metrics if line["name"] != "probe_seconds"]
    assert [numbers(line) for line in run.metrics if line["name"] != "probe_seconds"] == [numbers(n) for n in names]
    assert json.loads((run.path / "timing.json").read_text())["processes"][0]["workers"] == [0, 3]


def test_under_torchrun(config: Path, simulated: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--standalone", "-m", "dissensus", "train", str(config), "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.strip().splitlines()  # the first process alone speaks
    run = Run.read(Path(json.loads(line)["path"]))
    ours, theirs = run.series("test_loss"), simulated.series("test_loss")
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(ours[1], theirs[1], rtol=WITHIN)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "problem.npz"
    Problem.draw(8, 5, seed=1, heterogeneity=1.0, noise=0.2, steps=40).save(path)
    return path


def test_exact_quadratics(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    given = ["--problem", str(problem), *QUADRATIC, "--json"]
    assert main(["simulate", *given, "--trajectory", str(here)]) == 0
    simulated = json.loads(capsys.readouterr().out)
    done = dissensus("train", *given, "--trajectory", there, "--nproc", 4)
    assert done.returncode == 0, done.stderr
    trained = json.loads(done.stdout)
    x, expected = np.load(there)["x"], np.load(here)["x"]
    assert x.shape == expected.shape == (41, 8, 5)
    assert np.abs(x - expected).max() / np.abs(expected).max() < 1e-12
    assert (trained.pop("processes"), trained.pop("backend")) == (4, "gloo")
    assert trained.keys() == simulated.keys()
    for key in ("consensus_distance", "loss_at_mean", "mean_loss", "distance_to_optimum"):
        assert trained[key] == pytest.approx(simulated[key], rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--nproc", "3"],
            "train.workers = 4 cannot be shared evenly by 3 processes: start 1, 2, 4 of them, or 6 workers",
        ),
        (["--nproc", "0"], "--nproc is a number of processes, at least 1, got 0"),
        (["--nproc", "2", "--timeout", "0"], "--timeout is a number of seconds above 0, got 0"),
        (
            ["--nproc", "2", "--trace", "nowhere/trace.json"],
            "--trace nowhere/trace.json cannot be written: nowhere is no",
        ),
        (
            ["--nproc", "2", "--backend", "nccl"],
            "backend nccl needs CUDA devices, and there are none here: use --backend",
        ),
        (["--nproc", "2", "--train.stesp", "9"], "unknown key 'train.stesp'; did you mean 'steps'?"),
        (["--nproc", "2", "--arm", "dc"], "no arm 'dc'; did you mean 'ac'?"),
        (
            ["--nproc", "2", "--steps", "9"],
            "--steps goes with --problem FILE.npz; with a configuration it is --train.steps",
        ),
    ],
)
def test_what_is_refused_before_any_process_starts(
    arguments: list[str], said: str, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.experiments.launcher.launch", lambda *_: pytest.fail("processes were started"))
    assert main(["train", str(config), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_workers_of_a_problem_are_shared_evenly_or_refused(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--problem", str(problem), *QUADRATIC, "--nproc", "3"]) == 2
    assert f"the 8 workers of --problem {problem} cannot be shared evenly by 3 processes" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["simulate", "train"])
def test_a_problem_is_not_resumed(verb: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--problem", str(problem), *QUADRATIC, "--resume"]) == 2
    assert f"{verb}: --resume goes with a configuration; a problem has no checkpoints" in capsys.readouterr().err


def test_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--nproc", "2"]) == 2
    assert "train: what? give CONFIG.toml, or --problem FILE.npz for exact quadratics" in capsys.readouterr().err


def test_processes_that_others_have_started_are_not_started_again(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", str(config), "--nproc", "2"]) == 2
    assert "2 processes were started already (by torchrun?): leave --nproc out" in capsys.readouterr().err
