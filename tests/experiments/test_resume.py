"""Checkpoints of a run, and going on from them in one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from dissensus.algorithms.engines.distributed.checkpoint import checkpoints
from dissensus.experiments.checkpoints import FOLDER
from dissensus.experiments.config import Study
from dissensus.experiments.loading import load
from dissensus.experiments.progress import Silent
from dissensus.experiments.records import Run
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.state import finished
from dissensus.experiments.study import run_study


def cell(*overrides: str, **sections: Any) -> Study:
    usual: dict[str, Any] = {
        "data": {"name": "digits", "augment": "crop", "images": True},
        "model": {"name": "cnn", "channels": 2},
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "lr": {"peak": 0.05, "warmup": 2},
        "train": {"steps": 20, "workers": 4, "batch": 4, "checkpoint_every": 6, "on_nan": "isolate"},
        "probes": {"every": 5, "curvature_every": 10, "samples": 64, "noise_batches": 4, "trace_error": 0.5},
        "arms": {"ac": {"algorithm": "dsgd-ac", "p": 2.0}},
    }
    return load((), overrides, name="tiny", **(usual | sections)).cell("ac", 0)


def stopped(study: Study, root: Path, at: int) -> Outcome:
    """A run that ends in the middle of its steps."""

    def watch(t: int) -> None:
        if t == at:
            raise RuntimeError("the power went")

    outcome = run_cell(study, root, watch)
    assert outcome.status == "failed"
    return outcome


def lines(run: Run) -> list[dict[str, Any]]:
    """All records but for time."""
    rows = [*run.metrics, *run.probes]
    return [{k: v for k, v in row.items() if k != "wall_s"} for row in rows if row["name"] != "probe_seconds"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.read(run_cell(cell(), tmp_path_factory.mktemp("whole")).path)


@pytest.mark.parametrize("at", [6, 10, 17])
def test_resumed_is_uninterrupted_to_the_bit_in_numbers_and_records(at: int, whole: Run, tmp_path: Path) -> None:
    stopped(cell(), tmp_path, at)
    steps: list[int] = []
    run = Run.read(run_cell(cell(), tmp_path, steps.append, resume=True).path)
    assert run.status == "ok"
    assert steps == list(range(at // 6 * 6 + 1, 21))
    assert run.summary["parameters_hash"] == whole.summary["parameters_hash"]
    assert lines(run) == lines(whole)
    assert run.series("consensus_distance", which="theory")[0] == [0, 5, 10, 15, 20]
    assert not (run.path / "error.txt").exists()


def test_what_is_looked_at_where_a_checkpoint_is_is_recorded_once(whole: Run, tmp_path: Path) -> None:
    study = cell("train.checkpoint_every=5")
    stopped(study, tmp_path, 12)
    assert lines(Run.read(run_cell(study, tmp_path, resume=True).path)) == lines(whole)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_study_that_is_resumed_goes_on_from_checkpoints(processes: int, whole: Run, tmp_path: Path) -> None:
    begun = (stopped(cell(), tmp_path, 14).path / "metrics.jsonl").read_text().splitlines()[0]
    study = cell().model_copy(update={"seeds": (0, 1)})

    class Bar(Silent):
        steps = 0

        def advance(self, steps: int) -> None:
            self.steps += steps

    bar = Bar()
    outcomes = run_study(study, tmp_path, processes=processes, progress=bar, resume=True)
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert lines(Run.read(outcomes[0].path)) == lines(whole)
    assert (outcomes[0].path / "metrics.jsonl").read_text().startswith(begun), "it was not begun anew"
    assert bar.steps == 40, "the bar comes to its end"


def test_before_the_first_checkpoint_a_run_starts_anew(whole: Run, tmp_path: Path) -> None:
    stopped(cell(), tmp_path, 5)
    steps: list[int] = []
    run = Run.read(run_cell(cell(), tmp_path, steps.append, resume=True).path)
    assert steps[0] == 1
    assert lines(run) == lines(whole)


def test_a_run_that_is_done_is_left_alone(tmp_path: Path) -> None:
    first = run_cell(cell(), tmp_path)
    before = (first.path / "summary.json").read_bytes()
    again = run_cell(cell(), tmp_path, lambda _: pytest.fail("it trained"), resume=True)
    assert (again.status, again.path) == ("ok", first.path)
    assert (first.path / "summary.json").read_bytes() == before


def test_a_new_start_leaves_no_old_checkpoint(tmp_path: Path) -> None:
    path = stopped(cell(), tmp_path, 13).path
    assert [one.step for one in checkpoints(path / FOLDER)] == [6, 12]
    stopped(cell(), tmp_path, 3)
    assert checkpoints(path / FOLDER) == []


def test_how_many_stay_and_what_they_say(tmp_path: Path) -> None:
    study = cell("train.checkpoint_every=4", "train.checkpoint_keep=2")
    path = run_cell(study, tmp_path).path
    found = checkpoints(path / FOLDER)
    assert [one.step for one in found] == [16, 20], "the end is one, too"
    assert found[-1].facts == {
        "configuration": study.digest,
        "algorithm": "dsgd-ac",
        "topology": "ring",
        "isolated": [],
    }
    assert found[-1].workers == (0, 1, 2, 3)


def test_the_end_of_a_run_is_read_from_its_last_checkpoint(whole: Run) -> None:
    setup = finished(whole)
    assert setup.engine.t == 20
    assert not (whole.path / "state.pt").exists()


def test_time_goes_on_where_it_was(tmp_path: Path) -> None:
    path = stopped(cell(), tmp_path, 14).path
    before = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    run = Run.read(run_cell(cell(), tmp_path, resume=True).path)
    times = [row["wall_s"] for row in run.metrics]
    assert times == sorted(times)
    kept = [row for row in before if row["step"] < 12]
    assert run.metrics[: len(kept)] == kept
    assert run.summary["wall_s"] >= times[-1]


def test_a_configuration_without_checkpoints_is_what_it_was() -> None:
    """The two keys are in a run's configuration, and so in its hash, only where they are said."""
    text = cell(train={"steps": 20}).model_dump(mode="json", exclude_none=True)["train"]
    assert not [key for key in text if key.startswith("checkpoint")]


def test_the_bar_of_a_run_that_had_only_its_end_to_write_is_full(tmp_path: Path) -> None:
    study = cell()
    (run_cell(study, tmp_path).path / "summary.json").unlink()
    told: list[int] = []
    bar = Silent()
    bar.advance = told.append  # type: ignore[method-assign]
    run_study(study, tmp_path, progress=bar, resume=True)
    assert sum(told) == 20
