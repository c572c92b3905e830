"""What may be changed between two steps: what is trained, groups, the weights themselves and where they lie."""

import copy
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from plain import Copies, decentralized, distance, held, momentum, net, same, squared, train
from pool import Pool
from swept import WITH_CLOSURE, schedule_of
from torch import Tensor, nn
from variants import Branches, branched

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.engines.distributed import fused

HERE = Path(__file__)
STEPS = range(10)


def parts(model: nn.Module) -> list[list[nn.Parameter]]:
    children = [list(child.parameters()) for child in model.children()]
    return [children[0], [p for child in children[1:] for p in child]]


def thaw(model: nn.Module, t: int) -> None:
    """The first layer is trained from step 3 on."""
    for p in parts(model)[0]:
        p.requires_grad_(t >= 3)


WAYS = {
    "awc": ({"name": "dsgd", "order": "awc"}, "awc", False),
    "atc": ({"name": "dsgd", "order": "atc"}, "atc", False),
    "cta": ({"name": "dsgd", "order": "cta"}, "cta", False),
    "awc in backward": ({"name": "dsgd", "order": "awc"}, "awc", True),
    "atc in backward": ({"name": "dsgd", "order": "atc"}, "atc", True),
    "cta in backward": ({"name": "dsgd", "order": "cta"}, "cta", True),
    "push-sum": ({"name": "sgp"}, "atc", False),  # which on a ring is that
}
"""Algorithm, the same by hand, and whether it mixes inside backward."""


def freeze(model: nn.Module, t: int) -> None:
    """The last layer is trained until step 3 and from step 7 on."""
    for p in parts(model)[1]:
        p.requires_grad_(not 3 <= t < 7)


def swap(model: nn.Module, t: int) -> None:
    """At step 4 the first layer stops and the last begins."""
    for k, part in enumerate(parts(model)):
        for p in part:
            p.requires_grad_((k == 0) == (t < 4))


CHANGES = {"thaw": thaw, "freeze": freeze, "swap": swap}


def small_buckets() -> AbstractContextManager[int]:
    """Every layer has a bucket of its own in moves inside backward."""
    return mock.patch.object(fused, "LEAST_BYTES", 1)


