"""A process comes again to a loop in which all do something together: nobody waits for what another one does not do.

The turn of the loop before the one with which it begins is half over when it is let in: what comes after the step in
that turn it does not do, and what comes before the step in the next one it does.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, Run, left
from plain import flat, normed, squared

import dissensus
from dissensus.algorithms import algorithm, load_training, save_training
from dissensus.algorithms.engines.distributed import surviving
from dissensus.algorithms.engines.distributed.checkpoint import checkpoints
from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.testing import Injection

HERE = Path(__file__)
N, STEPS, WHO = 4, 12, 2
ALL = tuple(range(N))


def loop(
    plan: str,
    after: str = "",
    before: str = "",
    name: str = "dsgd",
    folder: str = "",
    fused: bool = False,
    width: int = 0,
    second: int = -1,
) -> None:
    """Makes steps until everybody is there again, and so many more; looks or saves before or after every step."""
    init_process_group()
    worker = torch.distributed.get_rank()
    model: Any = normed()
    if width:
        model = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Linear(width, 3)).double()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=1e-6 if width else 0.01, momentum=0.9),
        model,
        algorithm=algorithm(name),
        timeout=8.0,
        on_failure="continue",
        fused=fused,
    )
    begins = opt.t
    if folder:
        assert load_training(folder, opt, model).step == begins
    injection = Injection.of("" if begins else plan)
    exchange: Any = opt.held.exchange
    looked: dict[int, torch.Tensor] = {}
    saved: dict[int, str] = {}
    last: int | None = None

    def together(what: str) -> None:
        if worker == second and exchange.membership.now.newcomers and opt.t == exchange.begins:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "look":
            with opt.consensus() as average:
                looked[opt.t] = flat(average)
        if what == "save":
            place = save_training(folder, opt, model, keep=None)
            saved[opt.t] = "given up" if place is None else place.name

    t = opt.t
    while last is None or t < last:
        if last is None and exchange.membership.now.newcomers:
            last = exchange.begins + STEPS  # the same for all
        together(before)
        opt.zero_grad()
        injection(worker, t, model)
        squared(model, t, worker).backward()
        opt.step()
        t += 1
        together(after)
    members = exchange.membership.now
    told = {"begins": exchange.begins, "newcomers": members.newcomers, "generation": members.generation}
    left({**told, "came": begins, "present": opt.present, "looked": looked, "saved": saved, "end": flat(model)})


def again(crew: Crew, *lost: int, **options: Any) -> tuple[Run, list[dict[str, Any]]]:
    """One is killed and comes again; what all have left, but for those that were lost for good."""
    run = crew.start(f"{HERE}:loop", N, plan=f"kill {WHO} at 6; sleep all 20ms", **options)
    assert run.codes([WHO], 60.0) == [-signal.SIGKILL], run.log(WHO)
    run.start(WHO)
    others = [q for q in range(N) if q not in lost]
    codes = run.codes(others, 90.0)
    run.end()
    logs = {q: run.log(q)[-3000:] for q in range(N)}
    assert codes == [0] * len(others), logs
    return run, [run.left(q) for q in others]


def check_nobody_waited_in_vain(found: list[dict[str, Any]]) -> int:
    """With which step it came; a time-out would have led to yet another group."""
    assert {one["newcomers"] for one in found} == {(WHO,)}, [one["generation"] for one in found]
    assert {one["present"] for one in found} == {ALL}
    (begins,) = {one["begins"] for one in found}
    assert [one["came"] for one in found] == [begins if q == WHO else 0 for q in ALL]
    return begins


def check_looks(found: list[dict[str, Any]], begins: int) -> None:
    later = range(begins + 1, begins + STEPS)
    for one in found:
        assert set(later) <= set(one["looked"])
        for t in later:
            torch.testing.assert_close(one["looked"][t], found[0]["looked"][t], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "its_first"),
    [
        ({"after": "look"}, 1),
        ({"before": "look"}, 0),
        ({"after": "look", "name": "allreduce"}, 1),
        ({"after": "look", "before": "look", "name": "sgp"}, 0),
    ],
)
def test_averages_are_looked_at(options: dict[str, str], its_first: int, crew: Crew) -> None:
    _, found = again(crew, **options)
    begins = check_nobody_waited_in_vain(found)
    check_looks(found, begins)
    assert min(found[WHO]["looked"]) == begins + its_first
    for t in {begins} & found[0]["looked"].keys():
        seen = [found[q]["looked"][t] for q in ALL if q != WHO]
        assert all(torch.equal(one, seen[0]) for one in seen), "the others have looked at theirs"


@pytest.mark.parametrize("when", ["after", "before"])
def test_checkpoints_are_saved(when: str, crew: Crew, tmp_path: Path) -> None:
    _, found = again(crew, folder=str(tmp_path), **{when: "save"})
    begins = check_nobody_waited_in_vain(found)
    on_disk = {one.step: one.workers for one in checkpoints(tmp_path)}
    assert on_disk[begins] == tuple(q for q in ALL if q != WHO)
    for t in range(begins + 1, begins + STEPS):
        assert on_disk[t] == ALL
        assert {one["saved"][t] for one in found} == {f"step_{t:06d}"}
    assert found[WHO]["saved"].get(begins) == (None if when == "after" else "given up")


def test_one_more_is_lost_while_the_others_look_without_the_one_that_came(crew: Crew) -> None:
    _, found = again(crew, 0, after="look", second=0)
    assert {one["present"] for one in found} == {(1, 2, 3)}
    (begins,) = {one["begins"] for one in found}
    assert len({one["generation"] for one in found}) == 1
    assert {one["newcomers"] for one in found} == {()}, "one group more, for the one that was lost, and no other"
    for t in range(begins, begins + STEPS - 2):
        seen = [one["looked"][t] for one in found]
        assert all(torch.equal(one, seen[0]) for one in seen)


def test_a_mean_of_the_step_before_is_taken_without_it_where_parts_of_a_model_go_one_by_one(crew: Crew) -> None:
    _, found = again(crew, name="allreduce", fused=True, width=16_000, after="look")
    begins = check_nobody_waited_in_vain(found)
    check_looks(found, begins)
    for one in found:
        torch.testing.assert_close(one["end"], found[0]["end"], rtol=0, atol=0)


# ---- two come, and one of them is lost as it does


def two(each: float) -> None:
    """1 and 3 kill themselves and come together; 1 does it again when it should take over."""
    init_process_group()
    worker, folder = torch.distributed.get_rank(), Path(os.environ["CREW_FOLDER"])
    came = (folder / f"{worker}.again").exists()
    join = surviving.Surviving.join

    def together(exchange: Any, host: Any) -> None:
        (folder / f"{worker}.here").touch()
        while not all((folder / f"{q}.here").exists() for q in (1, 3)):
            time.sleep(0.001)
        join(exchange, host)

    surviving.Surviving.join = together  # type: ignore[method-assign]
    if came and worker == 1:
        surviving.take_over = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    model: Any = normed()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.01), model, timeout=8.0, on_failure="continue"
    )
    exchange: Any = opt.held.exchange
    t, last = opt.t, None
    while last is None or t < last:
        members = exchange.membership.now
        if last is None and members.newcomers == (3,):
            last = exchange.begins + STEPS
        if t == 6 and worker in (1, 3) and not came:
            (folder / f"{worker}.again").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        opt.zero_grad()
        squared(model, t, worker).backward()
        opt.step()
        time.sleep(each)
        t += 1
    left({"present": opt.present, "came": came})


def test_of_two_that_come_to_one_donor_one_is_lost_and_the_other_joins(crew: Crew) -> None:
    run = crew.start(f"{HERE}:two", N, each=0.5)
    assert run.codes([1, 3], 60.0) == [-signal.SIGKILL] * 2, (run.log(1), run.log(3))
    run.start(1)
    run.start(3)
    codes = run.codes([0, 2, 3], 90.0)
    gone = run.codes([1], 0.0)
    run.end()
    assert codes == [0, 0, 0], {q: run.log(q)[-3000:] for q in range(N)}
    assert gone == [-signal.SIGKILL]
    found = [run.left(q) for q in (0, 2, 3)]
    assert [(one["present"], one["came"]) for one in found] == [((0, 2, 3), q == 3) for q in (0, 2, 3)]
    assert "processes 0, 1, 2, 3 go on" in run.log(0), "both had been let in together"
    assert "handing over, sending to process 1" in run.log(0)
