"""`dissensus theory certify`: what it prints, what it exits with, what it refuses."""

import json

import pytest

from dissensus.experiments.cli import main


def certified(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    assert main(["theory", "certify", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_class_of_matrices(capsys: pytest.CaptureFixture[str]) -> None:
    said = certified(capsys, "--method", "dgd", "--order", "awc", "--contraction", "0.5", "--steps", "5", "--lr", "0.3")
    assert said["certified"] is True
    assert said["method"] == "dsgd"
    assert said["primal"] <= said["value"] <= said["primal"] * (1 + 1e-5)
    assert said["dual"]["reason"] is None
    assert said["seconds"] > 0


def test_one_topology_and_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    said = certified(capsys, "--topology", "ring", "--n", "4", "--steps", "3", "--lr", "0.333333333333333", "--replay")
    assert said["value"] == pytest.approx(0.307841, abs=1e-6)
    assert said["replay"]["attained"] == pytest.approx(said["value"], rel=5e-6)
    assert said["replay"]["workers"] == said["size"] == 4


def test_a_topology_takes_its_own_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    lazy, plain = (
        certified(capsys, "--topology", "ring", "--n", "4", *extra, "--steps", "3", "--lr", "0.5", "--order", "atc")
        for extra in (["--rule", "lazy"], [])
    )
    assert lazy["certified"]
    assert abs(lazy["value"] - plain["value"]) > 1e-4


def test_the_best_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    said = certified(capsys, "--contraction", "0.5", "--steps", "2", "--optimize-lr", "--smoothness", "4")
    assert 0.0 < said["lr"] < 0.5
    assert said["value"] <= min(entry["value"] for entry in said["tried"]) * (1 + 1e-6)


def test_tracking_by_its_other_name(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", "diging", "--contraction", "0.9", "--steps", "1", "--lr", "0.0044", "--convexity", "0.1"]
    said = certified(capsys, *options, "--criterion", "rate")
    assert said["value"] == pytest.approx(0.999120, abs=1e-6)


def test_a_range_of_eigenvalues_and_bounded_slopes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--eigenvalues=-0.2,0.5", "--steps", "2", "--lr", "0.5", "--lipschitz", "1", "--criterion", "average"]
    said = certified(capsys, *options)
    assert said["eigenvalues"] == [-0.2, 0.5]


def test_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "certify", "--contraction", "0.5", "--steps", "2", "--lr", "0.5", "--replay"]) == 0
    out = capsys.readouterr().out
    for word in ("worst case", "certified", "yes", "replay in the engine", "attained"):
        assert word in out


def test_what_is_not_certified_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    said = certified(capsys, "--contraction", "0.99", "--steps", "10", "--lr", "1e6", code=1)
    assert said["certified"] is False


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--contraction", "0.5", "--steps", "2"], "say either --lr or --optimize-lr"),
        (["--contraction", "0.5", "--steps", "2", "--lr", "1", "--optimize-lr"], "say either --lr or --optimize-lr"),
        (["--steps", "2", "--lr", "1"], "say what mixes in one way"),
        (["--eigenvalues", "a,b", "--steps", "2", "--lr", "1"], "wants two numbers, LOW,HIGH, got 'a,b'"),
        (["--contrction", "0.5", "--steps", "2", "--lr", "1"], "did you mean 'contraction'"),
        (["--contraction", "0.5", "--n", "4", "--steps", "2", "--lr", "1"], "--n is of a topology, and none is named"),
        (["--topology", "rng", "--n", "4", "--steps", "2", "--lr", "1"], "unknown topology 'rng'"),
        (["--method", "sgd", "--contraction", "0.5", "--steps", "2", "--lr", "1"], "did you mean 'dsgd'"),
        (
            ["--method", "extra", "--contraction", "0.5", "--steps", "2", "--lr", "0.3", "--replay"],
            "no algorithm 'extra'",
        ),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "certify", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
