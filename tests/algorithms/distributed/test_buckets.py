"""Buckets: parameters become views and nothing else about them changes; and where a first gradient is taken."""

import pytest
import torch
from torch import nn

from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.engines.distributed.buckets import Bucket, buckets_of
from dissensus.algorithms.engines.distributed.conversation import first_gradient_elsewhere


def parameters() -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(0)
    return [
        ("plain", nn.Parameter(torch.randn(3, 4))),
        ("transposed", nn.Parameter(torch.randn(5, 2).t())),
        ("channels_last", nn.Parameter(torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))),
        ("strided", nn.Parameter(torch.randn(4, 6)[:, ::2])),
        ("scalar", nn.Parameter(torch.tensor(2.0))),
        ("empty", nn.Parameter(torch.empty(0, 3))),
    ]


def test_values_shapes_and_dense_strides_stay_and_every_number_has_its_place() -> None:
    named = parameters()
    before = [(p.detach().clone(), p.stride()) for _, p in named]
    bucket = Bucket.of(named)
    for (name, p), (value, stride) in zip(named, before, strict=True):
        assert torch.equal(p, value)
        assert p.stride() == ((3, 1) if name == "strided" else stride)
        assert p.is_leaf
        assert p.requires_grad
    bucket.flat.copy_(torch.arange(bucket.flat.shape[1], dtype=torch.float32))
    assert sorted(torch.cat([p.detach().reshape(-1) for _, p in named]).tolist()) == bucket.flat[0].tolist()
    bucket.check()


def test_gradients_are_gathered_where_their_parameters_lie_and_are_zero_where_there_are_none() -> None:
    named = parameters()
    bucket = Bucket.of(named)
    for _, p in named[:3]:
        p.grad = torch.randn_like(p)
    for (_, p), part in zip(named, bucket.split(bucket.gradient()), strict=True):
        assert torch.equal(part, torch.zeros_like(p) if p.grad is None else p.grad)


def test_dtypes_do_not_mix_and_a_limit_cuts_in_order() -> None:
    named = [
        (str(i), nn.Parameter(torch.randn(10, dtype=kind))) for i, kind in enumerate([torch.float32, torch.float64] * 3)
    ]
    buckets = buckets_of(named)
    assert [b.flat.dtype for b in buckets] == [torch.float32, torch.float64]
    cut = buckets_of([(str(i), nn.Parameter(torch.randn(10))) for i in range(5)], limit_bytes=80)
    assert [[place.name for place in b.places] for b in cut] == [["0", "1"], ["2", "3"], ["4"]]


def test_what_is_short_goes_with_what_comes_next_however_large() -> None:
    sizes = [1, 100, 2, 20, 3, 100, 1]
    named = [(str(i), nn.Parameter(torch.randn(size))) for i, size in enumerate(sizes)]
    cut = buckets_of(named, limit_bytes=128)  # of which 8 bytes are short: two numbers, not three
    assert [[place.name for place in bucket.places] for bucket in cut] == [["0", "1"], ["2", "3", "4"], ["5"], ["6"]]


def test_a_parameter_that_was_replaced_is_named() -> None:
    model = nn.Linear(2, 2)
    bucket = Bucket.of(list(model.named_parameters()))
    model.bias.data = model.bias.data.clone()
    with pytest.raises(AlgorithmError, match="parameter 'bias' was moved or replaced"):
        bucket.check()


def test_sparse_parameters_are_refused() -> None:
    with pytest.raises(AlgorithmError, match="only dense parameters"):
        buckets_of([("w", nn.Parameter(torch.eye(3).to_sparse()))])


def test_a_change_of_a_parameter_is_seen() -> None:
    named = parameters()
    bucket = Bucket.of(named)
    before = bucket.version
    bucket.flat.mul_(2.0)  # our own arithmetic is none of autograd's business
    assert bucket.version == before
    with torch.no_grad():
        named[0][1].mul_(2.0)
    assert bucket.version > before


@pytest.mark.parametrize(
    ("name", "parameters", "elsewhere"),
    [
        ("dsgd", {"order": "awc"}, False),
        ("dsgd", {"order": "atc"}, False),
        ("dsgd", {"order": "cta"}, True),
        ("dsgd-ac", {}, False),
        ("gradient-tracking", {}, False),
        ("choco-sgd", {}, False),
        ("sgp", {}, True),
        ("sam", {}, False),
        ("avg-sam", {}, True),
        ("allreduce", {}, False),
    ],
)
def test_where_the_first_gradient_is_taken(name: str, parameters: dict, elsewhere: bool) -> None:
    assert first_gradient_elsewhere(algorithm(name, **parameters)) is elsewhere