def changed(way: str, change: str, closed: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    spec, _, inside = WAYS[way]
    model = net()
    CHANGES[change](model, 0)
    with small_buckets():
        opt = dissensus.decentralize(
            momentum(model), model, algorithm=algorithm(**spec), topology="ring", fused=inside, timeout=30
        )
        for t in range(12):
            CHANGES[change](model, t)

            def closure(t: int = t) -> Tensor:
                opt.zero_grad()
                loss = squared(model, t, dist.get_rank())
                loss.backward()
                return loss

            if closed:
                opt.step(closure)
            else:
                closure()
                opt.step()
        with opt.consensus() as average:
            return held(model), held(average)


def by_hand_changed(way: str, change: str) -> Copies:
    copies = Copies(4, lambda _: net(), momentum, "ring", WAYS[way][1])
    for t in range(12):
        for model in copies.models:
            CHANGES[change](model, t)
        copies.train(range(t, t + 1))
    return copies


@pytest.mark.parametrize("closed", [False, True], ids=["", "closure"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_trained_may_change_on_the_way(change: str, way: str, closed: bool, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:changed", way=way, change=change, closed=closed)
    copies = by_hand_changed(way, change)
    assert distance([own for own, _ in measured], copies.held) <= 1e-10
    mean = {name: torch.stack([own[name] for own in copies.held]).mean(0) for name in copies.held[0]}
    assert distance([average for _, average in measured], [mean] * 4) <= 1e-10


def late(way: str) -> dict[str, Tensor]:
    """A layer is thawed between forward and `step()`, where it has no gradient yet."""
    spec, _, inside = WAYS[way]
    model = net()
    thaw(model, 0)
    with small_buckets():
        opt = dissensus.decentralize(
            momentum(model), model, algorithm=algorithm(**spec), topology="ring", fused=inside, timeout=30
        )
        for t in range(12):
            opt.zero_grad()
            squared(model, t, dist.get_rank()).backward()
            thaw(model, t + 1)
            opt.step()
    return held(model)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_may_be_thawed_between_forward_and_step(way: str, processes: Pool) -> None:
    """Nobody has moved it yet, and it is the same everywhere: whether it is mixed already makes no difference."""
    assert distance(processes.run(4, f"{HERE}:late", way=way), by_hand_changed(way, "thaw").held) <= 1e-10


def unused_by_some(way: str) -> tuple[dict[str, Tensor], list[tuple[int, int]]]:
    """Some processes finish a bucket inside backward that others finish in `step()`; then what is trained changes."""
    spec, _, inside = WAYS[way]
    model = Branches()
    first, *rest = model.trunk.children()
    posted: list[tuple[int, int]] = []
    with small_buckets():
        opt = dissensus.decentralize(
            momentum(model), model, algorithm=algorithm(**spec), topology="ring", fused=inside, timeout=30
        )
        exchange: Any = opt.held.exchange
        post = exchange.post
        exchange.post = lambda t, value, *what: posted.append((t, value.numel())) or post(t, value, *what)
        for t in range(12):
            first.requires_grad_(t < 3 or t >= 8)
            rest[-1].requires_grad_(t >= 2)
            train(model, opt, range(t, t + 1), dist.get_rank(), branched(lambda t, worker: (t + worker) % 2 == 0))
    return held(model), posted


@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("backward")])
def test_it_may_change_where_some_are_done_inside_backward_and_some_are_not(way: str, processes: Pool) -> None:
    """The numbers are those of the plain way, and every process sends the same in the same order."""
    plain, inside = (processes.run(4, f"{HERE}:unused_by_some", way=one) for one in (way.split()[0], way))
    assert all(same(a, b) for (a, _), (b, _) in zip(plain, inside, strict=True))
    assert all(posted == inside[0][1] for _, posted in inside)


def accumulated(inside: bool) -> dict[str, Tensor]:
    model = net()
    options: dict[str, Any] = {"fused": True, "accumulate": 2} if inside else {}
    with small_buckets():
        opt = dissensus.decentralize(momentum(model), model, topology="ring", timeout=30, **options)
        for t in range(12):
            swap(model, t)
            opt.zero_grad()
            for k in range(2):
                squared(model, 2 * t + k, dist.get_rank()).backward()
            opt.step()
    return held(model)


def test_it_may_change_where_several_backwards_make_a_step(processes: Pool) -> None:
    plain, inside = (processes.run(4, f"{HERE}:accumulated", inside=inside) for inside in (False, True))
    assert all(same(a, b) for a, b in zip(plain, inside, strict=True))


def used_by_another(meanwhile: bool) -> dict[str, Tensor]:
    """As the discriminator of a pair: frozen as a whole, it is looked at between two of its own steps."""
    model = net()
    opt = dissensus.decentralize(momentum(model), model, algorithm="sgp", topology=schedule_of("push"), timeout=30)
    for t in STEPS:
        train(model, opt, range(t, t + 1), dist.get_rank())
        if meanwhile and t < STEPS[-1]:
            model.requires_grad_(requires_grad=False)
            squared(model, t, 0)
            model.requires_grad_(requires_grad=True)
    return held(model)


def test_a_model_that_is_frozen_while_another_is_trained_loses_nothing(processes: Pool) -> None:
    plain, used = (processes.run(4, f"{HERE}:used_by_another", meanwhile=meanwhile) for meanwhile in (False, True))
    assert all(same(a, b) for a, b in zip(plain, used, strict=True))


def resumed(name: str) -> str:
    """A run in which a layer was frozen on the way goes on in another process, whose layer is frozen before."""
    models, opts = [net(), net(seed=5), net(seed=5)], []
    for k, model in enumerate(models):
        if k == 1:
            model[0].requires_grad_(requires_grad=False)  # type: ignore[index]
        opts.append(dissensus.decentralize(momentum(model), model, algorithm=name, topology="ring", timeout=30))
    train(models[0], opts[0], range(4), dist.get_rank())
    models[0][0].requires_grad_(requires_grad=False)  # type: ignore[index]
    train(models[0], opts[0], range(4, 7), dist.get_rank())
    state = copy.deepcopy(opts[0].state_dict())
    models[1].load_state_dict(models[0].state_dict())
    opts[1].load_state_dict(state)
    averages = []
    for model, opt in zip(models[:2], opts[:2], strict=True):
        train(model, opt, range(7, 10), dist.get_rank())
        with opt.consensus() as average:
            averages.append(held(average))
    assert same(held(models[0]), held(models[1]))
    assert same(*averages)
    with pytest.raises(AlgorithmError, match="frozen") as told:
        opts[2].load_state_dict(state)
    return str(told.value)


@pytest.mark.parametrize("name", ["gradient-tracking", "sgp"])
def test_what_was_frozen_on_the_way_goes_on_where_it_is_frozen(name: str, processes: Pool) -> None:
    assert all("'0.weight'" in told for told in processes.run(4, f"{HERE}:resumed", name=name))


def nothing_trained() -> None:
    """A step with nothing to train changes nothing; what comes after goes on."""
    model = net()
    opt = dissensus.decentralize(momentum(model), model, algorithm="gradient-tracking", topology="ring")
    train(model, opt, range(3), dist.get_rank())
    model.requires_grad_(requires_grad=False)
    before = held(model)
    opt.zero_grad()
    opt.step()
    assert opt.named == []
    assert opt.state_dict()["dissensus"]["t"] == opt.t == 4
    assert same(before, held(model))
    model.requires_grad_(requires_grad=True)
    train(model, opt, range(3), dist.get_rank())
    assert not same(before, held(model))


def test_a_model_may_be_frozen_as_a_whole(processes: Pool) -> None:
    processes.run(2, f"{HERE}:nothing_trained")


def with_a_group_more() -> dict[str, Tensor]:
    model = net()
    first, rest = parts(model)
    opt = dissensus.decentralize(torch.optim.SGD(rest, lr=0.1, momentum=0.9), model, topology="ring")
    train(model, opt, range(5), dist.get_rank())
    opt.add_param_group({"params": first, "lr": 0.05})
    train(model, opt, range(5, 10), dist.get_rank())
    return held(model)


def test_a_group_may_be_added_on_the_way(processes: Pool) -> None:
    copies = Copies(4, lambda _: net(), lambda m: torch.optim.SGD(parts(m)[1], lr=0.1, momentum=0.9), "ring", "awc")
    copies.train(range(5))
    for model, opt in zip(copies.models, copies.optimizers, strict=True):
        opt.add_param_group({"params": parts(model)[0], "lr": 0.05})
    copies.train(range(5, 10))
    assert distance(processes.run(4, f"{HERE}:with_a_group_more"), copies.held) <= 1e-10


def changed_under_way(settle: bool) -> tuple[str, dict[str, Tensor], dict[str, Tensor]]:
    """Weights are clamped after a step, while they are on their way to the neighbours."""
    model, opt = decentralized()
    train(model, opt, range(5), dist.get_rank())
    before = held(model)
    if settle:
        opt.settle()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.1, 0.1)
    opt.zero_grad()
    try:
        opt.step()
    except AlgorithmError as error:
        return str(error), before, held(model)
    return "", before, held(model)


def test_parameters_that_are_under_way_must_not_be_changed(processes: Pool) -> None:
    assert all("settle()" in told for told, _, _ in processes.run(4, f"{HERE}:changed_under_way", settle=False))


def test_once_settled_they_may_be_and_the_neighbours_have_the_old_ones(processes: Pool) -> None:
    outcomes = processes.run(4, f"{HERE}:changed_under_way", settle=True)
    for i, (told, own, after) in enumerate(outcomes):
        assert told == ""
        for name in own:
            others = outcomes[i - 1][1][name] + outcomes[(i + 1) % 4][1][name]
            assert (after[name] - (own[name].clamp(-0.1, 0.1) + others) / 3).abs().max() <= 1e-14


def clamped_between(name: str, settle: bool, when: str = "before") -> tuple[str, dict[str, Tensor], dict[str, Tensor]]:
    """Weights are clamped before a forward or after it, under an algorithm that keeps a copy of its point."""
    model, closed = net(), name in WITH_CLOSURE
    opt = dissensus.decentralize(momentum(model), model, algorithm=name, topology="ring", timeout=30)
    if not closed:
        train(model, opt, range(5), dist.get_rank() if dist.is_initialized() else 0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = squared(model, 5, 0)
        loss.backward()
        return loss

    for _ in range(2 if closed else 0):
        opt.step(closure)
    before = held(model)
    opt.param_groups[0]["lr"] = 0.0  # the next step only mixes
    if settle:
        opt.settle()
    opt.zero_grad()

    def clamp() -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.1, 0.1)

    if when == "before":
        clamp()
    try:
        if not closed:
            closure()
        if when == "after":
            clamp()
        opt.step(closure if closed else None)
    except AlgorithmError as error:
        return str(error), before, held(model)
    return "", before, held(model)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_that_is_under_way_forbids_changes_too(when: str, processes: Pool) -> None:
    outcomes = processes.run(4, f"{HERE}:clamped_between", name="gradient-tracking", settle=False, when=when)
    assert all("settle()" in told for told, _, _ in outcomes)


@pytest.mark.parametrize("when", ["before", "after"])
def test_once_a_copy_is_settled_the_change_counts(when: str, processes: Pool) -> None:
    outcomes = processes.run(4, f"{HERE}:clamped_between", name="gradient-tracking", settle=True, when=when)
    for i, (told, own, after) in enumerate(outcomes):
        assert told == ""
        for name in own:
            others = outcomes[i - 1][1][name] + outcomes[(i + 1) % 4][1][name]
            assert (after[name] - (own[name].clamp(-0.1, 0.1) + others) / 3).abs().max() <= 1e-14


@pytest.mark.parametrize("settle", [False, True], ids=["", "settled"])
@pytest.mark.parametrize("name", ["qg-dsgdm", "choco-sgd"])
def test_where_nothing_is_under_way_a_change_counts_for_all(name: str, settle: bool, processes: Pool) -> None:
    outcomes = processes.run(4, f"{HERE}:clamped_between", name=name, settle=settle)
    for i, (told, _, after) in enumerate(outcomes):
        assert told == ""
        if name == "choco-sgd":
            assert max(value.abs().max() for value in after.values()) < 0.4, "it mixes what was compressed"
            continue
        for key, value in after.items():
            three = [outcomes[j % 4][1][key].clamp(-0.1, 0.1) for j in (i - 1, i, i + 1)]
            assert (value - torch.stack(three).mean(0)).abs().max() <= 1e-14


@pytest.mark.parametrize("name", ["gradient-tracking", "qg-dsgdm", "choco-sgd", "sam", "avg-sam"])
def test_alone_a_change_counts(name: str) -> None:
    told, before, after = clamped_between(name, settle=False)
    assert told == ""
    assert not same(before, after)
    if name != "choco-sgd":
        assert all(torch.equal(after[key], before[key].clamp(-0.1, 0.1)) for key in before)


def elsewhere_changed(when: str) -> str:
    return clamped_between("sgp", settle=True, when=when)[0]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_point_that_is_derived_refuses_a_change(when: str, processes: Pool) -> None:
    assert all("sgp" in told for told in processes.run(4, f"{HERE}:elsewhere_changed", when=when))


def swapped(name: str, settle: bool) -> dict[str, Tensor]:
    """Other weights are put in to be looked at, and the own ones put back."""
    model = net()
    opt = dissensus.decentralize(momentum(model), model, algorithm=name, topology="ring")
    for t in STEPS:
        train(model, opt, range(t, t + 1), dist.get_rank())
        if settle:
            opt.settle()
            own = held(model)
            model.load_state_dict({key: torch.zeros_like(value) for key, value in own.items()})
            model.load_state_dict(own)
    return held(model)


@pytest.mark.parametrize("name", ["gradient-tracking", "sgp", "qg-dsgdm"])
def test_weights_that_were_put_back_change_nothing(name: str, processes: Pool) -> None:
    plain, looked_at = (processes.run(4, f"{HERE}:swapped", name=name, settle=settle) for settle in (False, True))
    assert all(same(a, b) for a, b in zip(plain, looked_at, strict=True))


def with_memory_replaced(how: str) -> dict[str, Tensor] | str:
    """Some functions of torch do not write into parameters but give them other memory."""
    model, opt = decentralized()
    try:
        for t in STEPS:
            train(model, opt, range(t, t + 1), dist.get_rank())
            if t == 7 and how == "vector":
                vector = nn.utils.parameters_to_vector(model.parameters()).detach()
                nn.utils.vector_to_parameters(vector, model.parameters())
            if t == 7 and how == "moved":
                model.float().double()
    except AlgorithmError as error:
        return str(error)
    return held(model)


def by_hand_replaced(how: str) -> list[dict[str, Tensor]]:
    copies = Copies(4, lambda _: net(), momentum, "ring", "awc")
    for t in STEPS:
        copies.train(range(t, t + 1))
        for model in copies.models:
            if t == 7 and how == "moved":
                model.float().double()
    return copies.held


@pytest.mark.parametrize("how", ["vector", "moved"])
def test_memory_that_is_replaced_does_not_pass_unnoticed(how: str, processes: Pool) -> None:
    measured = processes.run(4, f"{HERE}:with_memory_replaced", how=how)
    if all(isinstance(m, str) for m in measured):
        return  # it is refused, everywhere
    assert distance(measured, by_hand_replaced(how)) <= 1e-10
