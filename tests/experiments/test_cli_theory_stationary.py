"""`dissensus theory stationary` and `exponents`: numbers, warnings, figures and refusals, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.figures.style import svg
from dissensus.experiments.figures.theory import exponents_figure, gamma_curves, stationary_figure
from dissensus.theory import topology
from dissensus.theory.exponents import exponents
from dissensus.theory.fixed_point import expected_bias
from dissensus.theory.limits import limits
from dissensus.theory.stationary import predict

RING = "theory stationary --topology ring --n 8 --lr 0.05 --momentum 0.9 --gamma 0.3 --order atc --curvature 2,0.7,0.2"


def told(capsys: pytest.CaptureFixture, line: str, *more: str) -> dict[str, Any]:
    assert main([*line.split(), *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_stationary_says_what_the_theory_says(capsys: pytest.CaptureFixture) -> None:
    got = told(capsys, RING, "--noise", "3,2,1", "--weight-decay", "0.01", "--heterogeneity", "0.1,0.2,0.3")
    h, ring = np.array([2.0, 0.7, 0.2]), topology("ring", 8)
    local: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "gamma": 0.3, "order": "atc", "weight_decay": 0.01}
    expected = predict(ring, h, [3.0, 2.0, 1.0], **local).to_dict()
    assert {k: got[k] for k in expected} == json.loads(json.dumps(expected))
    assert got["limits"] == limits(ring, h, **local).to_dict()
    bias = expected_bias(ring, h, [0.1, 0.2, 0.3], **local)
    assert (got["bias"]["consensus_distance"], got["bias"]["envelope"]) == bias
    assert got["total"]["consensus_distance"] == bias[0] + expected["consensus_distance"]
    assert got["total"]["envelope"] == bias[1] + expected["envelope"]


@pytest.mark.parametrize(
    ("law", "variances"), [("isotropic", [1, 1, 1]), ("isotropic=2", [2, 2, 2]), ("hessian", [2, 0.7, 0.2]),
                           ("hessian=0.5", [1, 0.35, 0.1])],
)  # fmt: skip
def test_noise_can_be_named(capsys: pytest.CaptureFixture, law: str, variances: list[float]) -> None:
    named = told(capsys, RING, "--noise", law)
    given = told(capsys, RING, "--noise", ",".join(map(str, variances)))
    assert named["consensus_distance"] == pytest.approx(given["consensus_distance"], rel=1e-14)


def test_people_get_tables_and_the_trap_is_told_on_standard_error(capsys: pytest.CaptureFixture) -> None:
    assert main([*RING.replace("0.3", "1").split(), "--heterogeneity", "0.1"]) == 0
    out, err = capsys.readouterr()
    for text in ("envelope ½ tr(HΣ)", "stable for lr below", "disagreement forgets in steps", "bias: envelope", "0.2"):
        assert text in out
    assert err.startswith("warning: order atc with momentum 0.9 on a W with eigenvalue -0.333333 is stable only for lr")
    assert main(["theory", "stationary", "--n", "64", "--lr", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert "modes, 40 of 63 (--json: all)" in out
    assert err == ""


def test_exponents_say_what_the_theory_says(capsys: pytest.CaptureFixture) -> None:
    line = (
        "theory exponents --p 0,1,3 --curvature 1,0 --noise 1,2 --lr-max 0.2 --lr-min 0.002 --points 3 --momentum 0.5"
    )
    got = told(capsys, line, "--steps", "5000")
    assert got["lr_max"] == 0.2
    assert [row["p"] for row in got["exponents"]] == [0, 1, 3]
    last = got["exponents"][2]
    expected = exponents(topology("ring", 8), [1, 0], [1, 2], p=3, lr_max=0.2, lrs=[0.2, 0.02, 0.002], momentum=0.5)
    assert last["limits"] == {"envelope": 1.0, "consensus_distance": -1.0, "ratio": 0.0}
    assert last["fates"] == {"envelope": "vanishes", "consensus_distance": "grows", "ratio": "stays"}
    for point, other in zip(last["points"], expected.points, strict=True):
        assert point["lr"] == pytest.approx(other.lr)
        assert point["envelope"] == pytest.approx(other.envelope, rel=1e-9)
        assert point["slopes"]["envelope"] == pytest.approx(other.slopes["envelope"], rel=1e-6)
    assert set(last["annealed"]) == {"steps", "freezing_time", "consensus_distance", "envelope"}
    assert last["annealed"]["freezing_time"] > got["exponents"][1]["annealed"]["freezing_time"] > 0


def test_exponents_in_tables_and_over_schedules(capsys: pytest.CaptureFixture) -> None:
    assert (
        main(
            [
                "theory",
                "exponents",
                "--p",
                "1,2",
                "--points",
                "3",
                "--steps",
                "100",
                "--topology",
                "one-peer-ring",
                "--n",
                "6",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    for text in ("exponent for lr → 0", "vanishes", "stays", "after a cosine to zero over 100 steps"):
        assert text in out


def test_figures_are_written(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main([*RING.split(), "--figure", str(tmp_path / "a.png")]) == 0
    assert main([*["theory", "exponents", "--p", "0,2", "--points", "4"], "--figure", str(tmp_path / "b.svg")]) == 0
    capsys.readouterr()
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (tmp_path / "b.svg").read_bytes()


def test_the_stationary_figure_has_the_floor_the_cap_and_the_gamma_asked_about() -> None:
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.5}
    curves = gamma_curves(topology("ring", 8), [2.0, 0.5], [1.0, 1.0], gamma=0.3, **settings)
    figure = stationary_figure(curves)
    left, right = figure.axes
    names = [str(line.get_label()) for line in left.lines]
    assert names[1:3] == ["excess risk of the mean", r"7 $\times$ that: workers that never talk"]
    here = predict(topology("ring", 8), [2.0, 0.5], 1.0, gamma=0.3, **settings)
    assert float(np.ravel(left.lines[-1].get_ydata())[0]) == here.envelope
    assert float(np.ravel(right.lines[-1].get_ydata())[0]) == here.normalised_alignment
    assert np.nanmax(curves.of("envelope")) < 7 * here.excess  # type: ignore[operator]
    assert left.get_ylabel()
    assert right.get_ylabel()
    again = stationary_figure(gamma_curves(topology("ring", 8), [2.0, 0.5], [1.0, 1.0], gamma=0.3, **settings))
    assert svg(figure) == svg(again)


def test_the_stationary_figure_leaves_out_what_is_unstable() -> None:
    curves = gamma_curves(topology("ring", 8), [1.0], [1.0], gamma=0.5, lr=0.9)
    assert curves.found[-1] is None
    assert np.isnan(curves.of("envelope")[-1])
    drawn = gamma_curves(topology("ring", 8), [0.0], [1.0], gamma=0.0, lr=0.9)
    assert drawn.found[0] is not None
    stationary_figure(curves)
    stationary_figure(drawn)


def test_figures_of_no_disagreement_at_all() -> None:
    alone = topology("complete", 1)
    silent = gamma_curves(alone, [1.0], [0.0], gamma=0.5, lr=0.1)
    assert b"<svg" in svg(stationary_figure(silent))
    assert b"<svg" in svg(exponents_figure([exponents(alone, [1.0], p=1.0, lr_max=0.1, lrs=[0.1, 0.05])]))


def test_the_exponents_figure_draws_a_law_only_where_there_is_one() -> None:
    def figure(**more: Any) -> Any:
        found = [
            exponents(topology("ring", 8), [1.0, 0.1], p=p, lr_max=0.1, lrs=[0.1, 0.01], **more) for p in (0.0, 1.0)
        ]
        return exponents_figure(found)

    left, right = figure().axes
    assert [line.get_label() for line in left.lines] == ["p = 0", "p = 1"]
    assert "small-step law" in [line.get_label() for line in right.lines]
    _, right = figure(memory=0.5).axes
    assert "small-step law" not in [line.get_label() for line in right.lines]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stationary --lr 0.1 --noise hesian", "unknown law of noise 'hesian'; did you mean 'hessian'"),
        ("stationary --lr 0.1 --curvature 1,2 --heterogeneity 1,2,3", "--curvature has 2 values, but --heterogeneity"),
        ("stationary --lr 9", "lr = 9 has no stationary state"),
        (
            "stationary --lr 0.1 --topology one-peer-ring --heterogeneity 1",
            "the bias in closed form needs one symmetric",
        ),
        ("stationary --lr 0.1 --figure a.bmp", "the suffix must be .svg, .png or .pdf"),
        ("stationary --lr 0.1 --noise hessian=x", "--noise wants numbers"),
        ("exponents --p 1,x", "--p wants numbers"),
        ("exponents --lr-min 1", "--lr-min must lie between 0 and --lr-max = 0.1, got 1"),
        ("exponents --points 1", "--points must be at least 2, got 1"),
        ("exponents --memory 2", "the memory of the noise must lie in [0, 1], got 2"),
        ("exponents --topology one-peer-ring --memory 0.5", "is solved for one symmetric matrix"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture, line: str, message: str) -> None:
    assert main(["theory", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
