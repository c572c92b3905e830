"""Trackers: the numbers of the records arrive, nothing else changes, and their errors stay theirs."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dissensus.experiments import tracking
from dissensus.experiments.cli import main
from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell
from dissensus.experiments.study import run_study

CONFIG = """
name = "tracked"
[model]
name = "mlp"
width = 4
[train]
steps = 6
workers = 4
batch = 4
checkpoint_every = 2
[probes]
every = 2
curvature_every = 3
curvature_of = [1]
samples = 32
noise_batches = 2
trace_error = 0.9
[arms.ac]
algorithm = "dsgd-ac"
p = 2.0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tracked.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def cell(config: Path) -> Study:
    return load(config).cell("ac", 0)


def recorded(path: Path) -> dict[tuple[str, int], float]:
    """What a mirror of the records must show, by tag and step."""
    run = Run.read(path)
    rows = [row for row in (*run.metrics, *run.probes) if row["value"] is not None]
    which = [f"worker {row['worker']}" if row["which"] == "single" else row["which"] for row in rows]
    found = {(f"{r['name']}/{w}", r["step"]): r["value"] for r, w in zip(rows, which, strict=True)}
    assert len(found) == len(rows) > 20
    return found


def stopped(t: int) -> None:
    if t == 5:
        raise RuntimeError("the power went")


def test_tensorboard_shows_the_records_also_after_a_resumed_run(cell: Study, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = run_cell(cell, tmp_path / "plain")
    assert run_cell(cell, tmp_path, stopped, track=["tensorboard"]).status == "failed"
    outcome = run_cell(cell, tmp_path, resume=True, track=["tensorboard"])
    shown = EventAccumulator(str(outcome.path)).Reload()
    events = [(tag, event) for tag in shown.Tags()["scalars"] for event in shown.Scalars(tag)]
    found = {(tag, event.step): event.value for tag, event in events}
    expected = recorded(outcome.path)
    assert len(events) == len(expected), "what came after the checkpoint is shown once"
    assert found.keys() == expected.keys()
    assert {("test_loss/consensus", 6), ("hessian_trace/worker 1", 3), ("consensus_distance/theory", 0)} <= set(found)
    np.testing.assert_allclose([found[key] for key in expected], list(expected.values()), rtol=1e-6)
    start = shown.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"lr.peak" in start
    assert b"dsgd-ac" in start
    assert plain.path.name == outcome.path.name, "a tracker is no configuration"
    hashes = {Run.read(o.path).summary["parameters_hash"] for o in (plain, outcome)}
    assert len(hashes) == 1
    assert "warnings" not in Run.read(outcome.path).summary
    run_cell(cell, tmp_path)
    assert not list(outcome.path.glob("events.*")), "a new start leaves none of the old"


class FakeRun:
    def __init__(self, **options: Any) -> None:
        self.options, self.id, self.summary = options, options["id"] or "new", {}
        self.logged: list[dict[str, Any]] = []
        self.defined: list[tuple] = []
        self.code: int | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined.append((name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        self.logged.append(row)

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        runs.append(FakeRun(**options))
        return runs[-1]

    spec, usual = SimpleNamespace(origin="wandb.py"), tracking.importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **s: s))  # type: ignore[arg-type]
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: spec if name == "wandb" else usual(name))
    return runs


def test_wandb_gets_the_records_with_arm_seed_and_configuration(
    cell: Study, tmp_path: Path, wandb: list[FakeRun]
) -> None:
    assert run_cell(cell, tmp_path, stopped, track=["wandb"]).status == "failed"
    outcome = run_cell(cell, tmp_path, resume=True, track=["wandb"])
    first, second = wandb
    told = {key: first.options[key] for key in ("project", "group", "name", "id", "resume")}
    assert told == {"project": "tracked", "group": "ac", "name": "ac-s0", "id": None, "resume": None}
    assert (second.options["id"], second.options["resume"]) == ("new", "allow")
    config = first.options["config"]
    assert (config["arm.p"], config["arm.name"], config["seed"], config["lr.peak"]) == (2.0, "ac", 0, 0.1)
    assert first.defined == [("step", None), ("*", "step")]
    assert ((first.code, first.summary), (second.code, second.summary)) == (
        (1, {"status": "failed"}),
        (0, {"status": "ok"}),
    )
    found = {}
    for row in (*first.logged, *second.logged):
        [(tag, value)] = [item for item in row.items() if item[0] != "step"]
        found[tag, row["step"]] = value
    assert found == recorded(outcome.path)


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(
    cell: Study, tmp_path: Path, wandb: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRun, "log", lambda *_: 1 / 0)
    study = load(arms={"ac": cell.arms["ac"].model_dump()}, name="t", train=cell.train, seeds=[0])
    [outcome] = run_study(study, tmp_path, track=["wandb"])
    run = Run.read(outcome.path)
    assert run.status == "ok"
    assert run.summary["warnings"] == ["tracking with wandb ended: ZeroDivisionError: division by zero"]
    monkeypatch.setattr(FakeRun, "__init__", lambda *_, **options: 1 / 0)
    assert "ZeroDivisionError" in Run.read(run_cell(cell, tmp_path, track=["wandb"]).path).summary["warnings"][0]


@pytest.mark.parametrize("verb", [["simulate"], ["train"], ["study"], ["study", "--nproc", "2"]])
def test_what_cannot_track_is_refused_before_anything_is_written(
    verb: list[str], config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = config.parent / "runs"
    given = [verb[0], str(config), *verb[1:], "--out", str(out)]
    assert main([*given, "--track", "tensorbord"]) == 2
    said = f"dissensus: {verb[0]}: there is no tracker 'tensorbord'; did you mean 'tensorboard'?\n"
    assert capsys.readouterr().err == said
    usual = tracking.importlib.util.find_spec
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None if name == "wandb" else usual(name))
    assert main([*given, "--track", "wandb"]) == 2
    said = f"dissensus: {verb[0]}: --track wandb needs the package wandb: pip install 'dissensus[wandb]'\n"
    assert capsys.readouterr().err == said
    assert not out.exists()


def test_a_folder_that_a_tracker_left_is_not_taken_for_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nobodys_tracker").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(tracking.TRACKERS, "other", (tracking.WandB, "nobodys_tracker", "other"))
    with pytest.raises(ConfigError, match="needs the package nobodys_tracker"):
        tracking.check_trackers(["other"])


def test_nothing_of_a_tracker_is_loaded_before_a_run_is_tracked() -> None:
    code = """
import sys
import dissensus.experiments.study, dissensus.experiments.tracking as tracking
tracking.check_trackers(["tensorboard"])
assert not [name for name in ("tensorboard", "wandb", "torch.utils.tensorboard") if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
