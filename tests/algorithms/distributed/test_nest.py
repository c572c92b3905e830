"""A nest of tensors and plain values comes back as it was; what could not come back is refused with its place."""

import os
import pickle
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.nest import read_nest, write_nest

Pair = namedtuple("Pair", "a b")


def trip(tmp_path: Path, nest: Any, **options: bool) -> Any:
    write_nest(tmp_path / "a.pt", nest)
    return read_nest(tmp_path / "a.pt", **options)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool]
)
def test_tensors_come_back_to_the_bit(dtype: torch.dtype, mapped: bool, tmp_path: Path) -> None:
    values = [torch.arange(12).view(3, 4).to(dtype), torch.zeros(0, 3, dtype=dtype), torch.ones((), dtype=dtype)]
    back = trip(tmp_path, values, mapped=mapped)
    for a, b in zip(values, back, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    nest = {
        "numbers": [1, -(2**130), 0.1, float("inf"), 1j, True],
        3: ("words", b"bytes", None, {4}),
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")],
        "milestones": Counter({30: 1, 60: 2}),
        "empty": {},
    }
    assert trip(tmp_path, nest) == nest
    assert type(trip(tmp_path, nest)["milestones"]) is Counter


def test_history_and_wrappers_of_parameters_are_left_behind(tmp_path: Path) -> None:
    p = nn.Parameter(torch.ones(3))
    back = trip(tmp_path, OrderedDict(p=p, q=p * 2))
    assert type(back) is dict
    assert [type(v) for v in back.values()] == [torch.Tensor] * 2
    assert not any(v.requires_grad for v in back.values())


def test_a_view_is_written_by_itself_and_two_names_of_one_tensor_stay_one(tmp_path: Path) -> None:
    flat = torch.arange(100_000.0)
    views = {
        "a": flat[:10],
        "b": flat[10:20].view(2, 5),
        "column": flat.view(1000, 100)[:, 3],
        "wide": flat[:1].expand(9),
    }
    back = trip(tmp_path, views | {"again": views["a"]})
    assert (tmp_path / "a.pt").stat().st_size < 20_000
    assert all(torch.equal(back[name], value) for name, value in views.items())
    assert back["again"].data_ptr() == back["a"].data_ptr()
    assert back["b"].untyped_storage().data_ptr() != back["a"].untyped_storage().data_ptr()


def test_equal_tensors_and_empty_ones_stay_apart(tmp_path: Path) -> None:
    a, b = trip(tmp_path, [torch.zeros(3), torch.zeros(3)])
    assert a.data_ptr() != b.data_ptr()
    e, f = trip(tmp_path, [torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64)])
    assert (e.shape, f.shape, f.dtype) == ((0,), (0, 2), torch.int64)


@pytest.mark.parametrize(
    ("nest", "says"),
    [
        ({"extra": {"order": np.zeros(3)}}, "extra.order, a ndarray,"),
        ({"extra": [1, np.float64(2.0)]}, r"extra\[1\], a float64,"),
        ({"algorithm": Pair(1, 2)}, "algorithm, a Pair,"),
        ([(1, torch.nn.Linear(1, 1))], r"\[0\]\[1\], a Linear,"),
        ({"f": len}, "f, a builtin_function_or_method,"),
        (torch.Generator(), "the state, a Generator,"),
        ({"lazy": nn.UninitializedParameter()}, "lazy, a UninitializedParameter,"),
        ({Pair(1, 2): 3}, "something in it"),
    ],
)
def test_what_could_not_be_read_back_is_refused_with_its_place(nest: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(AlgorithmError, match=rf"^a.pt cannot be written: {says} is no whole tensor or plain value"):
        write_nest(tmp_path / "a.pt", nest)
    assert list(tmp_path.iterdir()) == []


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("bombed",)


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Bomb()}, tmp_path / "bomb.pt")
    with pytest.raises(AlgorithmError, match=r"bomb.pt is no file of tensors that torch.save wrote"):
        read_nest(tmp_path / "bomb.pt")
    assert not (tmp_path / "bombed").exists()


@pytest.mark.parametrize("held", [b"", b"not a file of torch", pickle.dumps(len, protocol=2)])
def test_other_files_are_refused(held: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(held)
    with pytest.raises(AlgorithmError, match=r"x.pt is no file of tensors that torch.save wrote"):
        read_nest(tmp_path / "x.pt")
    with pytest.raises(AlgorithmError, match=r"there is no file '.*gone.pt'"):
        read_nest(tmp_path / "gone.pt")
