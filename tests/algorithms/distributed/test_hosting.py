"""What a loop does for the workers of an algorithm that keeps them equal, when a new group begins."""

import pytest
import torch
from torch import nn

import dissensus
from dissensus.algorithms.engines.distributed.hosting import LoopHost


@pytest.mark.parametrize(("name", "equal"), [("allreduce", True), ("dsgd", False)])
def test_workers_are_made_equal_with_all_that_their_optimizers_remember(
    name: str, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolution = nn.Conv2d(3, 4, 2)
    convolution.weight.data = convolution.weight.data.to(memory_format=torch.channels_last)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 2))
    opt = dissensus.decentralize(torch.optim.Adam(model.parameters(), lr=0.1), model, algorithm=name)
    model(torch.ones(1, 3, 2, 2)).sum().backward()
    opt.step()
    monkeypatch.setattr(opt.wire, "broadcast", lambda value, source, **_: value.fill_(0.5))
    with torch.no_grad():
        LoopHost(opt, {}).align(0)
    held = [*model.parameters(), *(value for memory in opt.state.values() for value in memory.values())]
    assert len(held) == 4 * len(list(model.parameters()))
    assert all(bool((value == 0.5).all()) == equal for value in held)
