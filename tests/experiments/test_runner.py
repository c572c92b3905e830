import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.experiments.cell import Setup, draw_batches
from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write
from dissensus.experiments.records import Run
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.study import run_study


def tiny(*overrides: str, seeds: tuple[int, ...] = (0, 1)) -> Study:
    return load(
        (),
        overrides,
        name="tiny",
        seeds=list(seeds),
        data={"name": "digits", "noise": 0.2},
        model={"name": "mlp", "width": 6},
        optimizer={"name": "sgd", "momentum": 0.9},
        lr={"peak": 0.1, "warmup": 2},
        train={"steps": 20, "workers": 4, "batch": 8},
        probes={"every": 5, "curvature_every": 10, "samples": 128, "noise_batches": 4, "trace_error": 0.3},
        arms={
            "central": {"algorithm": "allreduce"},
            "dsgd": {"algorithm": "dsgd"},
            "ac": {"algorithm": "dsgd-ac", "p": 3.0, "start": 2},
        },
    )


class Listener:
    def __init__(self) -> None:
        self.cells = self.total = self.steps = 0
        self.ended: list[Outcome] = []

    def begin(self, cells: int, steps: int) -> None:
        self.cells, self.total = cells, steps

    def advance(self, steps: int) -> None:
        self.steps += steps

    def finish(self, outcome: Outcome) -> None:
        self.ended.append(outcome)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome], Listener]:
    root, listener = tmp_path_factory.mktemp("runs"), Listener()
    return root, run_study(tiny(), root, progress=listener), listener


def test_every_cell_ends_ok_and_progress_is_complete(finished: tuple) -> None:
    _, outcomes, listener = finished
    assert [(o.arm, o.seed, o.status) for o in outcomes] == [
        (arm, seed, "ok") for seed in (0, 1) for arm in ("central", "dsgd", "ac")
    ]
    assert (listener.cells, listener.total, listener.steps) == (6, 120, 120)
    assert listener.ended == outcomes


def test_what_a_run_records(finished: tuple) -> None:
    run = Run.read(finished[1][2].path)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert run.series(name, which="consensus")[0] == [0, 5, 10, 15, 20]
    steps, distance = run.series("consensus_distance", which="workers")
    assert steps == [0, 5, 10, 15, 20]
    assert distance[0] == 0.0 < distance[1]
    assert run.series("hessian_trace")[0] == [0, 10, 20]
    assert run.series("envelope", which="workers")[0] == [0, 10, 20]
    assert run.series("top_eigenvalue")[0] == [20]
    assert {row["which"] for row in run.metrics if row["name"] == "test_accuracy"} == {"consensus", "mean", "worst"}
    trace = run.last("hessian_trace") or {}
    assert trace["interval"][0] < trace["value"] < trace["interval"][1]
    assert {"stderr", "num_matvecs", "seed", "converged", "bn"} <= set(trace)
    assert run.series("gamma")[0] == [5, 10, 15, 20]
    assert 0.5 < run.series("gamma")[1][0] < 1.0
    assert run.series("gamma")[1][-1] < 0.01
    assert run.meta["parameters"] == 64 * 6 + 6 + 6 * 10 + 10
    assert run.summary["steps"] == 20


def test_theory_stands_beside_the_measurement_where_it_applies(finished: tuple) -> None:
    by_arm = {o.arm: Run.read(o.path) for o in finished[1][:3]}
    for arm in ("dsgd", "ac"):
        steps, expected = by_arm[arm].series("consensus_distance", which="theory")
        assert steps == [0, 5, 10, 15, 20]
        assert expected[0] == 0.0
        assert all(value > 0 for value in expected[1:])
    assert by_arm["central"].series("consensus_distance", which="theory") == ([], [])
    assert set(by_arm["central"].series("consensus_distance", which="workers")[1]) == {0.0}


