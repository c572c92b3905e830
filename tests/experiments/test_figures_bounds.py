"""Figures of bounds: what is drawn is what was computed, in the order bound, certificate, runs."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.cli import main
from dissensus.experiments.figures.bounds import OverSteps, over_steps, steps_figure, tightness_figure
from dissensus.experiments.figures.style import svg
from dissensus.theory.certificates import certify
from dissensus.theory.ledger import Row
from dissensus.theory.trials import Family

ROW = Row("gap-ring", "general", "equal", "classical", 10, 0, 0, 1.0, 1.0, 1.0, None)
ROWS = [
    ROW,
    replace(ROW, bound="convex-descent", smallest=1.2, median=7.0, searched=1.1),
    replace(ROW, bound="convex-descent", family="certificate", smallest=2.3, median=3e5, searched=2.0, certificate=2.0),
]


@pytest.fixture(scope="module")
def curves() -> OverSteps:
    return over_steps(certify(contraction=0.5, steps=4, lr=0.4), samples=10)


def test_every_number_of_steps_has_its_certificate_between_bounds_and_runs(curves: OverSteps) -> None:
    assert curves.steps == (1, 2, 3, 4)
    values = np.array([c.value for c in curves.certificates])
    assert (curves.bounds["convex-descent"] >= values * (1 - 1e-9)).all()
    np.testing.assert_allclose(curves.attained, values, rtol=1e-5)
    assert curves.samples.shape == (10, 4)
    assert (curves.samples <= values * (1 + 1e-9)).all()
    assert (curves.on_the_way <= values * (1 + 1e-9)).all()
    assert curves.on_the_way[-1] == pytest.approx(values[-1], rel=1e-5)
    assert values[2] == pytest.approx(certify(contraction=0.5, steps=3, lr=0.4).value, rel=1e-9)


def test_the_figure_draws_all_of_it(curves: OverSteps) -> None:
    (ax,) = steps_figure(curves).axes
    lines = {str(line.get_label()): line for line in ax.lines}
    assert {"bound convex-descent", "certificate: exact worst case", "its instance, run"} <= set(lines)
    assert {"the instance of K = 4 on its way", "10 random runs of the class"} <= set(lines)
    shown = lines["certificate: exact worst case"].get_xydata()
    np.testing.assert_array_equal(np.asarray(shown)[:, 1], [c.value for c in curves.certificates])
    assert ax.get_title(loc="left") == "dsgd awc, contraction 0.5, lr 0.4, L 1, µ 0"
    assert len({line.get_linestyle() for name, line in lines.items() if name.startswith(("bound", "cert"))}) == 2
    assert svg(steps_figure(curves)) == svg(steps_figure(curves))


@pytest.mark.parametrize(
    ("parameters", "bounds", "rebuilt"),
    [
        (
            {"contraction": 0.5, "lipschitz": 1.0, "criterion": "average"},
            {"subgradient-descent", "subgradient-recalled"},
            False,
        ),
        ({"contraction": 0.5, "time_varying": True}, {"convex-descent"}, False),
        ({"method": "diging", "contraction": 0.5, "convexity": 0.1, "criterion": "rate"}, set(), True),
        ({"method": "extra", "contraction": 0.5, "criterion": "distance"}, {"extra-step"}, True),
        ({"contraction": 0.9, "criterion": "consensus"}, set(), True),
    ],
)
def test_what_there_is_not_is_not_drawn(parameters: dict, bounds: set[str], rebuilt: bool) -> None:
    found = over_steps(certify(steps=2, lr=0.3, **parameters), samples=3)
    assert set(found.bounds) == bounds
    assert np.isfinite(found.attained).all() == rebuilt
    assert len(found.on_the_way) == (2 if rebuilt else 0)
    (ax,) = steps_figure(found).axes
    assert ("its instance, run" in [line.get_label() for line in ax.lines]) == rebuilt
    assert [row["attained"] is not None for row in found.to_dict()] == [rebuilt] * 2


def test_many_steps_cost_a_dozen_certificates() -> None:
    found = over_steps(certify(contraction=0.5, steps=14, lr=0.01, criterion="last"), samples=2)
    assert len(found.steps) == 12
    assert (found.steps[0], found.steps[-1]) == (1, 14)
    assert found.samples.shape == (2, 14)


def test_tightness_has_a_line_for_every_bound_tightest_first() -> None:
    figure = tightness_figure(ROWS)
    (ax,) = figure.axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["gap-ring", "convex-descent"]
    marks = {(str(line.get_marker()), *at) for line in ax.lines for at in np.asarray(line.get_xydata()).tolist()}
    assert ("s", 1.1, 1.0) in marks, "the smallest of all families and of the search"
    assert ("D", 2.0, 1.0) in marks
    assert (">", 1e3, 1.0) in marks, "what is beyond is drawn at the edge"
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "over the exact worst case, smallest"


def test_a_broken_bound_is_crossed_out() -> None:
    figure = tightness_figure([replace(ROW, violations=2, smallest=0.7)])
    assert "X" in {str(line.get_marker()) for line in figure.axes[0].lines}
    assert figure.legends[0].get_texts()[-1].get_text() == "broken"
    assert figure.axes[0].get_xlim()[0] < 0.7


def test_many_bounds_stand_in_two_columns() -> None:
    figure = tightness_figure([replace(ROW, bound=f"bound-{k}") for k in range(31)])
    assert [len(ax.get_yticklabels()) for ax in figure.axes] == [16, 15]


def test_a_bound_that_never_applied_leaves_its_line_empty() -> None:
    nowhere = replace(ROW, instances=0, elsewhere=10, smallest=math.inf, median=math.inf, searched=math.inf)
    (ax,) = tightness_figure([nowhere]).axes
    assert not [line for line in ax.lines if line.get_marker() == "s" and np.size(line.get_xdata())]


def test_certify_draws_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.png"
    line = ["theory", "certify", "--contraction", "0.5", "--steps", "2", "--lr", "0.4", "--figure", str(path)]
    assert main([*line, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert path.read_bytes()[:4] == b"\x89PNG"
    last = said["over_steps"][-1]
    assert last["value"] == said["value"]
    assert last["sampled"] < last["value"] < last["bounds"]["convex-descent"]
    assert main(line) == 0
    assert "largest sampled" in capsys.readouterr().out


def test_the_ledger_draws_and_tells_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.theory.ledger.ledger", lambda *_, **__: ROWS)
    missing = (Family("convex-descent", "certificate", lambda _: None, needs="clarabel"),)  # type: ignore[arg-type]
    monkeypatch.setattr("dissensus.theory.trials.left_out", lambda: missing)
    path = tmp_path / "tightness.svg"
    assert main(["theory", "ledger", "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(b"<?xml")
    assert capsys.readouterr().err == (
        'note: no exact worst cases of convex-descent without clarabel: pip install "dissensus[theory]"\n'
    )


def test_a_figure_is_png_svg_or_pdf(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "certify", "--contraction", "0.5", "--steps", "1", "--lr", "0.4", "--figure", "a.txt"]) == 2
    assert "the suffix must be .svg, .png or .pdf" in capsys.readouterr().err
