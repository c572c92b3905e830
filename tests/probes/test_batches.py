"""Loaders and streams: the same batches in every pass, or a name for what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dissensus.probes import Curvature, ProbeError
from dissensus.probes.batches import Stream, admitted


def loader(shuffle=False, augment=False, generator=None):
    draw = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(11, 3, generator=draw).double(), torch.randint(0, 3, (11,), generator=draw))

    def collate(rows):
        x, y = (torch.stack(part) for part in zip(*rows, strict=True))
        return (x + 1e-9 * torch.randn(x.shape) if augment else x), y

    return DataLoader(data, batch_size=4, shuffle=shuffle, collate_fn=collate, generator=generator)


@pytest.mark.parametrize("stored_below", [0, 1 << 30])
def test_a_loader_is_its_batches_stored_or_streamed(mlp, stored_below, monkeypatch):
    model, loss, _ = mlp
    truth = Curvature(model, loss, list(loader()))
    monkeypatch.setattr("dissensus.probes.landscape.admitted", lambda b, d: admitted(b, d, stored_below))
    op = Curvature(model, loss, loader(), memory=0)
    assert isinstance(op.landscape.batches, Stream) == (stored_below == 0)
    assert op.landscape.weights == truth.landscape.weights == [4 / 11, 4 / 11, 3 / 11]
    torch.testing.assert_close(op.dense(), truth.dense(), rtol=1e-12, atol=1e-14)


def test_a_stream_gives_any_batch_in_any_order():
    stream = Stream([10, 11, 12], 3, lambda b: b)
    assert [stream[i] for i in (2, 0, 0, 1, 2, 1)] == [12, 10, 10, 11, 12, 11]
    assert list(stream) == [10, 11, 12]
    with pytest.raises(ProbeError, match=r"had 4 batches when first read, and now ends before 3"):
        Stream([10, 11, 12], 4, lambda b: b)[3]


def test_double_precision_reaches_streams():
    found = admitted(loader(), torch.float32, 0)
    assert [batch[0].dtype for batch in found] == [torch.float32] * 3
    assert [batch[1].dtype for batch in found] == [torch.int64] * 3


def test_the_generator_of_a_loader_is_put_back(mlp):
    model, loss, _ = mlp
    generator = torch.Generator().manual_seed(4)
    before = generator.get_state()
    Curvature(model, loss, loader(generator=generator)).dense()
    assert torch.equal(generator.get_state(), before)
    with pytest.raises(ProbeError, match="shuffles"):
        Curvature(model, loss, loader(shuffle=True, generator=generator))
    assert torch.equal(generator.get_state(), before)


class Longer:
    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([torch.ones(2, 3).double()] * self.passes)


class Spent:
    def __init__(self) -> None:
        self.left = [torch.ones(2, 3).double()] * 2

    def __iter__(self):
        while self.left:
            yield self.left.pop()


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (loader(shuffle=True), r"another batch 0 in a second pass: it shuffles or augments; use shuffle=False"),
        (loader(augment=True), r"another batch 0 in a second pass: it shuffles or augments; .*or list\(loader\)"),
        (Longer(), r"another batch 1 in a second pass: it is longer the second time"),
        (Spent(), r"gave 2 batches and then 0: it can be read only once; give list\(loader\)"),
        ((b for b in [1]), r"batches is a generator, which can be read only once; give list\(batches\)"),
        (3, r"batches must be a list of batches or a loader, got int"),
        ("train", r"batches must be a list of batches, got one str"),
    ],
    ids=["shuffled", "augmented", "longer", "spent", "generator", "number", "word"],
)
def test_what_is_not_the_same_twice_is_named(mlp, batches, message):
    model, loss, _ = mlp
    with pytest.raises(ProbeError, match=message):
        Curvature(model, loss, batches)


def test_a_predicate_chooses_parameters(mlp):
    model, loss, batches = mlp
    op = Curvature(model, loss, batches, lambda name, p: p.dim() == 2 and name.startswith("2"))
    assert op.landscape.names == ["2.weight"]
    with pytest.raises(ProbeError, match=r"the predicate of parameters chose none of 0.weight, 0.bias, 2.weight"):
        Curvature(model, loss, batches, lambda name, p: False)
    with pytest.raises(ProbeError, match=r"memory must be a number of bytes, got -1; leave it out"):
        Curvature(model, loss, batches, memory=-1)
