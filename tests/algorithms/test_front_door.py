"""The front door: a plain loop over processes follows the dense matrix form, and one process is the inner optimizer."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.algorithms.engines.distributed.front_door import decentralize
from dissensus.algorithms.protocol import DenseProblem
from dissensus.theory import from_matrices
from dissensus.theory import topology as topology_named

WORKER = Path(__file__).with_name("front_door_worker.py")
STEPS = 40


def heavy_ball(n: int, d: int):
    """torch's SGD with momentum 0.9 and weight decay 0.01, as a numpy recursion."""
    v = np.zeros((n, d))

    def move(t: int, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        nonlocal v
        v = (0.9 * v if t else 0.0) + g + 0.01 * x
        return x - lr * v

    return move


SPECS = [
    {"name": "dsgd", "order": "awc"},
    {"name": "dsgd", "order": "atc", "gamma": 0.7},
    {"name": "dsgd-ac", "p": 2.0},
    {"name": "allreduce"},
]
CASES = {
    "-".join(map(str, [*spec.values(), topology])): (spec, topology)
    for spec in SPECS
    for topology in ("ring", "one-peer-exponential")
}


@pytest.fixture(scope="module")
def four_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """The problem, and the path of every case as four processes ran it: one launch for all."""
    n, d, rng = 4, 5, np.random.default_rng(3)
    root = rng.standard_normal((n, d, d))
    problem = {"A": root @ root.transpose(0, 2, 1) / d, "b": rng.standard_normal((n, d))}
    problem["x0"] = rng.standard_normal((n, d))
    folder = tmp_path_factory.mktemp("front-door")
    np.savez(folder / "problem.npz", **problem)  # pyright: ignore[reportArgumentType]
    (folder / "cases.json").write_text(json.dumps(CASES))
    command = [sys.executable, str(WORKER)]
    running = [subprocess.Popen([*command, str(r), str(n), str(folder), str(STEPS)]) for r in range(n)]
    try:
        assert [p.wait(timeout=240) for p in running] == [0] * n
    finally:
        for p in running:
            p.kill()
    ranks = [np.load(folder / f"{r}.npz") for r in range(n)]
    looked = [key for key in ranks[0].files if key.startswith(("own.", "mean."))]
    paths = {case: np.stack([r[case] for r in ranks], axis=1) for case in CASES}
    return problem, paths | {key: np.stack([r[key] for r in ranks]) for key in looked}


@pytest.mark.parametrize("case", CASES)
def test_four_processes_follow_the_matrix_form(case: str, four_processes: tuple[dict, dict]) -> None:
    given, measured = four_processes
    spec, topology = CASES[case]
    schedule = topology_named(topology, len(given["x0"]))
    problem = DenseProblem(
        x0=given["x0"],
        gradient=lambda t, x: np.einsum("nij,nj->ni", given["A"], x) - given["b"],
        mixing=lambda t: schedule[t].dense(),
        lr=lambda t: 0.1 * 0.7 ** (t // 10),
        move=heavy_ball(*given["x0"].shape),
    )
    expected = algorithm(**spec).matrix_form(problem, STEPS)
    assert np.abs(measured[case] - expected).max() <= 1e-11 * np.abs(expected).max()


def test_the_consensus_of_four_processes_is_their_average_and_the_same_everywhere(
    four_processes: tuple[dict, dict],
) -> None:
    _, seen = four_processes
    names = [key.removeprefix("own.") for key in seen if key.startswith("own.")]
    assert {"0.weight", "1.running_mean", "1.num_batches_tracked", "2.bias"} <= set(names)
    for name in names:
        own, mean = seen[f"own.{name}"], seen[f"mean.{name}"]
        if name == "2.bias":  # frozen: every process keeps its own
            assert np.array_equal(mean, own)
            continue
        assert np.abs(mean - own.mean(axis=0)).max() <= 1e-15
        assert (mean == mean[:1]).all(), f"{name} is the same on every process, to the bit"
        assert name == "1.num_batches_tracked" or np.ptp(own, axis=0).max() > 1e-3, "the workers disagree"


def test_the_consensus_of_one_process_is_a_copy_of_it() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    opt = decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with opt.consensus() as mean:
        assert mean is not model
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), mean.state_dict().values(), strict=True)
        )
    with pytest.raises(AlgorithmError, match="bn must be 'average' or 'local'"), opt.consensus(bn="frozen"):  # type: ignore[arg-type]
        pass


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(model: nn.Module, opt: torch.optim.Optimizer) -> list[torch.Tensor]:
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=12)
    inputs = torch.randn(12, 8, 3, generator=torch.Generator().manual_seed(1))
    for batch in inputs:
        opt.zero_grad()
        model(batch).square().mean().backward()
        opt.step()
        schedule.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    "inner",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
    ],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize("order", ["awc", "atc"])
