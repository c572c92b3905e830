"""How far a study is, and that what did not end well is said wherever its numbers are."""

import json
from pathlib import Path
from typing import Any

import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.loading import load, write
from dissensus.experiments.progress import Bar
from dissensus.experiments.records import Recorder
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.status import StudyStatus
from dissensus.experiments.study import run_study

TINY: dict[str, Any] = {
    "name": "s",
    "seeds": [0, 1],
    "model": {"name": "mlp", "width": 4},
    "train": {"steps": 4, "workers": 4, "batch": 4},
    "probes": {"every": 2, "curvature_every": 0, "samples": 32, "noise_batches": 2, "trace_error": 0.9},
    "arms": {"a": {"algorithm": "dsgd"}, "b": {"algorithm": "dsgd-ac"}},
}


def folder(root: Path) -> Path:
    """One run that is ok, one that failed, one that was killed, one that was never begun."""
    study = load(**TINY)
    (root / "s").mkdir()
    write(study, root / "s" / "study.toml")
    ok, failed, killed, _ = study.cells()
    Recorder.create(root, ok).summary("ok", wall_s=12.0, error="")
    Recorder.create(root, failed).summary("failed", wall_s=3.0, error="the disk [is] full")
    Recorder.create(root, killed)
    return root / "s"


def test_every_cell_is_listed_with_what_is_left(tmp_path: Path) -> None:
    found = StudyStatus.read(folder(tmp_path))
    assert found is not None
    assert [(c.arm, c.seed, c.status, c.wall_s) for c in found.cells] == [
        ("a", 0, "ok", 12.0),
        ("b", 0, "failed", 3.0),
        ("a", 1, "interrupted", None),
        ("b", 1, "missing", None),
    ]
    assert [str(cell) for cell in found.left] == [
        "b, seed 0: failed: the disk [is] full",
        "a, seed 1: interrupted",
        "b, seed 1: not run",
    ]
    assert found.seconds_left == 36.0
    said = "4 runs: 1 ok, 1 failed, 1 interrupted, 1 missing; the 3 that are left take about 36 s of one process"
    assert str(found) == said
    moved = (tmp_path / "s").rename(tmp_path / "elsewhere")
    again = StudyStatus.read(moved)
    assert again is not None
    assert [c.status for c in again.cells] == [c.status for c in found.cells], "the folder may have another name"


def test_the_status_on_the_command_line_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = folder(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["study", str(at), "--status"]) == 0
    shown = capsys.readouterr().out
    assert "the disk [is] full" in shown
    assert "4 runs: 1 ok" in shown
    assert main(["study", str(at / "study.toml"), "--out", str(tmp_path), "--seeds", "[0]", "--status", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (len(said["runs"]), said["left"], said["seconds_left"]) == (2, 1, 12.0)
    assert main(["study", str(at), "--seeds", "[1]", "--status", "--json"]) == 0
    assert [run["status"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["interrupted", "missing"]
    assert sorted(tmp_path.rglob("*")) == before


def test_what_did_not_end_well_is_in_terminal_page_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def power(cell: Any, *arguments: Any, **options: Any) -> Outcome:
        outcome = run_cell(cell, *arguments, **options)
        if cell.only[0] == "b" and cell.only[2] == 1:
            Recorder(outcome.path).summary("failed", error="no <power>")
            return Outcome(outcome.path, "b", 1, "failed", "no <power>")
        return outcome

    monkeypatch.setattr("dissensus.experiments.study.run_cell", power)
    monkeypatch.setattr("dissensus.experiments.report.pictures", lambda _: [])
    write(load(**TINY), tmp_path / "study.toml")
    given = ["study", str(tmp_path / "study.toml"), "--out", str(tmp_path), "--processes", "1"]
    assert main([*given, "--quiet"]) == 1
    assert "  b, seed 1: failed: no <power>" in capsys.readouterr().out.splitlines()
    assert "b, seed 1: failed. no &lt;power&gt;" in (tmp_path / "s" / "report.html").read_text()
    assert main([*given, "--json"]) == 1
    assert [run["error"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["", "", "", "no <power>"]
    assert main(["report", str(tmp_path / "s"), "--json"]) == 0
    assert [cell["status"] for cell in json.loads(capsys.readouterr().out)["unfinished"]] == ["failed"]


def test_after_ctrl_c_only_what_is_missing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, ran = load(**TINY), []

    def run(cell: Any, root: Path, watch: Any, **options: Any) -> Outcome:
        ran.append((cell.only[0], cell.only[2]))

        def press(t: int) -> None:
            watch(t)
            if len(ran) == 2 and t == 2:
                raise KeyboardInterrupt

        return run_cell(cell, root, press, **options)

    monkeypatch.setattr("dissensus.experiments.study.run_cell", run)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path)
    found = StudyStatus.of(study, tmp_path / "s")
    assert [cell.status for cell in found.cells] == ["ok", "interrupted", "missing", "missing"]
    ran.append(("--", -1))
    assert [outcome.status for outcome in run_study(study, tmp_path, resume=True)] == ["ok"] * 4
    assert ran == [("a", 0), ("b", 0), ("--", -1), ("b", 0), ("a", 1), ("b", 1)]


def test_in_a_log_every_run_is_a_line_with_the_time_that_remains(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("s") as bar:
        bar.begin(2, 40)
        bar.advance(30)
        bar.finish(Outcome(Path(), "a", 0, "ok"))
        bar.advance(10)
        bar.finish(Outcome(Path(), "b", 1, "failed", "no [power]"))
    assert capsys.readouterr().err.splitlines() == [
        "s: 1/2 runs, 75 %, 0:00:00 left: a, seed 0: ok",
        "s: 2/2 runs, 100 %, 0:00:00 left: b, seed 1: failed: no [power]",
    ]