def test_theory_is_told_the_rates_and_gammas_that_were_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[float]] = {}

    def listen(setup: Setup, measures: dict, lrs: list[float], gammas: list[float]) -> None:
        told.update(lr=lrs, gamma=gammas, times=sorted(measures))

    monkeypatch.setattr("dissensus.experiments.runner.predict", listen)
    run = Run.read(run_cell(tiny().cell("ac", 0), tmp_path).path)
    assert told["times"] == [0, 10, 20]
    assert len(told["lr"]) == len(told["gamma"]) == 20
    for step, value in zip(*run.series("lr"), strict=True):
        assert told["lr"][step] == value
    for step, value in zip(*run.series("gamma"), strict=True):
        assert told["gamma"][step - 1] == value
    assert told["gamma"][:2] == [1.0, 1.0]
    peak = max(told["lr"][2:])
    assert told["gamma"][12] == pytest.approx((told["lr"][12] / peak) ** 3)


def test_arms_of_a_seed_are_pairs_and_seeds_are_not() -> None:
    study = tiny()
    first = {arm: Setup.build(study.cell(arm, 0)) for arm in study.arms}
    other = Setup.build(study.cell("dsgd", 1))
    facts = [setup.facts() for setup in first.values()]
    for key in ("start_hash", "data_hash", "order_hash", "topology_hash"):
        assert len({f[key] for f in facts}) == 1, key
    assert other.facts()["start_hash"] != facts[0]["start_hash"]
    assert other.facts()["order_hash"] != facts[0]["order_hash"]
    for t in (0, 7, 50):
        batches = [setup.batch(t) for setup in first.values()]
        assert all(torch.equal(x, batches[0][0]) and torch.equal(y, batches[0][1]) for x, y in batches)
    assert batches[0][0].shape == (4, 8, 64)


def test_noise_is_probed_on_fresh_batches_of_the_workers_size() -> None:
    setup = Setup.build(tiny().cell("ac", 0))
    now, later = draw_batches(setup, 0, 3), draw_batches(setup, 10, 3)
    assert all(x.shape == (8, 64) and y.shape == (8,) for x, y in now)
    assert len(torch.unique(now[0][0], dim=0)) == 8
    assert not any(torch.equal(a[0], b[0]) for a in now for b in later)
    assert torch.equal(draw_batches(setup, 0, 3)[2][0], now[2][0])


def test_the_resolved_configuration_alone_reproduces_the_run_to_the_bit(finished: tuple, tmp_path: Path) -> None:
    path = finished[1][2].path
    again = run_cell(load(path / "config.toml"), tmp_path)
    assert again.path.name == path.name
    assert Run.read(again.path).summary["parameters_hash"] == Run.read(path).summary["parameters_hash"]
    assert values(again.path) == values(path)


def values(path: Path) -> list[tuple]:
    run = Run.read(path)
    return [(r["step"], r["name"], r["value"]) for r in (*run.metrics, *run.probes) if r["name"] != "probe_seconds"]


def test_probes_leave_no_trace_on_the_training(finished: tuple, tmp_path: Path) -> None:
    bare = tiny("probes.every=20", "probes.curvature_every=0").cell("ac", 0)
    hashes = {Run.read(p).summary["parameters_hash"] for p in (run_cell(bare, tmp_path).path, finished[1][2].path)}
    assert len(hashes) == 1


def test_a_cell_that_fails_is_recorded_and_the_study_goes_on(tmp_path: Path) -> None:
    study = tiny("arms.dsgd.changes.train.batch=500", seeds=(0,))
    outcomes = run_study(study, tmp_path)
    assert [o.status for o in outcomes] == ["ok", "failed", "ok"]
    run = Run.read(outcomes[1].path)
    assert run.status == "failed"
    assert "4 workers with batches of 500 need 2000 training samples a step" in run.summary["error"]
    assert "Traceback" in (run.path / "error.txt").read_text()


def test_a_run_that_diverges_fails_with_what_was_measured_before(tmp_path: Path) -> None:
    outcome = run_cell(tiny("lr.peak=1e38", "optimizer.momentum=0").cell("dsgd", 0), tmp_path)
    run = Run.read(outcome.path)
    assert (outcome.status, run.status) == ("failed", "failed")
    assert "AlgorithmError: worker" in outcome.error
    assert run.series("test_loss")[0] == [0]


