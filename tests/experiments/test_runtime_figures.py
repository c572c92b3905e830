"""Figures of the runtime: bars end when the recursion says, the break-even line is where the surface is 1."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from scipy.interpolate import RegularGridInterpolator

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.runtime import (
    GAMMAS,
    Mark,
    SpeedupSurface,
    size_figure,
    speedup_by_size,
    speedup_surface,
    surface_figure,
)
from dissensus.experiments.figures.style import svg
from dissensus.experiments.figures.timeline import LOOKS, Timeline, timeline, timeline_figure
from dissensus.theory import Topology, topology
from dissensus.theory.runtime import Constant, LogNormal, all_reduce_times, finish_times, pace
from dissensus.theory.runtime.closed_forms import all_reduce_pace
from dissensus.theory.runtime.links import even_rounds
from dissensus.theory.runtime.recursion import ORDERS, Order
from dissensus.theory.runtime.regime import Rivals

ROUNDS = even_rounds(topology("one-peer-exponential", 4), 0.7)
NOISE = LogNormal(0.4)
LAST = 1e-12
"""Of times below 10: the left edge and the width of a bar are added again, which costs a few roundings."""


def one_peer(n: int) -> Topology:
    return topology("one-peer-exponential", n)


def extents(ax: Axes, kind: str) -> set[tuple[int, float, float]]:
    """(worker, begin, end) of all bars of a kind."""
    found = [bar for one in ax.containers if one.get_label() == kind for bar in one]  # type: ignore[union-attr]
    return {(round(b.get_y() + 0.3), b.get_x(), b.get_x() + b.get_width()) for b in found}  # type: ignore[union-attr]


def last_ends(ax: Axes, ended: np.ndarray) -> np.ndarray:
    """For every step of every worker, the latest end of a bar that begins within it."""
    bars = set.union(*(extents(ax, kind) for kind in LOOKS))
    found = np.full(ended[1:].shape, np.nan)
    for k, i in np.ndindex(found.shape):
        low, high = ended[k, i] - LAST, ended[k + 1, i] - LAST
        found[k, i] = max(end for worker, begin, end in bars if worker == i and low <= begin < high)
    return found


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("begins", "buckets"), [(None, 1), (0.3, 3)])
def test_bars_end_when_the_recursions_say(order: Order, every: int, begins: float | None, buckets: int) -> None:
    found = timeline(ROUNDS, NOISE, 0.5, order=order, every=every, begins=begins, buckets=buckets, seed=3)
    above, below = timeline_figure(found).axes
    apart = finish_times(ROUNDS, found.computed, order=order, every=every)
    together = all_reduce_times(0.5, found.computed, begins=begins, buckets=buckets)
    np.testing.assert_allclose(last_ends(below, apart), apart[1:], rtol=0, atol=LAST)
    everybody = np.repeat(together[:, None], 4, axis=1)
    np.testing.assert_allclose(last_ends(above, everybody), everybody[1:], rtol=0, atol=LAST)


@pytest.mark.parametrize("order", ORDERS)
def test_both_panels_compute_from_one_table(order: Order) -> None:
    found = timeline(ROUNDS, NOISE, 0.5, order=order, seed=3)
    for ax in timeline_figure(found).axes:
        bars = sorted(extents(ax, "computing"))
        durations = np.array([end - begin for _, begin, end in bars]).reshape(4, 5)
        np.testing.assert_allclose(durations, found.computed.T, rtol=0, atol=LAST)


def test_communication_of_awc_is_a_thin_bar_under_computing() -> None:
    found = timeline(ROUNDS, NOISE, 0.5, seed=3)
    _, below = timeline_figure(found).axes
    heights = {one.get_label(): {(b.get_y() % 1, b.get_height()) for b in one} for one in below.containers}  # type: ignore[union-attr]
    ((thin_at, thin),), ((at, main),) = (
        [*{(round(y, 9), round(h, 9)) for y, h in heights[kind]}] for kind in ("communicating", "computing")
    )
    assert thin < main / 2
    assert thin_at == pytest.approx((at + main) % 1, abs=0.1)
    ready = np.stack([r.latest(e) for r, e in zip([*ROUNDS, *ROUNDS, *ROUNDS], found.schedule[:-1], strict=False)])
    sends = sorted((i, t) for row in ready for i, t in enumerate(row))
    bars = sorted(extents(below, "communicating"))
    np.testing.assert_allclose([b[1] for b in bars], [t for _, t in sends], rtol=0, atol=LAST)
    np.testing.assert_allclose([b[2] - b[1] for b in bars], 0.7, rtol=0, atol=LAST)


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_in_the_other_orders_a_worker_does_one_thing_at_a_time(order: Order) -> None:
    found = timeline(ROUNDS, NOISE, 0.5, order=order, seed=3)
    for ax in timeline_figure(found).axes:
        bars = sorted(set.union(*(extents(ax, kind) for kind in LOOKS)))
        for (worker, _, end), (following, begin, _) in pairwise(bars):
            assert worker != following or begin == pytest.approx(end, abs=LAST)


def test_overlapped_buckets_go_one_after_another_until_the_step_ends() -> None:
    found = timeline(ROUNDS, NOISE, 0.9, begins=0.3, buckets=3, steps=1, seed=3)
    sent = sorted(e for e in extents(timeline_figure(found).axes[0], "communicating") if e[0] == 0)
    slowest = found.computed.max()
    assert sent[0][1] == pytest.approx((0.3 + 0.7 / 3) * slowest, abs=LAST)
    assert [end - begin for _, begin, end in sent] == pytest.approx([0.3] * 3, abs=LAST)
    assert sent[0][2] <= sent[1][1] + LAST
    assert sent[2][2] == pytest.approx(found.all_reduce[1], abs=LAST)


def titles(found: Timeline) -> tuple[str, str, str]:
    figure = timeline_figure(found, unit="s")
    above, below = figure.axes
    return figure.get_suptitle(), above.get_title(loc="left"), below.get_title(loc="left")


def test_the_title_says_which_has_finished_first_and_by_how_much() -> None:
    at = partial(timeline, even_rounds(one_peer(4), 1.5), Constant(), steps=2)
    whole, above, below = titles(at(2.0))
    assert whole == "2 iterations of 4 workers: the decentralized schedule has finished 3.00 s (50 %) earlier"
    assert (above, below) == ("all-reduce: all done after 6.00", "decentralized, awc: all done after 3.00")
    assert titles(at(0.0))[0].endswith("has finished 1.00 s (50 %) later")
    assert titles(at(0.5))[0].endswith("has finished at the same time")
    one = timeline(even_rounds(topology("complete", 1), 1.5), Constant(), 0.0, steps=1, name="alone")
    assert titles(one)[0] == "1 iteration of 1 worker: the decentralized schedule has finished at the same time"


def test_kinds_are_told_apart_in_grey() -> None:
    grey = [np.dot(to_rgb(look["facecolor"]), (0.299, 0.587, 0.114)) for look in LOOKS.values()]
    assert min(np.diff(grey)) > 0.2, "computing is dark, communicating lighter, waiting light"
    assert [bool(look.get("hatch")) for look in LOOKS.values()] == [False, True, False]


def small(**changed: object) -> SpeedupSurface:
    settings = {"gammas": np.geomspace(0.1, 10.0, 13), "deviations": (0.0, 0.1, 0.3), "strips": 0, "iterations": 100}
    return speedup_surface(one_peer(4), 2.0, **(settings | changed))  # type: ignore[arg-type]


def fake(guaranteed: tuple = (), value: np.ndarray | None = None) -> SpeedupSurface:
    g, s = np.geomspace(0.1, 10.0, 9), np.array([0.0, 0.2, 0.4])
    value = np.add.outer(s, 1.5 - np.log10(g)) if value is None else value
    return SpeedupSurface(g, s, value, 0 * value, 0.2, guaranteed, "here")


def areas(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(p.get_xy())[:-1] for p in figure.axes[0].patches if isinstance(p, Polygon)]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("order", ORDERS)
def test_the_surface_is_all_reduce_over_the_simulated_schedule(order: Order) -> None:
    found = small(order=order, begins=0.4, buckets=2)
    computes = [LogNormal(s) for s in found.deviations]
    apart = pace(even_rounds(one_peer(4), 1.0), computes, factors=list(2 * found.gammas), order=order, iterations=100)
    together = [[all_reduce_pace(c, 4, g, begins=0.4, buckets=2) for g in found.gammas] for c in computes]
    np.testing.assert_allclose(found.value * apart.value, together, rtol=1e-12)
    np.testing.assert_allclose(found.standard_error / found.value, apart.standard_error / apart.value, rtol=1e-12)
    assert found.at(found.gammas[3], 0.1) == pytest.approx(found.value[1, 3], rel=1e-12)


def test_the_break_even_line_is_where_the_interpolated_surface_is_one() -> None:
    found = small()
    figure = surface_figure(found)
    (line,) = (c for c in figure.axes[0].collections if c.get_label() == "break-even")
    assert isinstance(line, QuadContourSet)
    (path,) = line.get_paths()
    at = RegularGridInterpolator((found.deviations, found.gammas), found.value)
    points = np.asarray(path.vertices)
    assert len(points) >= 3
    np.testing.assert_allclose(at(points[:, ::-1]), 1.0, rtol=1e-9)
    assert points[:, 0].min() == pytest.approx(1.0, rel=1e-5), "without noise 1 + g = 2 g, in single precision"
    assert words(figure) == ["break-even: speed-up 1", "simulated: 1.2×"]


@pytest.mark.parametrize(("shift", "word"), [(2.0, "faster"), (-2.0, "slower")])
def test_where_there_is_no_break_even_it_says_so(shift: float, word: str) -> None:
    figure = surface_figure(fake(value=fake().value + shift))
    assert words(figure) == [f"no break-even: {word} everywhere here"]


def test_the_proven_area_is_that_of_the_theorem() -> None:
    found = small(strips=1, margin=0.3, gammas=np.geomspace(0.02, 4.0, 5), deviations=(0.2, 0.4))
    rivals = Rivals(2.0, 4)
    assert found.guaranteed[0] == (0.2, tuple(rivals.guaranteed_regime(0.3, LogNormal(0.2))))
    assert [d for d, _ in found.guaranteed] == [0.2, 0.4]
    figure = surface_figure(found)
    (area,) = areas(figure)
    corners = [(max(0.02, low), 0.2) for low, _ in found.guaranteed[0][1]]
    assert {tuple(corner) for corner in area.tolist()} >= {*corners, (found.guaranteed[1][1][0][1], 0.4)}
    assert words(figure)[-1] == "proven: ≥ 1.3×"
    assert figure.axes[0].patches[0].get_hatch()


@pytest.mark.parametrize(
    ("guaranteed", "drawn"),
    [
        (((0.0, ()), (0.2, ((0.0, 1e-3),)), (0.4, ((50.0, np.inf),))), []),
        (((0.0, ((0.5, 2.0),)), (0.4, ((0.0, np.inf),))), [[(0.5, 0), (0.1, 0.4), (10, 0.4), (2, 0)]]),
        (
            ((0.0, ((0.2, 0.3), (1.0, 2.0))), (0.2, ((0.25, 3.0),)), (0.4, ((5.0, 6.0),))),
            [[(0.2, 0), (0.25, 0.2), (3, 0.2), (0.3, 0)], [(1, 0), (2, 0)], [(5, 0.4), (6, 0.4)]],
        ),
    ],
)
def test_intervals_that_meet_make_one_area_within_the_axes(guaranteed: tuple, drawn: list) -> None:
    figure = surface_figure(fake(guaranteed))
    found = areas(figure)
    assert [area.tolist() for area in found] == [[pytest.approx(corner) for corner in area] for area in drawn]
    assert ("proven: ≥ 1.2×" in words(figure)) == bool(drawn)


def test_the_theorem_is_asked_most_where_its_ends_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def regime(_: Rivals, margin: float, compute: LogNormal) -> list[tuple[float, float]]:
        return [(max(0.0, 1.0 - 8 * compute.deviation), np.inf)] if compute.deviation < 0.3 else []

    monkeypatch.setattr(Rivals, "guaranteed_regime", regime)
    asked = np.array([d for d, _ in small(strips=16, deviations=(0.0, 1.6)).guaranteed])
    np.testing.assert_allclose(asked, [0.0, 0.1, 0.2, 0.3, 0.4, 0.8, 1.2, 1.6], atol=1e-12)
    assert small(strips=0).guaranteed == ()


def test_a_point_is_marked_with_its_speedup() -> None:
    figure = surface_figure(fake(), Mark(1.0, 0.1, "your cluster"))
    assert words(figure)[-1] == "your cluster: 1.60×"
    (point,) = figure.axes[0].lines
    assert np.asarray(point.get_xydata()).tolist() == [[1.0, 0.1]]
    with pytest.raises(
        ConfigError,
        match=r"the point 'far' at gamma 20 and deviation 0\.1 is not on the surface: it has gamma 0\.1 to 10 and "
        r"deviation 0 to 0\.4",
    ):
        surface_figure(fake(), Mark(20.0, 0.1, "far"))


def test_against_n_all_reduce_is_exact_and_bands_are_two_standard_errors() -> None:
    found = speedup_by_size(
        one_peer, lambda n: n / (2 * n - 2), 0.3, sizes=(2, 8), deviations=(0.0, 0.3), iterations=200
    )
    assert found.value[0] == pytest.approx([1.3, 1.3], rel=1e-6), "single precision of the simulation"
    apart = pace(even_rounds(one_peer(8), 0.3 * 8 / 14), LogNormal(0.3), iterations=200)
    assert found.value[1, 1] == pytest.approx(all_reduce_pace(LogNormal(0.3), 8, 0.3) / apart.value[0, 0], rel=1e-12)
    figure = size_figure(found)
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in ax.lines}
    assert set(lines) == {"break-even", "σ = 0", "σ = 0.3"}
    np.testing.assert_array_equal(lines["σ = 0.3"], found.value[1])
    band = np.asarray(ax.collections[1].get_paths()[0].vertices)
    at_8 = band[band[:, 0] == 8][:, 1]
    half = 2 * apart.standard_error[0, 0] / apart.value[0, 0] * found.value[1, 1]
    assert at_8.max() - at_8.min() == pytest.approx(2 * half, rel=1e-9)
    assert figure.get_suptitle() == "one-peer-exponential, awc, γ = 0.3, ω = 1 to 0.571, all-reduce after computing"


def of_sizes(**changed: object) -> Figure:
    settings = {"sizes": (2, 4), "deviations": (0.1, 0.2), "iterations": 64}
    return size_figure(speedup_by_size(one_peer, 0.5, 0.3, **(settings | changed)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figure", "x", "y"),
    [
        (lambda: timeline_figure(timeline(ROUNDS, NOISE, 0.5)), "time (mean computing times)", "worker"),
        (
            lambda: surface_figure(fake()),
            "γ: communication of all-reduce / mean computing time (ratio)",
            "σ: deviation of computing times / their mean (ratio)",
        ),
        (of_sizes, "workers n (number)", "speed-up (all-reduce / schedule)"),
    ],
)
def test_axes_say_what_they_show_and_in_which_unit(figure: object, x: str, y: str) -> None:
    axes = figure().axes  # type: ignore[operator]
    assert x in {ax.get_xlabel() for ax in axes}
    assert axes[0].get_ylabel() == y


def test_the_bar_of_the_surface_has_a_unit_and_its_axis_is_logarithmic() -> None:
    ax, bar = surface_figure(fake()).axes
    assert bar.get_ylabel() == "speed-up (time of all-reduce / time of the schedule)"
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: timeline_figure(timeline(ROUNDS, NOISE, 0.5, seed=seed)),
        lambda seed: surface_figure(small(seed=seed)),
        lambda seed: of_sizes(seed=seed),
    ],
)
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(draw: object) -> None:
    one, same, other = (svg(draw(seed)) for seed in (0, 0, 1))  # type: ignore[operator]
    assert one == same
    assert one != other


@pytest.mark.parametrize("axis", [{"gammas": (0.0, 1.0)}, {"gammas": (2.0, 1.0)}, {"deviations": (0.1,)}])
def test_a_surface_needs_increasing_axes(axis: dict) -> None:
    with pytest.raises(ConfigError, match="two or more gammas and deviations, both increasing, and gammas above 0"):
        small(**axis)


@pytest.mark.parametrize("changed", [{"sizes": ()}, {"deviations": ()}])
def test_a_speedup_by_size_needs_sizes_and_deviations(changed: dict) -> None:
    with pytest.raises(ConfigError, match="needs at least one size and one deviation"):
        of_sizes(**changed)


@pytest.mark.parametrize(("rounds", "steps"), [([], 5), (ROUNDS, 0)])
def test_a_timeline_needs_rounds_and_steps(rounds: list, steps: int) -> None:
    with pytest.raises(ConfigError, match="a timeline needs rounds and at least one step, got"):
        timeline(rounds, NOISE, 0.5, steps=steps)


def test_a_timeline_nobody_could_read_is_refused() -> None:
    found = timeline(even_rounds(topology("ring", 65), 0.1), NOISE, 0.5, steps=1)
    with pytest.raises(ConfigError, match="of 65 workers would show nothing: draw it with at most 64"):
        timeline_figure(found)


def test_the_default_surface_reaches_from_free_to_dominating_communication() -> None:
    assert (GAMMAS[0], GAMMAS[-1]) == pytest.approx((0.03, 30.0))
