"""The consensus model: the same on every process, the mean of what they deploy, and training does not notice it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import distance, held, normed, same, train
from pool import Pool
from swept import SPECS, optimizer_of, schedule_of
from torch import nn

import dissensus
from dissensus.algorithms import algorithm

HERE = Path(__file__)
STEPS, N = 6, 4
CASES = ["awc", "atc", "cta", "gradient-tracking", "sgp", "choco-sgd"]


def script(case: str, look: bool, **options: Any) -> list[dict[str, torch.Tensor]]:
    spec, topologies = SPECS[case]
    model = normed()
    opt = dissensus.decentralize(
        optimizer_of(spec)(model.parameters()),
        model,
        algorithm=algorithm(**spec),
        topology=schedule_of(topologies[-1]),
        **options,
    )
    seen = []
    for t in range(STEPS):
        train(model, opt, range(t, t + 1), dist.get_rank())
        if look and t % 3 == 1:
            drawn = torch.get_rng_state()
            with opt.consensus() as mean:
                assert mean is not model
                assert not mean.training
                assert model.training
                assert mean(torch.ones(2, 5, dtype=torch.float64)).shape == (2, 3)
                torch.randn(3)
                seen = [held(model), held(mean)]
                for p in mean.parameters():
                    p.data.zero_()
            assert torch.equal(torch.get_rng_state(), drawn)
    return [*seen, held(model)]


@pytest.mark.parametrize("case", CASES)
def test_a_look_at_the_consensus_changes_nothing(case: str, processes: Pool) -> None:
    looked, not_looked = (processes.run(N, f"{HERE}:script", case=case, look=look) for look in (True, False))
    assert all(same(a[-1], b[-1]) for a, b in zip(looked, not_looked, strict=True))
    means = [mean for _, mean, _ in looked]
    assert all(same(means[0], other) for other in means)
    own = [model for model, _, _ in looked]
    mean = {name: torch.stack([o[name].double() for o in own]).mean(0) for name in own[0]}
    assert distance([means[0]], [mean]) <= 1e-12
    assert distance(own[:1], own[1:2]) > 1e-3, "the workers disagree"


@pytest.mark.parametrize("options", [{"fused": True}, {"message_dtype": torch.bfloat16}], ids=str)
def test_a_look_changes_nothing_with_options(options: dict[str, Any], processes: Pool) -> None:
    looked, not_looked = (
        processes.run(N, f"{HERE}:script", case="awc", look=look, **options) for look in (True, False)
    )
    assert all(same(a[-1], b[-1]) for a, b in zip(looked, not_looked, strict=True))
    assert all(same(looked[0][1], other[1]) for other in looked)


class Tied(nn.Module):
    """Two layers share a matrix; a bias is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(5, k).double() for k in (5, 5, 3))
        self.b.weight = self.a.weight
        self.c.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


def with_frozen_and_tied() -> dict[str, torch.Tensor]:
    torch.manual_seed(dist.get_rank())
    model = Tied()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = dissensus.decentralize(torch.optim.SGD(trained, lr=0.1), model, start="own")
    train(model, opt, range(3), dist.get_rank())
    with opt.consensus() as mean:
        assert isinstance(mean, Tied)
        assert mean.b.weight is mean.a.weight
        return {"own": held(model)["c.bias"], "mean": held(mean)["c.bias"], "a": held(mean)["a.weight"]}


def test_what_is_not_trained_is_the_process_s_own(processes: Pool) -> None:
    measured = processes.run(N, f"{HERE}:with_frozen_and_tied")
    assert all(torch.equal(m["own"], m["mean"]) for m in measured)
    assert all(torch.equal(m["a"], measured[0]["a"]) for m in measured)
