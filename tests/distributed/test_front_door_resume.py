"""A training that was interrupted goes on as if it had not been, to the bit, whatever was under way at the time."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plain import held, normed, same, squared
from pool import Pool
from swept import SPECS, WITH_CLOSURE, optimizer_of, rate, schedule_of
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm

HERE = Path(__file__)
HALF, END = 4, 9


class Training:
    """Model, optimizer and schedule, as a script holds them."""

    def __init__(self, spec: dict[str, Any], topology: str, seed: int = 0, **options: Any) -> None:
        self.model, self.closed = normed(seed), spec["name"] in WITH_CLOSURE
        inner = optimizer_of(spec)(self.model.parameters())
        self.opt = dissensus.decentralize(
            inner, self.model, algorithm=algorithm(**spec), topology=schedule_of(topology), **options
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, rate)

    def train(self, steps: range) -> None:
        for t in steps:

            def closure(t: int = t) -> Tensor:
                self.opt.zero_grad()
                loss = squared(self.model, t, dist.get_rank())
                loss.backward()
                return loss

            if self.closed:
                self.opt.step(closure)
            else:
                closure()
                self.opt.step()
            self.schedule.step()

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save([self.model.state_dict(), self.opt.state_dict(), self.schedule.state_dict()], file)
        return file.getvalue()

    def load(self, saved: bytes, optimizer_first: bool = False) -> None:
        model, opt, schedule = torch.load(io.BytesIO(saved))
        if optimizer_first:
            self.opt.load_state_dict(opt)
        self.model.load_state_dict(model)
        if not optimizer_first:
            self.opt.load_state_dict(opt)
        self.schedule.load_state_dict(schedule)


def interrupted(spec: dict[str, Any], topology: str, optimizer_first: bool = False, **options: Any) -> None:
    first = Training(spec, topology, **options)
    first.train(range(HALF))
    saved = first.save()
    first.train(range(HALF, END))
    second = Training(spec, topology, seed=9, **options)
    second.load(saved, optimizer_first)
    assert second.opt.t == HALF
    second.train(range(HALF, END))
    assert same(held(first.model), held(second.model))
    memories = [[v for s in o.opt.inner.state.values() for v in s.values()] for o in (first, second)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*memories, strict=True))


@pytest.mark.parametrize("case", SPECS)
def test_resumed_is_uninterrupted(case: str, processes: Pool) -> None:
    spec, topologies = SPECS[case]
    processes.run(4, f"{HERE}:interrupted", spec=spec, topology=topologies[-1])


@pytest.mark.parametrize("options", [{"fused": True}, {"message_dtype": torch.bfloat16}, {"start": "own"}], ids=str)
def test_resumed_is_uninterrupted_with_options(options: dict[str, Any], processes: Pool) -> None:
    processes.run(4, f"{HERE}:interrupted", spec=SPECS["awc"][0], topology="ring", **options)


@pytest.mark.parametrize("case", ["awc", "cta", "gradient-tracking"])
def test_the_optimizer_may_be_loaded_before_the_model(case: str, processes: Pool) -> None:
    processes.run(4, f"{HERE}:interrupted", spec=SPECS[case][0], topology="ring", optimizer_first=True)


def rolled_back(spec: dict[str, Any]) -> None:
    """The loss has jumped: back to what was saved, in the objects that are there, with newer messages under way."""
    training = Training(spec, "one-peer-exponential")
    training.train(range(HALF))
    saved = training.save()
    training.train(range(HALF, END))
    expected = held(training.model)
    training.load(saved)
    training.train(range(HALF, END))
    assert same(held(training.model), expected)


@pytest.mark.parametrize("case", ["awc", "atc", "cta", "gradient-tracking", "sgp"])
def test_a_run_may_be_rolled_back_in_place(case: str, processes: Pool) -> None:
    processes.run(4, f"{HERE}:rolled_back", spec=SPECS[case][0])


def one_looks(spec: dict[str, Any]) -> dict[str, Tensor]:
    training = Training(spec, "ring")
    for t in range(END):
        training.train(range(t, t + 1))
        if dist.get_rank() == t % 3:
            training.save()
    return held(training.model)


def nobody_looks(spec: dict[str, Any]) -> dict[str, Tensor]:
    training = Training(spec, "ring")
    training.train(range(END))
    return held(training.model)


@pytest.mark.parametrize("case", ["awc", "gradient-tracking"])
def test_saving_is_done_alone_and_changes_nothing(case: str, processes: Pool) -> None:
    looked, not_looked = (
        processes.run(4, f"{HERE}:{name}", spec=SPECS[case][0]) for name in ("one_looks", "nobody_looks")
    )
    assert all(same(a, b) for a, b in zip(looked, not_looked, strict=True))


def weights_loaded_late() -> dict[str, Tensor]:
    """A model that was trained before is loaded after the optimizer has been decentralized."""
    training = Training(SPECS["awc"][0], "ring")
    training.model.load_state_dict(normed(seed=4).state_dict())
    training.train(range(END))
    return held(training.model)


def weights_loaded_early() -> dict[str, Tensor]:
    training = Training(SPECS["awc"][0], "ring", seed=4)
    training.train(range(END))
    return held(training.model)


def test_weights_may_be_loaded_before_the_first_step(processes: Pool) -> None:
    late, early = (processes.run(4, f"{HERE}:{name}") for name in ("weights_loaded_late", "weights_loaded_early"))
    assert all(same(a, b) for a, b in zip(late, early, strict=True))


def of_another_algorithm() -> str:
    saved = Training(SPECS["gradient-tracking"][0], "ring")
    saved.train(range(2))
    other = Training(SPECS["awc"][0], "ring")
    with pytest.raises(AlgorithmError) as told:
        other.opt.load_state_dict(saved.opt.state_dict())
    return str(told.value)


def test_the_state_of_another_algorithm_is_refused(processes: Pool) -> None:
    for told in processes.run(4, f"{HERE}:of_another_algorithm"):
        assert "gradient-tracking" in told
        assert "dsgd" in told


def of_a_plain_optimizer() -> str:
    model: nn.Module = normed()
    plain = optimizer_of(SPECS["awc"][0])(model.parameters())
    squared(model, 0, 0).backward()
    plain.step()
    with pytest.raises(AlgorithmError) as told:
        Training(SPECS["awc"][0], "ring").opt.load_state_dict(plain.state_dict())
    return str(told.value)


def test_the_state_of_an_optimizer_that_was_not_decentralized_is_refused(processes: Pool) -> None:
    assert all(processes.run(4, f"{HERE}:of_a_plain_optimizer"))
