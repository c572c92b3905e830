"""The generators of a process, taken down and put back: every one of them draws what it would have drawn."""

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.nest import read_nest, write_nest
from dissensus.algorithms.engines.generators import generators, restore_generators


def draws() -> list[Any]:
    """From every generator, the half-used Gaussian pairs of numpy and Python among it."""
    return [
        torch.rand(5).tolist(),
        torch.randn(3).tolist(),
        np.random.rand(3).tolist(),  # noqa: NPY002
        np.random.standard_normal(),  # noqa: NPY002
        random.random(),
        random.gauss(0.0, 1.0),
    ]


@pytest.mark.parametrize("before", range(3))
def test_they_draw_what_they_would_have_drawn_through_a_file(before: int, tmp_path: Path) -> None:
    for _ in range(before):
        draws()
    write_nest(tmp_path / "g.pt", generators())
    expected = [draws() for _ in range(700)]  # past the end of the 624 words of a Mersenne twister
    restore_generators(read_nest(tmp_path / "g.pt"))
    assert [draws() for _ in range(700)] == expected


def test_they_travel_between_processes_by_pickle() -> None:
    saved = pickle.loads(pickle.dumps(generators()))
    expected = draws()
    restore_generators(saved)
    assert draws() == expected


def test_taking_them_down_draws_nothing() -> None:
    saved = generators()
    expected = draws()
    restore_generators(saved)
    generators()
    assert draws() == expected
    assert draws() != expected


def test_what_is_taken_down_does_not_follow_the_generators() -> None:
    saved = generators()
    expected = draws()
    for _ in range(400):
        draws()
    restore_generators(saved)
    assert draws() == expected


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.SFC64, np.random.Philox])
def test_a_generator_of_another_kind_is_kept_too(kind: type, tmp_path: Path) -> None:
    kept = np.random.get_state(legacy=False)["bit_generator"]  # noqa: NPY002
    assert kept == "MT19937"
    own, set_bit_generator = np.random.mtrand._rand._bit_generator, getattr(np.random, "set_bit_generator")  # noqa: B009
    try:
        set_bit_generator(kind(3))
        write_nest(tmp_path / "g.pt", generators())
        expected = draws()
        restore_generators(read_nest(tmp_path / "g.pt"))
        assert draws() == expected
    finally:
        set_bit_generator(own)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python", "cuda"])
def test_a_lacking_one_is_named_and_none_is_touched(kind: str) -> None:
    saved = generators()
    expected = draws()
    restore_generators(saved)
    with pytest.raises(
        AlgorithmError, match=f"the saved generators lack {kind!r}: expected torch, numpy, python, cuda"
    ):
        restore_generators({key: value for key, value in saved.items() if key != kind})
    assert draws() == expected
