"""A loop that was saved and goes on is the loop that never stopped, to the bit; and one that goes on with others."""

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from plain import batch, held, same
from pool import Pool, ProcessesFailedError
from torch import nn

import dissensus
from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.engines.distributed.checkpoint import checkpoints, latest
from dissensus.algorithms.engines.distributed.front_door_checkpoint import load_training, save_training
from dissensus.algorithms.engines.distributed.peers import PeerError
from dissensus.algorithms.engines.distributed.resuming import load
from dissensus.algorithms.engines.distributed.saving import save
from dissensus.experiments.export import export
from dissensus.theory import Topology, from_matrices

HERE = Path(__file__)
INNER: dict[str, Callable] = {
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}
SPECS: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "dsgd": ({"name": "dsgd"}, "one-peer-exponential", "momentum", {}),
    "dsgd fused": ({"name": "dsgd"}, "ring", "adamw", {"fused": True}),
    "dsgd bfloat16": ({"name": "dsgd", "order": "atc"}, "ring", "momentum", {"message_dtype": torch.bfloat16}),
    "dsgd-ac": ({"name": "dsgd-ac"}, "ring", "adamw", {}),
    "tracking": ({"name": "gradient-tracking"}, "ring", "momentum", {}),
    "push-sum": ({"name": "sgp"}, "push", "momentum", {}),
    "choco": ({"name": "choco-sgd", "compressor": "random-k"}, "ring", "momentum", {}),
    "quasi-global": ({"name": "qg-dsgdm"}, "one-peer-exponential", "adamw", {}),
}


