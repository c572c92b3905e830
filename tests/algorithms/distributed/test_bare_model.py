"""Names without wrappers, and tensors that are put back where they lie, or refused by name."""

from typing import Any

import pytest
import torch
from torch import nn

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.bare_model import bare_names, fill, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile imports it


class Odd(nn.Module):
    """A module that is called `module`, tied weights, a buffer that is not kept, and a state of its own."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.module.weight
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scratch", torch.full((2,), value), persistent=False)
        self.words = "fresh"

    def get_extra_state(self) -> Any:
        return {"words": self.words}

    def set_extra_state(self, state: Any) -> None:
        self.words = state["words"]


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    match kind:
        case "parallel":
            return nn.DataParallel(model)
        case "compiled":
            return torch.compile(model)  # type: ignore[return-value]
        case "both":
            return torch.compile(nn.DataParallel(model))  # type: ignore[return-value]
        case "parts":
            model.tied = torch.compile(nn.DataParallel(model.tied))  # type: ignore[assignment]
            return nn.Sequential(nn.DataParallel(model))[0]
    return model


KINDS = ["bare", "parallel", "compiled", "both", "parts"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_those_of_the_bare_model(kind: str) -> None:
    found = tensors_of(wrapped(kind, Odd()))
    assert sorted(found["names"]) == sorted(Odd().state_dict())
    assert set(found["parameters"]) == {n for n, _ in Odd().named_parameters(remove_duplicate=False)}
    assert set(found["buffers"]) == {n for n, _ in Odd().named_buffers()} >= {"scratch"}
    assert found["others"] == {"_extra_state": {"words": "fresh"}}
    assert found["parameters"]["tied.weight"].data_ptr() == found["parameters"]["module.weight"].data_ptr()
    assert not any(p.requires_grad for p in found["parameters"].values())


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("kind", ["bare", "parallel", "parts"])
def test_what_was_kept_under_one_wrapper_is_put_back_under_another(kind: str, to: str) -> None:
    torch.manual_seed(1)
    source, target = Odd(3.0), Odd()
    source.words = "old"
    source.norm.running_mean.add_(1.0)  # type: ignore[union-attr]
    found = tensors_of(wrapped(kind, source))
    goal = wrapped(to, target)
    held = [(p, p.data_ptr()) for p in (*goal.parameters(), *goal.buffers())]
    fill(goal, {**found["parameters"], **found["buffers"]}, found["others"], "here")
    assert [p.data_ptr() for p, _ in held] == [at for _, at in held], "in place: somebody may hold views"
    again = tensors_of(goal)
    for part in ("parameters", "buffers"):
        assert all(torch.equal(again[part][name], value) for name, value in found[part].items())
    assert target.words == "old"
    assert torch.equal(target.scratch, torch.full((2,), 3.0))  # type: ignore[arg-type]


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    assert bare_names(Odd())("module.weight") == "module.weight"
    assert bare_names(nn.DataParallel(Odd()))("module.module.weight") == "module.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda held: held.pop("norm.running_var"), "here has no 'norm.running_var'; did you mean 'norm.running_mean'"),
        (lambda held: held.pop("scratch"), "here has no 'scratch'; known: "),
        (
            lambda held: held.update({"tied.bias": torch.zeros(3)}),
            r"here: 'tied.bias' has shape \(3,\), in the model \(2,\)",
        ),
        (
            lambda held: held.update({"tide.bias": torch.zeros(2)}),
            "here holds 'tide.bias', which the model has not; did",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(change: Any, says: str) -> None:
    model, found = Odd(), tensors_of(Odd(5.0))
    held = {**found["parameters"], **found["buffers"]}
    change(held)
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    with pytest.raises(AlgorithmError, match=f"^{says}"):
        fill(model, held, {}, "here")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
