"""One round on stacked rows: every route against the dense product in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms.engines.mixing import LONG_ROW, Mixing, round_of
from dissensus.theory import MixingMatrix, from_function

CPU = torch.device("cpu")


def one_peer_uneven(n: int) -> np.ndarray:
    w = np.eye(n)
    for i in range(0, n - 1, 2):
        a = 0.1 + 0.8 * i / n
        w[i, i] = w[i + 1, i + 1] = 1 - a
        w[i, i + 1] = w[i + 1, i] = a
    return w


def pairs(n: int, apart: int) -> np.ndarray:
    w = np.eye(n)
    for i in range(n - apart if n - apart < apart else apart):
        w[[i, i, i + apart, i + apart], [i, i + apart, i, i + apart]] = 0.7, 0.3, 0.3, 0.7
    return w


def mirrored(n: int) -> np.ndarray:
    return 0.6 * np.eye(n) + 0.4 * np.eye(n)[::-1]


def wide_ring(n: int) -> np.ndarray:
    eye = np.eye(n)
    return 0.5 * eye + 0.3 * np.roll(eye, 1, 1) + 0.2 * np.roll(eye, 2, 1)


def push(n: int) -> np.ndarray:
    w = np.eye(n)
    w[1, 0] = 3.0
    return w / w.sum(axis=0)


CASES: dict[str, tuple[Any, str]] = {
    "nobody": (np.eye, "doubly"),
    "one-peer": (lambda n: (np.eye(n) + np.roll(np.eye(n), 1, 1)) / 2, "doubly"),
    "one-peer-uneven": (one_peer_uneven, "doubly"),
    "one-peer-push": (push, "column"),
    "permutation": (lambda n: np.roll(np.eye(n), 3, 1), "doubly"),
    "pairs-apart": (lambda n: pairs(n, n // 2), "doubly"),
    "pairs-mirrored": (mirrored, "doubly"),
    "wide-ring": (wide_ring, "doubly"),
    "full": (lambda n: np.full((n, n), 1 / n), "doubly"),
}


@pytest.mark.parametrize("n", [5, 69], ids=["small", "large"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_round_is_the_dense_product(case: str, n: int) -> None:
    build, promise = CASES[case]
    w = MixingMatrix.of(build(n), promise)  # type: ignore[arg-type]
    value = np.random.default_rng(0).normal(size=(n, 7))
    given = torch.from_numpy(value.copy())
    got = round_of(w, torch.float64, CPU)(given)
    np.testing.assert_allclose(got.numpy(), w.dense() @ value, rtol=0, atol=1e-14)
    assert got.data_ptr() != given.data_ptr()
    assert np.array_equal(given.numpy(), value)
    single = round_of(w, torch.float32, CPU)(given.float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), w.dense() @ value, rtol=0, atol=1e-5)


def test_long_rows_are_mixed_like_short_ones() -> None:
    w = MixingMatrix.of(one_peer_uneven(5))
    value = torch.randn(5, LONG_ROW + 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mix = round_of(w, torch.float64, CPU)
    np.testing.assert_allclose(mix(value).numpy(), w.dense() @ value.numpy(), rtol=0, atol=1e-14)
    assert torch.equal(mix(value)[:, :100], mix(value[:, :100]))


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("columns", [(0, 300), (50, 100), (250, 300), (100, 200), (0, 60), (5, 105), (5, 96), (7, 8)])
def test_a_strip_is_mixed_where_it_lies(case: str, columns: tuple[int, int]) -> None:
    """Whether or not the wide tensor is a whole number of strips wide; what lies beside the strip is not read."""
    build, promise = CASES[case]
    w = MixingMatrix.of(build(16), promise)  # type: ignore[arg-type]
    strip = slice(*columns)
    wide = torch.full((16, 300), float("nan"))
    wide[:, strip] = torch.randn(16, columns[1] - columns[0], generator=torch.Generator().manual_seed(0))
    given, mix = wide.clone(), round_of(w, torch.float32, CPU)
    for at in (wide[:, strip], wide.t().contiguous().t()[:, strip], wide.repeat_interleave(2, 1)[:, ::2][:, strip]):
        expected = w.dense() @ at.double().numpy()
        np.testing.assert_allclose(mix(at).numpy(), expected, rtol=0, atol=1e-6)
    same = wide[:1, strip].expand(16, -1)
    np.testing.assert_allclose(mix(same).numpy(), w.dense() @ same.double().numpy(), rtol=0, atol=1e-6)
    assert torch.equal(wide.nan_to_num(), given.nan_to_num())


def test_one_peer_rounds_do_not_tell_equal_workers_apart() -> None:
    w = MixingMatrix.of(one_peer_uneven(9))
    row = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_of(w, torch.float32, CPU)(row.expand(9, -1)), row.expand(9, -1))


def test_rounds_follow_the_step_and_are_kept(schedules: dict) -> None:
    topology = schedules["one-peer-exponential"](8)
    mixing, value = Mixing(topology, torch.float64, CPU), torch.eye(8, dtype=torch.float64)
    for t in range(7):
        np.testing.assert_allclose(mixing(t, value).numpy(), topology[t].dense(), rtol=0, atol=1e-15)
    assert len(mixing._rounds) == 3


def test_a_schedule_that_is_drawn_anew_keeps_one_round_only() -> None:
    def draw(t: int) -> np.ndarray:
        order = np.random.default_rng(t).permutation(6)
        return (np.eye(6) + np.eye(6)[order]) / 2

    mixing, value = Mixing(from_function(draw, 6), torch.float64, CPU), torch.eye(6, dtype=torch.float64)
    for t in (0, 1, 5, 5, 2):
        np.testing.assert_allclose(mixing(t, value).numpy(), draw(t), rtol=0, atol=1e-15)
        assert len(mixing._rounds) == 1
