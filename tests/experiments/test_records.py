import json
import os
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Recorder, Run, directory_of, read_lines, read_runs, write_json
from dissensus.experiments.study import run_study


@pytest.fixture
def cell() -> Study:
    return load(arms={"a": {"algorithm": "dsgd"}}, seeds=[3], name="t").cell("a", 3)


def fill(root: Path, cell: Study) -> Path:
    recorder = Recorder.create(root, cell)
    with recorder:
        recorder.meta(host="here")
        recorder.metric(0, "test_loss", np.float64(1.5), which="consensus", bn="none")
        recorder.metric(5, "test_loss", float("nan"), which="consensus", bn="none")
        recorder.metric(10, "test_loss", 1.0, which="consensus", bn="none")
        recorder.probe(10, "hessian_trace", {"name": "trace", "value": 2.0, "interval": [1.0, 3.0]}, which="consensus")
    recorder.summary("ok", steps=10)
    return recorder.path


def test_a_run_directory_reads_back(tmp_path: Path, cell: Study) -> None:
    path = fill(tmp_path, cell)
    assert path == directory_of(tmp_path, cell) == tmp_path / "t" / f"a-s3-{cell.digest}"
    run = Run.read(path)
    assert (run.arm, run.seed, run.status, run.meta["schema_version"]) == ("a", 3, "ok", 1)
    assert run.study == cell
    assert run.series("test_loss") == ([0, 10], [1.5, 1.0])
    assert run.series("test_loss", which="workers") == ([], [])
    assert (run.last("hessian_trace") or {})["interval"] == [1.0, 3.0]
    assert run.last("nothing") is None
    assert [r.path for r in read_runs(tmp_path)] == [path]


def test_pandas_reads_the_records(tmp_path: Path, cell: Study) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_json(fill(tmp_path, cell) / "metrics.jsonl", lines=True)
    assert list(table["step"]) == [0, 5, 10]
    assert table["value"].isna().tolist() == [False, True, False]
    assert {"which", "bn", "name", "wall_s"} <= set(table.columns)


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path, cell: Study) -> None:
    path = fill(tmp_path, cell)
    whole = (path / "metrics.jsonl").read_text()
    for cut in range(1, len(whole.splitlines()[-1])):
        (path / "metrics.jsonl").write_text(whole[: -1 - cut])
        assert Run.read(path).series("test_loss")[0] == [0]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(ConfigError, match=r"x\.jsonl: line 2 is not JSON"):
        list(read_lines(tmp_path / "x.jsonl"))


def test_every_line_is_on_disk_before_the_run_ends(tmp_path: Path, cell: Study) -> None:
    with Recorder.create(tmp_path, cell) as recorder:
        recorder.metric(1, "lr", 0.5, which="workers")
        assert Run.read(recorder.path).series("lr") == ([1], [0.5])
    assert Run.read(recorder.path).status == "interrupted"


def test_a_summary_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"status": "ok"})

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_json(path, {"status": "failed"})
    assert json.loads(path.read_text()) == {"status": "ok"}


def test_a_second_run_of_the_same_cell_replaces_the_first(tmp_path: Path, cell: Study) -> None:
    fill(tmp_path, cell)
    run = Run.read(fill(tmp_path, cell))
    assert len(run.metrics) == 3


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no run directory: it has no config\.toml"):
        Run.read(tmp_path)


def test_records_read_at_once_are_those_of_single_lines(tmp_path: Path) -> None:
    """An object over two lines, or two objects on one, is broken even where the file as a whole could be read."""
    file = tmp_path / "metrics.jsonl"
    for text, line in (('{"a": 1,\n"b": 2}\n{"c": 3}\n', 1), ('{"a": 1}\n{"a": 1}, {"b": 2}\n', 2)):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"line {line} is not JSON"):
            list(read_lines(file))
    file.write_text('{"a": 1}\n\n{"b": [2]}\n{"c"')
    assert list(read_lines(file)) == [{"a": 1}, {"b": [2]}]


def test_whether_a_run_is_ok_needs_no_record_of_it(tmp_path: Path) -> None:
    study = load(arms={"dsgd": {"algorithm": "dsgd"}}, name="many", train={"steps": 3}, seeds=[0, 1])
    for cell in study.cells():
        Recorder.create(tmp_path, cell).summary("ok")
        (directory_of(tmp_path, cell) / "metrics.jsonl").write_text("not read\n\n")
    assert [outcome.status for outcome in run_study(study, tmp_path, resume=True)] == ["ok", "ok"]
