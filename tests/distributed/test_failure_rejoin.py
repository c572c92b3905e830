"""A process that was lost and is started again: it takes over where a neighbour is, and is one of them from then on."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from crew import Crew, Run, left
from plain import flat, normed, squared

import dissensus
from dissensus.algorithms import algorithm
from dissensus.algorithms.engines.distributed import entering
from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.testing import Injection

HERE = Path(__file__)
N, STEPS, WHO = 4, 60, 2
ALGORITHMS = {
    "dsgd": {"name": "dsgd"},
    "gradient-tracking": {"name": "gradient-tracking"},
    "sgp": {"name": "sgp"},
    "qg-dsgdm": {"name": "qg-dsgdm"},
    "allreduce": {"name": "allreduce"},
}


def loop(
    plan: str,
    graph: str = "ring",
    name: str = "dsgd",
    fused: bool = False,
    width: int = 7,
    on_failure: Literal["stop", "continue"] = "continue",
) -> None:
    """Makes steps until everybody is there again, so many more, and 40 in which nobody learns."""
    init_process_group()
    worker = torch.distributed.get_rank()
    assert torch.distributed.get_world_size() == N
    model: Any = normed()
    if width != 7:
        model = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Linear(width, 3)).double()
    opt = dissensus.decentralize(
        torch.optim.Adam(model.parameters(), lr=0.01),
        model,
        algorithm=algorithm(**ALGORITHMS[name]),
        topology=graph,
        timeout=5.0,
        on_failure=on_failure,
        fused=fused,
    )
    injection = Injection.of("" if opt.t else plan)
    begins = opt.t
    path, memories, t = {}, {}, opt.t
    last = None
    while last is None or t < last:
        exchange: Any = opt.held.exchange
        if last is None and on_failure == "continue" and exchange.membership.now.generation and len(opt.present) == N:
            last = exchange.begins + STEPS  # the same for all
        path[t], memories[t] = flat(model), remembered(opt)
        opt.zero_grad()
        injection(worker, t, model)
        squared(model, t, worker).backward()
        opt.step()
        t += 1
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    for group in opt.param_groups:
        group["lr"] = 0.0
    for _ in range(40):
        opt.zero_grad()
        squared(model, t, worker)
        opt.step()
    with opt.consensus() as average:
        mean = flat(average)
    kept = {"path": path, "memories": memories, "buffers": buffers}
    left({"begins": begins, "present": opt.present, "t": opt.t, "end": flat(model), "mean": mean, **kept})


def remembered(opt: Any) -> torch.Tensor:
    """What Adam remembers, as one vector."""
    averages = [opt.state[p]["exp_avg"].flatten() for _, p in opt.named if p in opt.state]
    return torch.cat(averages) if averages else torch.zeros(0)


def until_ended(run: Run, number: int) -> None:
    assert run.codes([number], 60.0) == [-signal.SIGKILL], run.log(number)


def together_again(run: Run, *came: int) -> list[dict[str, Any]]:
    codes = run.codes(range(N), 90.0)
    run.end()
    logs = {q: run.log(q)[-3000:] for q in range(N)}
    assert codes == [0] * N, logs
    found = [run.left(q) for q in range(N)]
    assert {one["present"] for one in found} == {tuple(range(N))}
    assert {one["t"] for one in found} == {found[0]["t"]}
    for q, one in enumerate(found):
        assert (one["begins"] > 0) == (q in came), logs
        torch.testing.assert_close(one["mean"], found[0]["mean"], rtol=0, atol=0)
        torch.testing.assert_close(one["end"], one["mean"], rtol=1e-7, atol=1e-9)
    return found


@pytest.mark.parametrize(
    ("graph", "name", "fused"),
    [
        pytest.param("ring", "dsgd", False, marks=pytest.mark.slow),
        ("one-peer-exponential", "sgp", False),
        pytest.param("ring", "gradient-tracking", False, marks=pytest.mark.slow),
        pytest.param("ring", "qg-dsgdm", False, marks=pytest.mark.slow),
        ("ring", "allreduce", False),
        ("ring", "dsgd", True),
    ],
)
def test_it_takes_over_from_a_neighbour(graph: str, name: str, fused: bool, crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan=f"kill {WHO} at 6", graph=graph, name=name, fused=fused)
    until_ended(run, WHO)
    run.start(WHO)
    found = together_again(run, WHO)
    begins = found[WHO]["begins"]
    neighbour = {"ring": 1, "one-peer-exponential": 0}[graph]
    mine, its = found[WHO], found[neighbour]
    assert begins > 6
    torch.testing.assert_close(mine["path"][begins], its["path"][begins], rtol=0, atol=0)
    torch.testing.assert_close(mine["memories"][begins], its["memories"][begins], rtol=0, atol=0)
    assert mine["memories"][begins].norm() > 0
    if name != "allreduce":
        apart = found[(neighbour - 1) % N]["path"].get(begins)
        assert apart is None or not torch.equal(apart, mine["path"][begins]), (
            "it is that neighbour's, and nobody else's"
        )
    assert mine["buffers"]["1.num_batches_tracked"] == its["buffers"]["1.num_batches_tracked"]


def test_two_that_were_lost_come_again(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan="kill 1 at 6; kill 3 at 6; sleep all 20ms")
    until_ended(run, 1)
    until_ended(run, 3)
    run.start(1)
    run.start(3)
    together_again(run, 1, 3)


def test_one_that_comes_with_another_model_is_refused_and_the_others_go_on(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan=f"kill {WHO} at 6; sleep all 20ms")
    until_ended(run, WHO)
    run.start(WHO, width=8)
    assert run.codes([WHO], 60.0) not in ([0], [None])
    assert "process 2 differs from the others in the number of parameters" in run.log(WHO), run.log(WHO)
    run.start(WHO)
    together_again(run, WHO)


def test_nobody_comes_again_to_a_run_that_stops(crew: Crew) -> None:
    run = crew.start(f"{HERE}:loop", N, plan="kill 1 at 6; hang 0 at 5", on_failure="stop")
    until_ended(run, 1)
    run.start(1)
    assert run.codes([1], 60.0) not in ([0], [None])
    assert "runs that processes can come back to need on_failure='continue'" in run.log(1), run.log(1)
    run.end()


def test_a_process_that_has_not_entered_here_comes_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entering, "_entered", None)
    assert entering.comes_again() is None


def test_one_that_comes_again_is_told_how_messages_go(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, str] = {}
    store = SimpleNamespace(set=said.__setitem__, get=said.__getitem__, check=lambda keys: keys[0] in said)
    monkeypatch.setattr(entering, "_entered", entering._Entered(store, 0, 2, again=False))
    box: Any = SimpleNamespace(number=0, place=("127.0.0.1", 5), secret="a secret")
    entering.announce(box, in_pieces=True)
    monkeypatch.setattr(entering, "_entered", entering._Entered(store, 1, 2, again=True))
    found = entering.comes_again()
    assert found is not None
    assert (found.places, found.secret, found.in_pieces) == ({0: ("127.0.0.1", 5)}, "a secret", True)