class Noisy(nn.Module):
    """Dropout, BatchNorm, a tied head, a frozen layer, and a buffer that its state_dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.3)
        self.second = nn.Linear(7, 7)
        self.third = nn.Linear(7, 7)
        self.third.weight = self.second.weight
        self.frozen = nn.Linear(7, 3).requires_grad_(requires_grad=False)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.frozen(self.third(torch.tanh(self.second(hidden)))) * (1 + 0.01 * self.calls)


def push(n: int) -> Topology:
    """Columns sum to one and rows do not: the weights of push-sum leave one."""
    w = np.eye(n) + np.roll(np.eye(n), 1, 0)
    w[0, n // 2] += 2.0
    return from_matrices(w / w.sum(axis=0), name="push", promise="column")


def built(case: str, **more: Any) -> tuple[nn.Module, Any]:
    spec, name, inner, options = SPECS[case]
    topology = push(dist.get_world_size() if dist.is_initialized() else 1) if name == "push" else name
    torch.manual_seed(3)
    model = Noisy().double()
    opt = INNER[inner]([p for p in model.parameters() if p.requires_grad])
    return model, dissensus.decentralize(opt, model, algorithm=algorithm(**spec), topology=topology, **options, **more)


def loop(case: str, folder: str, until: int, every: int, **options: Any) -> dict[str, Any]:
    """A loop with noise from all three generators, and a schedule; it goes on from what is in the folder."""
    model, opt = built(case)
    seed = 100 + opt.worker
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=40)
    begin = load_training(folder, opt, model, **options)
    if begin.extra is not None:
        schedule.load_state_dict(begin.extra["schedule"])
    for t in range(begin.step, until):
        inputs, targets = batch(t, opt.worker)
        noise = 0.1 * np.random.standard_normal() + 0.1 * random.gauss(0, 1)  # noqa: NPY002
        opt.zero_grad()
        (model(inputs + noise * torch.randn(5)) - targets).square().mean().backward()
        opt.step()
        schedule.step()
        if (t + 1) % every == 0:
            save_training(folder, opt, model, extra={"schedule": schedule.state_dict(), "worker": opt.worker}, keep=2)
    return {
        **held(model),
        "calls": model.calls.clone(),  # type: ignore[operator]
        "begin": torch.tensor(begin.step),
        "t": torch.tensor(opt.t),
        "lr": torch.tensor(opt.param_groups[0]["lr"]),
        "drawn": torch.rand(3),
        "point": {name: p.clone() for name, p in opt.state_dict()["dissensus"]["point"].items()},
        "gamma": opt.notes.get("gamma"),
    }


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return same(a.pop("point"), b.pop("point")) and a.pop("gamma") == b.pop("gamma") and same(a, b)


@pytest.mark.parametrize("case", SPECS)
def test_a_loop_that_goes_on_is_the_one_that_never_stopped(case: str, processes: Pool, tmp_path: Path) -> None:
    run = partial(processes.run, 4, f"{HERE}:loop", case=case)
    whole = run(folder=str(tmp_path / "whole"), until=11, every=100)
    run(folder=str(tmp_path / "cut"), until=8, every=3)  # the two steps after the last save are lost
    assert [p.name for p in sorted((tmp_path / "cut").iterdir())] == ["step_000003", "step_000006"]
    gone_on = run(folder=str(tmp_path / "cut"), until=11, every=100)
    for mine, theirs in zip(gone_on, whole, strict=True):
        assert (mine.pop("begin"), theirs.pop("begin")) == (6, 0)
        assert equal(mine, theirs)
    assert not torch.equal(whole[0]["first.weight"], whole[1]["first.weight"]), "the workers disagree"


def test_a_single_process_goes_on_too(tmp_path: Path) -> None:
    whole = loop("dsgd", str(tmp_path / "whole"), until=11, every=100)
    loop("dsgd", str(tmp_path / "cut"), until=8, every=3)
    gone_on = loop("dsgd", str(tmp_path / "cut"), until=11, every=100)
    assert (gone_on.pop("begin"), whole.pop("begin")) == (6, 0)
    assert equal(gone_on, whole)


def surviving(folder: str, victim: int, count: int) -> tuple[list[str | None], tuple[int, ...], int]:
    """One process is killed while it saves; the others go on, and save again."""
    if dist.get_rank() == victim:
        real, seen = os.replace, [0]

        def fatal(*args: Any) -> None:
            seen[0] += 1
            if seen[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args)

        os.replace = fatal  # type: ignore[assignment]
    model, opt = built("tracking", on_failure="continue", timeout=20.0)
    written = []
    for t in range(8):
        opt.zero_grad()
        inputs, targets = batch(t, opt.worker)
        (model(inputs) - targets).square().mean().backward()
        opt.step()
        if t % 2:
            place = save_training(folder, opt, model, keep=None)
            written.append(None if place is None else place.name)
    return written, opt.present, opt.t


@pytest.mark.parametrize(("victim", "count"), [(2, 2), (0, 4)])
def test_those_that_are_left_give_up_the_checkpoint_in_which_one_was_lost_and_make_the_next(
    victim: int, count: int, processes: Pool, tmp_path: Path
) -> None:
    told = processes.outcomes(
        4, f"{HERE}:surviving", folder=str(tmp_path), victim=victim, count=count, timeout=90.0, grace=60.0
    )
    assert "died with exit code -9" in told[victim].failure
    left = tuple(i for i in range(4) if i != victim)
    for i in left:
        assert not told[i].failure, told[i].failure
        assert told[i].value == (["step_000002", None, "step_000006", "step_000008"], left, 8)
    assert {one.step: one.workers for one in checkpoints(tmp_path)} == {2: (0, 1, 2, 3), 6: left, 8: left}
    four = processes.run(4, f"{HERE}:loop", case="tracking", folder=str(tmp_path), until=8, every=100, resume="average")
    assert [int(one["begin"]) for one in four] == [8] * 4


def test_a_process_that_the_others_took_in_loads_nothing(tmp_path: Path) -> None:
    model, opt = built("dsgd")
    save_training(tmp_path, opt, model, step=50)
    model(torch.ones(2, 5).double()).sum().backward()
    opt.step()
    with pytest.raises(
        AlgorithmError, match=r"the optimizer has made 1 steps already: load what is in .* into a new one"
    ):
        load_training(tmp_path, opt, model)
    opt.wire.guard = object()  # type: ignore[assignment]
    assert load_training(tmp_path, opt, model) == (1, None, None)


def test_a_lost_peer_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, opt = built("dsgd")

    def lost(*_: Any, **__: Any) -> None:
        raise PeerError("process 0 lost its peer", 1, 7)

    monkeypatch.setattr(opt.wire, "gather", lost)
    with pytest.raises(PeerError, match="lost its peer") as caught:
        save_training(tmp_path, opt, model)
    assert (caught.value.peer, caught.value.step) == (1, 7)


def isolating(case: str, folder: str, until: int, every: int, on_nan: Any = "isolate") -> dict[str, Any]:
    """Worker 1 has a gradient that is no number at step 3; what it holds, and the average that all see at the end."""
    model, opt = built(case, on_nan=on_nan)
    begin = load_training(folder, opt, model)
    for t in range(begin.step, until):
        inputs, targets = batch(t, opt.worker)
        scale = float("nan") if (t, opt.worker) == (3, 1) else 1.0
        opt.zero_grad()
        ((model(inputs) - targets).square().mean() * scale).backward()
        opt.step()
        if (t + 1) % every == 0:
            save_training(folder, opt, model)
    with opt.consensus() as average:
        mean = held(average)
    return {**held(model), **{f"average {name}": value for name, value in mean.items()}}


@pytest.mark.parametrize("case", ["dsgd fused", "dsgd bfloat16"])
def test_one_that_is_isolated_stays_so(case: str, processes: Pool, tmp_path: Path) -> None:
    run = partial(processes.run, 4, f"{HERE}:isolating", case=case, folder=str(tmp_path / "cut"))
    whole = processes.run(4, f"{HERE}:isolating", case=case, folder=str(tmp_path / "whole"), until=12, every=100)
    run(until=8, every=6)
    (found,) = checkpoints(tmp_path / "cut")
    assert found.facts["isolated"] == [1]
    gone_on = run(until=12, every=100)
    assert all(same(mine, theirs) for mine, theirs in zip(gone_on, whole, strict=True))
    assert not same(held_by(gone_on[0]), held_by(gone_on[1]))
    exported = export(tmp_path / "cut", tmp_path / "model.safetensors")
    assert exported.left_out == (1,)
    with pytest.raises(ProcessesFailedError, match=r"worker 1 was isolated at step 3, and would be mixed in again"):
        run(until=12, every=100, on_nan="stop")


def held_by(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if not name.startswith("average ")}


def test_those_that_go_on_in_smaller_numbers_are_not_the_isolated_one(processes: Pool, tmp_path: Path) -> None:
    processes.run(4, f"{HERE}:isolating", case="dsgd fused", folder=str(tmp_path), until=6, every=6)
    (found,) = checkpoints(tmp_path)
    _, states = load(found, range(3), size=3, resume="subset")
    for worker, source in enumerate((0, 2, 3)):
        mine, its = states[worker]["parameters"], found.state(source)["parameters"]
        assert torch.equal(mine["first.weight"], its["first.weight"])


def dying(case: str, folder: str, victim: int, operation: str, count: int) -> Any:
    """One process is killed at its count-th file operation of that kind, in the second save."""
    if dist.get_rank() == victim:
        real, seen = getattr(os, operation), [0]

        def fatal(*args: Any, **options: Any) -> Any:
            seen[0] += 1
            if seen[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(os, operation, fatal)
    return loop(case, folder, until=8, every=3)


# worker 0's process moves its own file and the description in each save, any other its own file only
@pytest.mark.parametrize(
    ("victim", "operation", "count"), [(0, "replace", 3), (0, "replace", 4), (0, "rename", 2), (2, "replace", 2)]
)
def test_a_process_killed_while_saving_leaves_a_run_that_goes_on(
    victim: int, operation: str, count: int, processes: Pool, tmp_path: Path
) -> None:
    whole = processes.run(4, f"{HERE}:loop", case="tracking", folder=str(tmp_path / "w"), until=11, every=100)
    folder = tmp_path / "cut"
    told = processes.outcomes(
        4,
        f"{HERE}:dying",
        case="tracking",
        folder=str(folder),
        victim=victim,
        operation=operation,
        count=count,
        group_timeout=20.0,
        grace=2.0,
    )
    assert all(o.failure for o in told)
    assert "died with exit code -9" in told[victim].failure
    found = latest(folder)
    assert found is not None
    assert found.step == 3, "the second save did not come to its end"
    gone_on = processes.run(4, f"{HERE}:loop", case="tracking", folder=str(folder), until=11, every=100)
    for mine, theirs in zip(gone_on, whole, strict=True):
        assert (mine.pop("begin"), theirs.pop("begin")) == (3, 0)
        assert equal(mine, theirs)


@pytest.mark.parametrize("resume", ["average", "subset"])
@pytest.mark.parametrize("case", ["dsgd-ac", "tracking", "push-sum", "choco"])
def test_two_of_four_or_all_at_their_average_go_on(case: str, resume: str, processes: Pool, tmp_path: Path) -> None:
    four = processes.run(4, f"{HERE}:loop", case=case, folder=str(tmp_path), until=6, every=6)
    two = processes.run(2, f"{HERE}:loop", case=case, folder=str(tmp_path), until=6, every=100, resume=resume)
    for i, one in enumerate(two):
        assert (int(one["begin"]), int(one["t"])) == (6, 6)
        assert torch.equal(one["lr"], four[i]["lr"]), "the options of the optimizer stay"
        for name in held(Noisy()):
            if four[0][name].is_floating_point():
                rows = np.stack([w[name].numpy() for w in four])
                expected = rows.mean(0) if resume == "average" else rows[i]
                assert np.abs(one[name].numpy() - expected).max() <= 1e-15 * max(1.0, abs(rows).max()), name
        for name, point in one["point"].items():
            assert torch.equal(point, one[name]), "nothing is biased any more"
        if case == "push-sum":
            assert not torch.equal(four[i]["point"]["first.weight"], four[i]["first.weight"]), "it was"
        assert torch.equal(one["drawn"], four[i]["drawn"]) == (resume == "subset"), "generators"


def gone_on_by_hand(case: str, folder: str, resume: str) -> list[dict[str, Any]]:
    """Three steps from a checkpoint of more workers, and three from the same models with a new optimizer."""
    found = []
    for way in ("loaded", "by hand"):
        model, opt = built(case)
        load_training(folder, opt, model, resume=resume)  # type: ignore[arg-type]
        memory, t = opt.inner.state_dict(), opt.t
        if way == "by hand":
            spec, topology = SPECS[case][0], built(case)[1].topology
            inner = type(opt.inner)([p for p in model.parameters() if p.requires_grad], lr=0.05)
            inner.load_state_dict(memory)
            opt = dissensus.decentralize(inner, model, algorithm=algorithm(**spec), topology=topology, start="own")
        model.drop.eval()  # type: ignore[union-attr]
        for k in range(3):
            opt.zero_grad()
            inputs, targets = batch(t + k, opt.worker)
            (model(inputs) - targets).square().mean().backward()
            opt.step()
        found.append(held(model))
    return found


@pytest.mark.parametrize("resume", ["average", "subset"])
@pytest.mark.parametrize("case", ["tracking", "push-sum"])
def test_the_algorithm_starts_anew_at_the_models_of_the_new_workers(
    case: str, resume: str, processes: Pool, tmp_path: Path
) -> None:
    processes.run(4, f"{HERE}:loop", case=case, folder=str(tmp_path), until=6, every=6)
    for loaded, by_hand in processes.run(2, f"{HERE}:gone_on_by_hand", case=case, folder=str(tmp_path), resume=resume):
        assert same(loaded, by_hand)


def test_the_largest_rate_that_adaptive_consensus_has_seen_is_not_forgotten(processes: Pool, tmp_path: Path) -> None:
    run = partial(processes.run, case="dsgd-ac", folder=str(tmp_path), every=30)
    four = run(4, f"{HERE}:loop", until=30)
    two = run(2, f"{HERE}:loop", until=31, resume="average")
    gamma = [float(torch.as_tensor(one["gamma"]).reshape(-1)[0]) for one in (four[0], two[0])]
    assert gamma[1] < gamma[0] < 0.5, "the rate falls, and so does gamma"


def test_a_checkpoint_of_another_engine_is_named(tmp_path: Path) -> None:
    model, opt = built("dsgd")
    save(tmp_path, 3, {0: {"parameters": {"w": torch.ones(2)}, "engine": {}}}, size=1)
    with pytest.raises(AlgorithmError, match="step_000003 was not written by save_training: load it with the engine"):
        load_training(tmp_path, opt, model)


def test_groups_of_another_optimizer_are_named(processes: Pool, tmp_path: Path) -> None:
    processes.run(2, f"{HERE}:loop", case="dsgd", folder=str(tmp_path), until=3, every=3)
    torch.manual_seed(3)
    model = Noisy().double()
    own = [{"params": [p]} for p in model.parameters() if p.requires_grad]
    opt = dissensus.decentralize(torch.optim.SGD(own, lr=0.1), model)
    with pytest.raises(AlgorithmError, match=r"step_000003 has 1 param groups, the optimizer has \d+"):
        load_training(tmp_path, opt, model, resume="average")


def told(case: str, folder: str, **options: Any) -> str:
    model, opt = built(case)
    try:
        load_training(folder, opt, model, **options)
    except AlgorithmError as error:
        return str(error)
    return "nothing"


def test_what_is_refused_is_refused_by_all(processes: Pool, tmp_path: Path) -> None:
    run = partial(processes.run, folder=str(tmp_path))
    run(4, f"{HERE}:loop", case="dsgd", until=3, every=3)
    cases = [
        (2, {"case": "dsgd"}, "holds 4 workers, but there are 2 now: say resume='average'"),
        (4, {"case": "tracking"}, "was saved with algorithm 'dsgd', this run has 'gradient-tracking'"),
        (4, {"case": "dsgd bfloat16"}, "was saved with topology 'one-peer-exponential of 4 workers, rounds "),
        (4, {"case": "dsgd bfloat16", "may_differ": ["topology"]}, "nothing"),
        (4, {"case": "dsgd", "may_differ": ["topologie"]}, "may_differ has 'topologie'; did you mean 'topology'"),
    ]
    for n, options, says in cases:
        said = run(n, f"{HERE}:told", **options)
        assert len(set(said)) == 1
        assert says in said[0]
    (tmp_path / "step_000003" / "worker_0002.pt").unlink()
    said = run(4, f"{HERE}:told", case="dsgd")
    assert len(set(said)) == 1
    assert "worker_0002.pt is missing; there is no other complete checkpoint in" in said[0]


def failing(folder: str) -> str:
    model, opt = built("dsgd")
    try:
        save_training(folder, opt, model if opt.worker else nn.Linear(1, 1))
    except AlgorithmError as error:
        return str(error)
    return "nothing"


def test_another_model_is_refused_by_all(processes: Pool, tmp_path: Path) -> None:
    said = processes.run(2, f"{HERE}:failing", folder=str(tmp_path))
    assert said == ["the optimizer trains 'first.weight', which is no parameter of this model: pass its model"] * 2


def nodes(folder: str, until: int, save: bool) -> list[Any]:
    """Four processes are two workers; generators and extra are every process's own."""
    from dissensus.algorithms.engines.distributed.nodes import node_groups

    inside, between = node_groups(2)
    torch.manual_seed(3)
    model = nn.Linear(5, 3).double()
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=inside)
    opt = dissensus.decentralize(torch.optim.SGD(wrapped.parameters(), lr=0.1), wrapped, group=between)
    torch.manual_seed(dist.get_rank())
    begin = load_training(folder, opt, wrapped, inside=inside)
    for t in range(begin.step, until):
        opt.zero_grad()
        inputs, targets = batch(t, dist.get_rank())
        (wrapped(inputs + torch.randn(5)) - targets).square().mean().backward()
        opt.step()
    if save:
        save_training(folder, opt, wrapped, extra=f"process {dist.get_rank()}", inside=inside)
    return [held(model), torch.rand(2), begin.extra, begin.step]


def test_several_processes_of_a_worker_keep_one_model_and_their_own_generators(processes: Pool, tmp_path: Path) -> None:
    run = partial(processes.run, 4, f"{HERE}:nodes")
    whole = run(folder=str(tmp_path / "whole"), until=6, save=False)
    run(folder=str(tmp_path / "cut"), until=4, save=True)
    found = latest(tmp_path / "cut")
    assert found is not None
    assert found.workers == (0, 1)
    assert list(found.state(0)["parameters"]) == ["weight", "bias"], "the names of the bare model"
    for rank, (mine, theirs) in enumerate(
        zip(run(folder=str(tmp_path / "cut"), until=6, save=False), whole, strict=True)
    ):
        assert mine[2:] == [f"process {rank}", 4]
        assert same(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
