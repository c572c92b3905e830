"""Augmentation: what is drawn belongs to (seed, step, worker), and what is done to an input is what is said."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.cell import Setup, draw_batches
from dissensus.experiments.config import Study
from dissensus.experiments.data import AUGMENTATIONS, augmentation
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell

SHAPES = {"crop-flip": (3, 8, 6), "crop": (3, 8, 6), "flip": (3, 8, 6), "roll": (2, 30)}
BLACK = (-1.0, 0.5, 2.0)


def inputs(n: int, b: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(numpy_stream(0, "test").standard_normal((n, b, *shape)))


@pytest.mark.parametrize("name", AUGMENTATIONS.names())
def test_a_worker_is_treated_alike_alone_and_among_others(name: str) -> None:
    change, x = augmentation(name, SHAPES[name], BLACK), inputs(6, 5, SHAPES[name])
    before = x.clone()
    together = change(x, 9, 31)
    assert torch.equal(x, before)
    for lo, hi in ((0, 3), (3, 6), (5, 6)):
        assert torch.equal(change(x[lo:hi], 9, 31, workers=range(lo, hi)), together[lo:hi])
    assert torch.equal(change(x[:2], 9, 31), together[:2])
    assert not torch.equal(change(x, 9, 32), together)
    assert not torch.equal(change(x, 8, 31), together)
    alike = change(x[:1].expand_as(x), 9, 31)
    assert not torch.equal(alike[0], alike[1])


@pytest.mark.parametrize("name", AUGMENTATIONS.names())
def test_the_global_generators_stay_as_they_were(name: str) -> None:
    torch.manual_seed(3)
    states = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    augmentation(name, SHAPES[name])(inputs(2, 3, SHAPES[name]), 0, 0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()) == states[1]  # noqa: NPY002


@pytest.mark.parametrize(("name", "padding", "mirror"), [("crop", 2, False), ("crop-flip", 2, True), ("flip", 0, True)])
def test_every_result_is_a_window_of_the_padded_image_and_all_windows_occur(
    name: str, padding: int, mirror: bool
) -> None:
    x = inputs(1, 1, (3, 8, 6)).expand(4, 150, 3, 8, 6)
    parameters = {"padding": padding} if padding else {}
    results = augmentation(name, (3, 8, 6), BLACK, parameters)(x, 0, 0).flatten(0, 1).numpy()
    padded = np.broadcast_to(np.reshape(BLACK, (3, 1, 1)), (3, 8 + 2 * padding, 6 + 2 * padding)).copy()
    padded[:, padding : padding + 8, padding : padding + 6] = x[0, 0]
    windows = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            window = padded[:, top : top + 8, left : left + 6]
            windows[window.tobytes()] = (top, left, False)
            if mirror:
                windows[np.ascontiguousarray(window[:, :, ::-1]).tobytes()] = (top, left, True)
    seen = [windows[r.tobytes()] for r in results]
    assert set(seen) == set(windows.values())
    counts = np.array([seen.count(w) for w in windows.values()])
    expected = len(seen) / len(windows)
    # uniform: chi-square over the windows, mean k, standard deviation sqrt(2 k); five of them
    k = len(windows) - 1
    assert np.sum((counts - expected) ** 2 / expected) < k + 5 * np.sqrt(2 * k)


def test_roll_shifts_around_the_end() -> None:
    x = torch.arange(30.0).expand(1, 40, 2, 30)
    results = augmentation("roll", (2, 30), (), {"reach": 3})(x, 0, 0)[0]
    shifts = {int(r[0, 0]) for r in results}
    assert shifts == {27, 28, 29, 0, 1, 2, 3}
    for r in results:
        assert torch.equal(r, torch.roll(x[0, 0], -int(r[0, 0]), dims=1))


def test_augmentation_refuses_what_has_no_sides() -> None:
    with pytest.raises(ConfigError, match=r"'crop-flip' needs images .* got \(64,\); .* set data\.images = true"):
        augmentation("crop-flip", (64,))
    with pytest.raises(ConfigError, match=r"'roll' needs signals of shape \(channels, length\), got \(1, 8, 8\)"):
        augmentation("roll", (1, 8, 8))
    with pytest.raises(ConfigError, match="augmentation of 2 rows got the names of 3 workers"):
        augmentation("flip", (1, 4, 4))(torch.zeros(2, 1, 1, 4, 4), 0, 0, workers=range(3))


def study(*overrides: str) -> Study:
    return load(
        (),
        overrides,
        name="tiny",
        data={"name": "digits", "images": True, "augment": "crop-flip", "padding": 1},
        model={"name": "cnn", "channels": 2},
        train={"steps": 4, "workers": 4, "batch": 8},
        probes={"every": 2, "curvature_every": 2, "samples": 32, "noise_batches": 4, "trace_error": 0.5},
        arms={"dsgd": {"algorithm": "dsgd"}},
    )


def test_batches_are_changed_by_step_alone_and_so_after_a_resume() -> None:
    whole, resumed, plain = (Setup.build(load_.cell("dsgd", 0)) for load_ in (study(), study(), load((), [], **bare())))
    for t in range(6):
        whole.batch(t)
    for t in (5, 2):
        (x, y), (again, labels), (raw, raw_labels) = (s.batch(t) for s in (whole, resumed, plain))
        assert torch.equal(x, again)
        assert torch.equal(y, labels)
        assert torch.equal(y, raw_labels)
        assert x.shape == raw.shape
        assert not torch.equal(x, raw)
    assert torch.equal(whole.data.train_x, plain.data.train_x)
    assert torch.equal(whole.train_batches[0][0], plain.train_batches[0][0])


def test_the_stream_of_a_batch_is_that_of_its_step() -> None:
    changed, plain = Setup.build(study().cell("dsgd", 0)), Setup.build(load((), [], **bare()).cell("dsgd", 0))
    crop = augmentation("crop-flip", (1, 8, 8), changed.data.black, {"padding": 1})
    for t in (0, 1, 57):
        assert torch.equal(changed.batch(t)[0], crop(plain.batch(t)[0], 0, t))


def bare() -> dict:
    tree = study().model_dump(mode="json", exclude_none=True)
    del tree["data"]["augment"], tree["data"]["padding"]
    return tree


def test_the_noise_that_is_probed_is_that_of_changed_inputs() -> None:
    changed, plain = Setup.build(study().cell("dsgd", 0)), Setup.build(load((), [], **bare()).cell("dsgd", 0))
    for (x, y), (raw, labels) in zip(draw_batches(changed, 2, 3), draw_batches(plain, 2, 3), strict=True):
        assert torch.equal(y, labels)
        assert not torch.equal(x, raw)
    assert torch.equal(draw_batches(changed, 2, 3)[1][0], draw_batches(changed, 2, 5)[1][0])


def test_a_run_with_augmentation_is_reproduced_by_its_configuration(tmp_path: Path) -> None:
    first = run_cell(study().cell("dsgd", 0), tmp_path / "a")
    again = run_cell(load(first.path / "config.toml"), tmp_path / "b")
    hashes = [Run.read(o.path).summary["parameters_hash"] for o in (first, again)]
    assert hashes[0] == hashes[1]
