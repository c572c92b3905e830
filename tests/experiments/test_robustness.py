"""What goes wrong around a study (files, packages, processes, keys) ends in one sentence, never in a traceback."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from dissensus.experiments import study as study_module
from dissensus.experiments.cli import main
from dissensus.experiments.cli.output import console, print_table
from dissensus.experiments.config import Study
from dissensus.experiments.data import DATASETS
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load, write
from dissensus.experiments.models import MODELS
from dissensus.experiments.optimizers import check_optimizer
from dissensus.experiments.progress import Bar
from dissensus.experiments.records import Run
from dissensus.experiments.runner import Outcome, run_cell
from dissensus.experiments.study import run_study

STUDY = """
name = "tiny"
seeds = [0]
train = { steps = 4, workers = 4, batch = 4 }
probes = { every = 2, curvature_every = 0 }
[arms.a]
algorithm = "dsgd"
[arms.b]
algorithm = "dsgd"
order = "atc"
"""
ARMS = {"a": {"algorithm": "dsgd"}, "b": {"algorithm": "dsgd"}}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.toml"
    path.write_text(STUDY)
    return path


def refused(capsys: pytest.CaptureFixture, *line: str) -> str:
    assert main(list(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: ")
    assert err.count("\n") == 1, err
    return err


def dissensus(*line: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dissensus", *line], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120
    )


def tiny() -> Study:
    train, probes = {"steps": 4, "workers": 4, "batch": 4}, {"every": 2, "curvature_every": 0}
    return load(name="tiny", train=train, probes=probes, arms=ARMS)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"name": "other"}, "name"),
        ({"seeds": [7]}, "seeds"),
        ({"decision.levle": 3}, r"decision\.levle"),
        ({"decision": {"level": 0.1}}, r"decision\.level"),
        ({"arms.a.algorithm": "dsgd-ac"}, r"arms\.a\.algorithm"),
    ],
)
def test_an_arm_cannot_change_what_belongs_to_the_study(changes: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"arms\.b\.changes: '{key}' belongs to the whole study"):
        load(arms={**ARMS, "b": {"algorithm": "dsgd", "changes": changes}})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("study .", "cannot read the configuration file '.': Is a directory"),
        ("study s.toml --out s.toml --quiet", "s.toml"),
        ("simulate s.toml --arm a --out s.toml --quiet", "s.toml"),
        ("demo --steps 2 --out s.toml --quiet", "s.toml"),
        ("study s.toml --out s.toml/x --quiet", "Not a directory"),
        ("topology ring --n 8 --figure s.toml/x.png", "s.toml"),
    ],
)
def test_a_path_that_cannot_be_used_is_told_in_one_sentence(
    line: str, says: str, file: Path, capsys: pytest.CaptureFixture
) -> None:
    assert says in refused(capsys, *line.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = dissensus("topology", "--list", stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "dissensus: topology: cannot read or write: No space left on device\n"


def test_a_reader_that_went_away_is_no_failure() -> None:
    read, write_end = os.pipe()
    os.close(read)
    try:
        done = dissensus("topology", "--list", stdout=write_end)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(BrokenPipeError):
        console().on_broken_pipe()


def test_without_matplotlib_every_figure_names_the_extra(file: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from dissensus.experiments.cli import main; "
        "sys.exit(main('topology ring --n 8 --figure f.png'.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "dissensus: topology: figures need matplotlib: pip install 'dissensus[plots]'\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("study s.toml --quiet", "data set 'digits' needs sklearn: pip install 'dissensus[data]'"),
        ("simulate s.toml --arm a --quiet", "data set 'digits' needs sklearn: pip install 'dissensus[data]'"),
        ("demo --quiet", "the demo needs scikit-learn: pip install 'dissensus[demo]'"),
    ],
)
def test_missing_data_is_found_before_anything_runs(
    line: str, says: str, file: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert says in refused(capsys, *line.split())
    assert not (file.parent / "runs").exists()


def test_brackets_in_a_message_are_no_markup(capsys: pytest.CaptureFixture) -> None:
    with Bar() as bar:
        bar.begin(1, 1)
        bar.finish(Outcome(Path(), "a", 0, "failed", "pip install 'dissensus[data]' " + "and so on " * 30))
    said = capsys.readouterr().err
    assert "a, seed 0: failed: pip install 'dissensus[data]' " + "and so on " * 30 in said
    print_table("", ["", "x"], [["error", "pip install 'dissensus[data]'"]])
    assert "'dissensus[data]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.noise=2", r"--data\.noise: \[data\] data set 'digits': parameter 'noise': .* less than 1, got 2"),
        ("data.noise=a", r"parameter 'noise': input should be a valid number, got 'a'"),
        ("data.noise=true", r"parameter 'noise': input should be a valid number, got True"),
        ("data.test=3", r"parameter 'test': .* greater than or equal to 10, got 3"),
        ("data.images=1", r"parameter 'images': input should be a valid boolean, got 1"),
        ("model.width=a", r"\[model\] model 'mlp': parameter 'width': input should be a valid integer, got 'a'"),
        ("model.width=0", r"parameter 'width': .* greater than or equal to 1, got 0"),
        ("model.activation=rleu", r"parameter 'activation': input should be 'relu', 'tanh' or 'gelu', got 'rleu'"),
        ("optimizer.momentum='a'", r"\[optimizer\] optimizer 'sgd': parameter 'momentum': .* number, got 'a'"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_runs(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load((), [override], arms=ARMS)


def test_right_values_pass() -> None:
    DATASETS.check("digits", {"noise": 0, "test": 1787, "images": True})
    MODELS.check("mlp", {"width": 1, "depth": 0})
    check_optimizer("adam", {"betas": [0.9, 0.99], "weight_decay": 0, "foreach": False})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnmae = 'digits'", r"s\.toml: \[data\] there is no parameter 'nmae'; did you mean 'name'\?"),
        ("[data]\npartitoin = 'iid'", r"no parameter 'partitoin'; did you mean 'partition'\?"),
        ("[topology]\nnaem = 'ring'", r"\[topology\] there is no parameter 'naem'; did you mean 'name'\?"),
        ("[arms.c]\nalgoritm = 'dsgd'", r"'arms\.c\.algorithm' is missing; did you write 'algoritm' for it\?"),
        ("[arms.c]\nalgorithm = 'dsgd'\nlable = 'C'", r"\[arms\.c\] there is no parameter 'lable'.* 'label'\?"),
        ("[arms.c]\nalgorithm = 'dsgd'\nodrer = 'atc'", r"no parameter 'odrer'; did you mean 'order'\?"),
    ],
)
def test_the_keys_of_a_section_itself_are_offered_too(text: str, message: str, file: Path) -> None:
    file.write_text(STUDY + text)
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_a_misspelt_flag_is_offered_beside_the_sections(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert "unknown option --reusme; did you mean 'resume'?" in refused(capsys, "study", "s.toml", "--reusme")
    assert "unknown option --sedes; did you mean 'seeds'?" in refused(capsys, "study", "s.toml", "--sedes", "[1]")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("study s.toml --processes 0", "processes must be at least 1, got 0"),
        ("demo --processes 0", "processes must be at least 1, got 0"),
        ("demo --steps -5", "the demo needs at least one step, got -5"),
    ],
)
def test_counts_below_one_are_refused(line: str, says: str, file: Path, capsys: pytest.CaptureFixture) -> None:
    assert says in refused(capsys, *line.split(), "--quiet")


def test_the_resolved_configuration_is_json_when_asked(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["study", "s.toml", "--print-config", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert load(**printed["config"]) == load(file)


def test_when_every_run_fails_json_says_so(file: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["study", "s.toml", "--train.batch", "5000", "--processes", "1", "--json"]
    assert main(line) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [(run["arm"], run["status"]) for run in told["runs"]] == [("a", "failed"), ("b", "failed")]
    assert "need 20000 training samples" in told["runs"][0]["error"]
    assert (told["report"], told["findings"]) == (None, [])
    assert err.startswith("dissensus: every run failed; the first: ")


@pytest.mark.parametrize("rest", ['{"status": "o', "[]", b"\xff\xfe"])
def test_a_summary_that_was_cut_off_names_its_file(
    rest: str | bytes, file: Path, capsys: pytest.CaptureFixture
) -> None:
    path = run_cell(load(file).cell("a", 0), file.parent / "runs").path
    (path / "summary.json").write_bytes(rest if isinstance(rest, bytes) else rest.encode())
    for line in (["report", "runs/tiny"], ["study", "s.toml", "--resume", "--quiet"]):
        said = refused(capsys, *line)
        assert f"{path.name}/summary.json is not" in said
        assert "remove its folder" in said


def test_an_empty_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"config\.toml: 'arms' is missing"):
        Run.read(tmp_path)


def test_a_configuration_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tiny(), tmp_path / "config.toml")
    before = (tmp_path / "config.toml").read_text()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dissensus.experiments.loading.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tiny().cell("a", 0), tmp_path / "config.toml")
    assert (tmp_path / "config.toml").read_text() == before


class _Pool:
    """A pool whose processes die; it notes who hears Ctrl-C while they begin."""

    heard: list = []

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, work: object, cell: Study, root: Path) -> "_Pool":
        self.heard.append(signal.getsignal(signal.SIGINT))
        if cell.only[0] == "a":  # it had begun
            study_module.Recorder.create(root, cell)
        return self

    def done(self) -> bool:
        return True

    def result(self) -> Outcome:
        raise BrokenProcessPool("terminated abruptly")

    def shutdown(self, **_: object) -> None: ...


def test_processes_that_die_fail_their_cells_and_begin_deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "ProcessPoolExecutor", _Pool)
    _Pool.heard.clear()
    outcomes = run_study(tiny(), tmp_path, processes=2)
    assert [o.status for o in outcomes] == ["failed", "failed"]
    assert "a process of the pool died" in outcomes[0].error
    assert Run.read(outcomes[0].path).status == "failed"
    assert not outcomes[1].path.exists()
    assert _Pool.heard == [signal.SIG_IGN, signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