def test_one_process_is_the_inner_optimizer_to_the_bit(inner, order: str) -> None:
    plain, wrapped = net(), net()
    expected = train(plain, inner(plain.parameters()))
    opt = decentralize(inner(wrapped.parameters()), wrapped, algorithm=algorithm("dsgd", order=order))
    assert isinstance(opt, torch.optim.Optimizer)
    assert all(torch.equal(a, b) for a, b in zip(train(wrapped, opt), expected, strict=True))


def test_an_unused_parameter_stays_without_gradient_and_without_decay() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    before = copy.deepcopy(model["unused"].state_dict())
    opt = decentralize(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), model)
    model["used"](torch.ones(4, 2)).sum().backward()
    opt.step()
    assert model["unused"].weight.grad is None
    assert all(torch.equal(v, before[k]) for k, v in model["unused"].state_dict().items())


def test_it_refuses_what_it_cannot_run() -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(AlgorithmError, match="has 3 workers, but there are 1 processes"):
        decentralize(opt, model, topology=from_matrices(np.full((3, 3), 1 / 3)))
    with pytest.raises(AlgorithmError, match="not the model's"):
        decentralize(opt, net())
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double())
    with pytest.raises(AlgorithmError, match="of 2 kinds"):
        decentralize(torch.optim.SGD(mixed.parameters(), lr=0.1), mixed, algorithm="choco-sgd")
    cta = decentralize(opt, model, algorithm=algorithm("dsgd", order="cta"))
    with pytest.raises(AlgorithmError, match="no forward of the model"):
        cta.step()
    with pytest.raises(AlgorithmError, match="accumulate=4 belongs to fused=True"):
        decentralize(opt, model, accumulate=4)
    with pytest.raises(AlgorithmError, match="fused=True needs an algorithm that only hands on"):
        decentralize(opt, model, algorithm="gradient-tracking", fused=True)


def test_closures_and_hooks_work() -> None:
    model = net()
    opt = decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model)
    seen = []
    opt.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    first = opt.step(closure)
    assert opt.step(closure) < first
    assert seen == ["after", "after"]


def test_an_optimizer_that_asks_for_a_closure_is_refused() -> None:
    model = net()
    with pytest.raises(AlgorithmError, match="LBFGS calls the loss itself"):
        decentralize(torch.optim.LBFGS(model.parameters()), model)


@pytest.mark.parametrize(
    "options", [{"algorithm": algorithm("dsgd", order="cta")}, {"fused": True}], ids=["cta", "fused"]
)
def test_a_copy_of_the_model_and_a_second_optimizer_have_nothing_to_do_with_the_first(options: dict) -> None:
    model, loss = net(), lambda m: m(torch.ones(4, 3)).square().mean()
    first = decentralize(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
    loss(model).backward()
    first.step()
    average = copy.deepcopy(model)
    before = copy.deepcopy(average.state_dict())
    loss(average).backward()
    assert all(torch.equal(v, before[k]) for k, v in average.state_dict().items())
    second = decentralize(torch.optim.SGD(model.parameters(), lr=0.0), model, **options)
    at = copy.deepcopy(model.state_dict())
    loss(model).backward()
    second.step()
    assert all(torch.equal(v, at[k]) for k, v in model.state_dict().items()), "the first one does not move it"
    assert (first.t, second.t) == (1, 1)
