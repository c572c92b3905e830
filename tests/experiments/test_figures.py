from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.curves import Curve, Finals, plus_minus
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.curvature import curvature_figure
from dissensus.experiments.figures.disagreement import consensus_figure, envelope_figure
from dissensus.experiments.figures.learning import learning_figure
from dissensus.experiments.figures.style import PALETTE, save, svg
from dissensus.experiments.figures.topology import topology_figure
from dissensus.theory import from_function, topology

ARMS = ("central", "DSGD", "AC")
STEPS = np.arange(0, 101, 10)


def curves(scale: float = 1.0, seeds: int = 3) -> dict[str, Curve]:
    rng = np.random.default_rng(0)
    return {a: Curve(STEPS, scale * np.exp(-STEPS / 50) * (1 + 0.1 * rng.random((seeds, 11)))) for a in ARMS}


def with_zero(found: dict[str, Curve]) -> dict[str, Curve]:
    return found | {"central": Curve(STEPS, np.zeros((3, 11)))}


def test_a_band_is_the_t_interval_and_has_no_width_for_one_seed() -> None:
    low, high = Curve(np.zeros(1), np.array([[1.0], [2.0], [3.0]])).band()
    assert (low[0], high[0]) == pytest.approx((2 - 4.302652730 / 3**0.5, 2 + 4.302652730 / 3**0.5))
    one = Curve(np.zeros(1), np.array([[5.0]]))
    assert one.band() == (one.mean, one.mean)
    assert Finals(np.array([1.0, 2.0, 3.0]), np.zeros(3)).interval == pytest.approx((low[0], high[0]))


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.9571, 0.0021, "0.9571 ± 0.0021"),
        (93.46, 0.71, "93.5 ± 0.7"),
        (207.0, 101.0, "207 ± 101"),
        (3.5e-9, 1.7e-9, "(3.5 ± 1.7)·10⁻⁹"),
        (0.0, 0.0, "0"),
        (1.25, 0.0, "1.25"),
        (float("nan"), 1.0, "–"),
    ],
)
def test_numbers_are_written_to_the_digits_of_their_half_width(mean: float, half: float, text: str) -> None:
    assert plus_minus(mean, half) == text


def test_learning_has_three_labelled_panels_with_units() -> None:
    figure = learning_figure(curves(), curves(), curves(0.9))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Training loss", "Test loss", "Test accuracy"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["cross-entropy (nats)"] * 2 + ["share correct (%)"]
    assert all(ax.get_xlabel() == "step" and len(ax.lines) == 3 for ax in figure.axes)
    assert [line.get_label() for line in figure.axes[0].lines] == list(ARMS)
    assert len({str(line.get_marker()) for line in figure.axes[0].lines}) == 3


def test_consensus_distance_is_logarithmic_and_says_which_arm_is_zero() -> None:
    measured = with_zero(curves())
    gamma = {a: Curve(STEPS, np.ones((3, 11))) for a in ARMS}
    figure = consensus_figure(measured, with_zero(curves(1.1)), gamma, Curve(STEPS, np.linspace(1, 0, 11)))
    top = figure.axes[0]
    assert top.get_yscale() == "log"
    legend = top.get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["central: exactly 0", "DSGD", "AC", "dashed: theory, nothing fitted"]
    dashed = [line for line in top.lines if line.is_dashed()]
    assert len(dashed) == 2
    np.testing.assert_allclose(np.asarray(dashed[0].get_ydata()), np.exp(np.log(curves(1.1)["DSGD"].values).mean(0)))


def test_without_a_prediction_nothing_dashed_is_promised() -> None:
    nothing = {a: Curve(np.zeros(1), np.full((3, 1), np.nan)) for a in ARMS}
    figure = consensus_figure(curves(), nothing, nothing, Curve(STEPS, np.linspace(1, 0.1, 11)))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(ARMS)


def test_an_arm_keeps_its_colour_where_another_is_missing() -> None:
    nothing = {"central": Curve(np.zeros(1), np.full((3, 1), np.nan))}
    figure = envelope_figure(with_zero(curves()), with_zero(curves()), with_zero(curves()), curves() | nothing)
    right = figure.axes[1]
    assert [line.get_color() for line in right.lines[:2]] == list(PALETTE[1:3])
    assert right.get_yscale() == "log"


def test_curvature_shows_every_seed_with_its_own_error_and_the_mean_with_its_interval() -> None:
    finals = {a: Finals(np.array([1.0, 2.0, 3.0]) + i, np.array([0.1, 0.2, 0.3])) for i, a in enumerate(ARMS)}
    figure = curvature_figure(finals, finals)
    left = figure.axes[0]
    assert [label.get_text() for label in left.get_yticklabels()] == list(ARMS)
    seeds, mean = left.containers[0], left.containers[1]
    half = [(s[1][0] - s[0][0]) / 2 for s in seeds[2][0].get_segments()]
    assert half == pytest.approx([0.1, 0.2, 0.3])
    (segment,) = mean[2][0].get_segments()
    assert (segment[0][0], segment[1][0]) == pytest.approx(finals["central"].interval)


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "complete", "star", "erdos-renyi"])
def test_a_topology_is_drawn_with_spectrum_and_contraction(name: str, tmp_path: Path) -> None:
    graph = topology(name, 8)
    figure = topology_figure(graph, tmp_path / "sub" / "t.png")
    assert (tmp_path / "sub" / "t.png").stat().st_size > 5000
    assert len(figure.axes) == min(4, graph.period or 4) + 2
    contraction = figure.axes[-1]
    if name == "ring":
        rho = float(np.sort(np.abs(np.linalg.eigvalsh(graph[0].dense())))[-2])
        np.testing.assert_allclose(np.asarray(contraction.lines[0].get_ydata()), rho ** np.arange(1, 31), rtol=1e-9)
    if name == "one-peer-exponential":
        assert any(t.get_text() == "exact average\nafter 3" for t in contraction.texts)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_small_and_large_topologies_are_drawn(n: int) -> None:
    topology_figure(topology("complete", n))


def test_a_schedule_that_is_drawn_anew_shows_its_first_rounds() -> None:
    graph = from_function(lambda t: topology("ring", 4)[0].adapted(0.1 + 0.1 * (t % 3)), 4)
    assert len(topology_figure(graph, rounds=3).axes) == 5


def test_a_graph_nobody_could_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="with 1000 workers would show nothing: draw it with at most 512"):
        topology_figure(topology("ring", 1000))


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (svg(learning_figure(curves(), curves(), curves())) for _ in range(2))
    assert first == second
    assert b"<dc:date>" not in first
    for kind in ("png", "svg", "pdf"):
        for name in ("a", "b"):
            save(learning_figure(curves(), curves(), curves()), tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot write a figure as 'x\.jpg': the suffix must be \.svg, \.png or \.pdf"
    ):
        save(learning_figure(curves(), curves(), curves()), tmp_path / "x.jpg")


def test_figures_leave_the_settings_of_matplotlib_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    svg(learning_figure(curves(), curves(), curves()))
    assert dict(mpl.rcParams) == before
