"""`dissensus diff`: configurations key by key, and two runs by what they were given and how they ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.difference import Comparison, Subject
from dissensus.experiments.loading import load, write
from dissensus.experiments.records import Recorder

ARMS = {"dsgd": {"algorithm": "dsgd"}, "ac": {"algorithm": "dsgd-ac", "p": 2.0}}
META = {"versions": {"torch": "2.13", "numpy": "2"}, "data_hash": "d", "order_hash": "o", "topology_hash": "t"}


def run(root: Path, arm: str, seed: int, *, parameters_hash: str = "h", **meta: Any) -> Path:
    recorder = Recorder.create(root, load(arms=ARMS, name="s").cell(arm, seed))
    recorder.meta(**(META | meta), argv=["a"], machine=str(root))
    recorder.summary("ok", steps=3, parameters_hash=parameters_hash, wall_s=len(str(root)))
    return recorder.path


def compared(a: Path, b: Path) -> Comparison:
    return Comparison.of(Subject.read(a), Subject.read(b))


def test_keys_are_listed_as_in_the_configuration(tmp_path: Path) -> None:
    write(load(arms=ARMS), tmp_path / "a.toml")
    overrides = ["probes.samples=9", "model.width=8", "lr.peak=0.2", "faults.drop=0.1", "data.noise=0.1"]
    write(load((), overrides, arms=ARMS | {"ac": {"algorithm": "dsgd-ac", "order": "atc"}}), tmp_path / "b.toml")
    assert list(compared(tmp_path / "a.toml", tmp_path / "b.toml").configuration.items()) == [
        ("data.noise", (None, 0.1)),
        ("model.width", (None, 8)),
        ("lr.peak", (0.1, 0.2)),
        ("faults.drop", (None, 0.1)),
        ("faults.away", (None, 0.0)),
        ("faults.every", (None, 4)),
        ("probes.samples", (None, 9)),
        ("arms.ac.p", (2.0, None)),
        ("arms.ac.order", (None, "atc")),
    ]


def test_two_runs_of_one_configuration_differ_in_what_they_were_given(tmp_path: Path) -> None:
    a = run(tmp_path / "a", "ac", 0)
    b = run(tmp_path / "b", "ac", 0, versions={"torch": "2.14", "numpy": "2"}, data_hash="e", parameters_hash="i")
    found = compared(a, b)
    assert found.configuration == {}
    assert found.facts == {
        "versions.torch": ("2.13", "2.14"),
        "data_hash": ("d", "e"),
        "parameters_hash": ("h", "i"),
    }
    assert not found.equal
    assert compared(a, run(tmp_path / "c", "ac", 0)).equal, "host, time and command line are no difference"


def test_arms_of_other_names_are_compared_with_each_other(tmp_path: Path) -> None:
    found = compared(run(tmp_path, "dsgd", 0), run(tmp_path, "ac", 1))
    assert found.configuration == {
        "seeds": ([0], [1]),
        "arm.name": ("dsgd", "ac"),
        "arm.algorithm": ("dsgd", "dsgd-ac"),
        "arm.p": (None, 2.0),
    }


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(tmp_path, "ac", 0), run(tmp_path, "ac", 1, order_hash="p")
    assert main(["diff", str(a), str(b), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["equal"], said["configuration"]) == (False, {"seeds": {"a": [0], "b": [1]}})
    assert said["runs"] == {"order_hash": {"a": "o", "b": "p"}}
    assert main(["diff", str(a), str(b), "--exit-code"]) == 1
    shown = capsys.readouterr().out
    assert "seeds" in shown
    assert "order_hash" in shown
    assert main(["diff", str(a), str(a / "config.toml"), "--exit-code"]) == 0
    assert capsys.readouterr().out == "the configurations are equal\n"
    write(load(arms=ARMS), tmp_path / "s" / "study.toml")
    assert main(["diff", str(tmp_path / "s"), str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s/ac", "diff: there is no file or folder"),
        ("", "is neither a run directory (config.toml) nor the folder of a study (study.toml); in it are r"),
    ],
)
def test_what_is_no_subject(path: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "ac", 0).rename(tmp_path / "r")
    assert main(["diff", str(tmp_path / path), str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
