"""Figures of curvature: what is drawn is what was given, and what cannot be drawn is refused."""

import numpy as np
import pytest

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.graph_modes import mode_figure
from dissensus.experiments.figures.landscape import plane_figure, slice_figure
from dissensus.experiments.figures.spectrum import density_figure
from dissensus.experiments.figures.style import svg
from dissensus.experiments.figures.training import Track, training_figure

LINE = np.linspace(-1, 1, 11)


def test_a_slice_has_its_parabola() -> None:
    loss = 2 + 0.3 * LINE + 1.5 * LINE**2
    figure = slice_figure({"a": (LINE, loss), "b": (LINE, loss)}, {"a": 3.0})
    left, right = figure.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("a", "b")
    drawn, _, parabola = left.lines
    np.testing.assert_allclose(np.asarray(drawn.get_ydata()), loss)
    np.testing.assert_allclose(np.asarray(parabola.get_ydata()), loss, rtol=1e-12)
    assert len(right.lines) == 2
    low, high = left.get_ylim()
    assert low < loss.min() < loss.max() < high


def test_a_parabola_far_off_does_not_press_the_loss_flat() -> None:
    low, high = slice_figure({"a": (LINE, LINE**2)}, {"a": 1e6}).axes[0].get_ylim()
    assert high - low < 3


def test_a_plane_shows_rise_model_and_workers() -> None:
    losses = LINE[:, None] ** 2 + 2 * LINE[None, :] ** 2 + 7
    marks = np.array([[0.1, 0.2], [-0.3, 0.4]])
    figure = plane_figure((LINE, LINE), losses, ["one", "two"], marks, "T")
    ax, bar = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("one", "two", "T")
    model, workers = ax.lines
    assert (model.get_xdata()[0], model.get_ydata()[0]) == (0, 0)  # type: ignore[index]
    np.testing.assert_array_equal(np.stack([workers.get_xdata(), workers.get_ydata()], 1), marks)
    assert ax.get_aspect() == 1
    assert bar.get_ylim() == pytest.approx((0, 3))
    wide = plane_figure((LINE, LINE[3:8]), losses[:, 3:8], ["one", "two"]).axes[0]
    assert (*wide.get_xlim(), *wide.get_ylim()) == pytest.approx((-1, 1, LINE[3], LINE[7]))
    plane_figure((LINE, LINE), np.ones((11, 11)), ["flat", "flat"])


def test_a_density_is_logarithmic_and_shows_single_eigenvalues() -> None:
    grid = np.linspace(-1, 5, 400)
    density = np.exp(-((grid / 0.1) ** 2) / 2) / (0.1 * np.sqrt(2 * np.pi))
    figure = density_figure(grid, density, [3.0, 4.5], (density / 2, density * 2), width=0.1, size=1000)
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    segments = next(c for c in ax.collections if hasattr(c, "get_segments") and len(c.get_segments()) == 2)  # type: ignore[attr-defined]
    ends = [segment[:, 0] for segment in segments.get_segments()]  # type: ignore[attr-defined]
    assert [end[0] for end in ends] == [3.0, 4.5]
    top = segments.get_segments()[0][1][1]  # type: ignore[attr-defined]
    assert top == pytest.approx(1 / (1000 * 0.1 * np.sqrt(2 * np.pi)))
    low, high = ax.get_ylim()
    assert low < top < density.max() < high
    assert "smoothed by 0.1" in ax.get_xlabel()
    legend = density_figure(grid, density).axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["density"]


def test_modes_are_drawn_per_dimension() -> None:
    figure = mode_figure([0.8, -0.3], [4.0, 1.0], [2.0, 3.0], [2, 1], 0.5, axis="λ")
    left, right = figure.axes
    np.testing.assert_allclose(np.asarray(left.lines[0].get_ydata()), [2.0, 1.0])
    np.testing.assert_allclose(np.asarray(right.lines[0].get_ydata()), [2.0, 3.0])
    assert right.lines[1].get_ydata()[0] == 0.5  # type: ignore[index]
    assert right.get_yscale() == "log"
    assert mode_figure([0.5], [0.0], [-1.0], [1]).axes[1].get_yscale() == "linear"


def rows(*pairs: tuple[int, float], half: float = 0.1) -> list[dict]:
    return [{"step": t, "value": v, "interval": [v - half, None if t == 9 else v + half]} for t, v in pairs]


def test_training_shows_values_with_their_intervals() -> None:
    track = Track.of([*rows((5, 2.0), (0, 1.0)), {"step": 7, "value": None}, *rows((9, 3.0))])
    assert track.steps.tolist() == [0, 5, 9]
    assert np.isnan(track.high[-1])
    panels = {"Eigenvalues": {"λ1": track, "λ2": Track.of(rows((0, 0.5)))}, "nothing": {"x": Track.of([])}}
    figure = training_figure(panels, {"Eigenvalues": {"2 / lr": 4.0, "far": 1e9}})
    (ax,) = figure.axes
    assert ax.get_ylim()[0] == 0
    (segments,) = ax.containers[0][2]
    assert segments.get_segments()[0][:, 1].tolist() == pytest.approx([0.9, 1.1])
    assert segments.get_segments()[2][:, 1].tolist() == pytest.approx([2.9, 3.0])
    legend = ax.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"λ1", "λ2", "2 / lr"}
    wide = training_figure({"a": {"b": Track.of(rows((0, 1.0), (1, 100.0)))}})
    assert wide.axes[0].get_yscale() == "log"


def test_the_same_numbers_give_the_same_bytes() -> None:
    losses = LINE[:, None] ** 2 + LINE[None, :] ** 2
    first, second = (svg(plane_figure((LINE, LINE), losses, ["a", "b"])) for _ in range(2))
    assert first == second


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a plane needs losses over its two axes, at least 3 by 3, got"):
        plane_figure((LINE[:2], LINE[:2]), np.ones((2, 2)), ["a", "b"])
    with pytest.raises(ConfigError, match=r"the loss is not finite everywhere in the plane: take a smaller reach"):
        plane_figure((LINE, LINE), np.full((11, 11), np.inf), ["a", "b"])
    with pytest.raises(ConfigError, match=r"a figure of slices needs at least one slice"):
        slice_figure({})
    with pytest.raises(ConfigError, match=r"a density needs one value per point of its grid, got \(3,\) on \(11,\)"):
        density_figure(LINE, np.ones(3))
    with pytest.raises(ConfigError, match=r"a figure of modes needs one factor, energy, curvature and multiplicity"):
        mode_figure([1.0], [1.0, 2.0], [1.0], [1])
    with pytest.raises(ConfigError, match=r"there is nothing to draw over training"):
        training_figure({"a": {}})