def test_an_interrupted_cell_leaves_readable_records(tmp_path: Path) -> None:
    def watch(t: int) -> None:
        if t == 12:
            raise KeyboardInterrupt

    outcome = run_cell(tiny().cell("dsgd", 0), tmp_path, watch)
    run = Run.read(outcome.path)
    assert (outcome.status, run.status) == ("interrupted", "interrupted")
    assert run.series("test_loss")[0] == [0, 5, 10]


def test_ctrl_c_waits_for_the_end_of_the_step_and_the_second_one_does_not(tmp_path: Path) -> None:
    steps: list[int] = []

    def watch(t: int) -> None:
        if t == 7:
            os.kill(os.getpid(), signal.SIGINT)
        steps.append(t)

    outcome = run_cell(tiny().cell("dsgd", 0), tmp_path, watch)
    assert (outcome.status, steps[-1]) == ("interrupted", 7)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def impatient(t: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1e-3)
        steps.append(-t)

    assert run_cell(tiny().cell("ac", 0), tmp_path, impatient).status == "interrupted"
    assert steps[-1] == 7


def test_ctrl_c_in_the_last_measurement_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dissensus.experiments.runner.measure_workers", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert run_cell(tiny().cell("dsgd", 0), tmp_path).status == "interrupted"


def test_an_interrupted_study_runs_only_what_is_missing_when_resumed(tmp_path: Path) -> None:
    class Impatient(Listener):
        def finish(self, outcome: Outcome) -> None:
            super().finish(outcome)
            if len(self.ended) == 2:
                raise KeyboardInterrupt

    study = tiny(seeds=(0,))
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, progress=Impatient())
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tiny/*/metrics.jsonl")}
    assert len(before) == 2
    listener = Listener()
    assert [o.status for o in run_study(study, tmp_path, progress=listener, resume=True)] == ["ok"] * 3
    assert listener.steps == listener.total == 60
    after = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tiny/*/metrics.jsonl")}
    assert len(after) == 3
    assert all(after[p] == at for p, at in before.items())


def test_processes_change_no_number(finished: tuple, tmp_path: Path) -> None:
    listener = Listener()
    outcomes = run_study(tiny(seeds=(0,)), tmp_path, processes=2, progress=listener)
    assert [o.status for o in outcomes] == ["ok"] * 3
    assert listener.steps == 60
    assert len(listener.ended) == 3
    for ours, theirs in zip(outcomes, finished[1], strict=False):
        assert values(ours.path) == values(theirs.path)


def test_ctrl_c_ends_the_processes_and_marks_their_cells(tmp_path: Path) -> None:
    study = tiny("train.steps=100000", "probes.curvature_every=0", seeds=(0,))

    def press() -> None:
        while len(list(tmp_path.glob("tiny/*/metrics.jsonl"))) < 2:
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, processes=2)
    found = [Run.read(p.parent).status for p in tmp_path.glob("tiny/*/summary.json")]
    assert found == ["interrupted"] * 2


def test_a_study_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Nobody goes on with cells that whoever resumes the study would run, too."""
    study = tiny("train.steps=100000", "probes.curvature_every=0", seeds=(0,))
    write(study, tmp_path / "tiny.toml")
    command = [sys.executable, "-m", "dissensus", "study", str(tmp_path / "tiny.toml"), "--out", str(tmp_path)]
    quiet = ["--quiet", "--processes", "2"]
    run = subprocess.Popen([*command, *quiet], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("tiny/*/metrics.jsonl"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        run.kill()
        run.wait()
        until = time.monotonic() + 10
        while _lives(run.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not _lives(run.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_study_needs_a_process() -> None:
    with pytest.raises(ConfigError, match="processes must be at least 1, got 0"):
        run_study(tiny(), processes=0)


def test_float64_and_iid_shards_train_too(tmp_path: Path) -> None:
    plain = tiny("train.dtype=float64", "data.partition=iid", "data.images=true").model_dump(mode="json")
    plain["model"] = {"name": "cnn", "channels": 2}
    outcome = run_cell(Study.model_validate(plain).cell("ac", 0), tmp_path)
    assert outcome.error == ""
    assert np.isfinite(Run.read(outcome.path).series("test_loss")[1]).all()
    assert json.loads((outcome.path / "summary.json").read_text())["status"] == "ok"
