"""Data of a run in several processes: what each of them reads, and that nothing is seen twice or never."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from torch import Tensor

from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.experiments.cell import Setup
from dissensus.experiments.config import Study
from dissensus.experiments.loading import load

HERE = Path(__file__)
SIZE, WORKERS, BATCH = 1200, 4, 10
EPOCH = SIZE // (WORKERS * BATCH)


def cell(**data: Any) -> Study:
    arms = {"dsgd": {"algorithm": "dsgd"}}
    train = {"steps": 100, "workers": WORKERS, "batch": BATCH, "start": "independent"}
    usual = {"name": "digits", "test": 1797 - SIZE}
    study = load((), (), data=usual | data, model={"name": "mlp", "width": 4}, train=train, arms=arms)
    return study.cell("dsgd", 0)


def read(data: dict[str, Any], steps: int, wired: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of the samples, the inputs and the targets that this process reads; (steps, workers, ...) each."""
    setup = Setup.build(cell(**data), Wire(timeout=60) if wired else None)
    here = setup.engine.workers
    at = [torch.from_numpy(setup.order.at(t)[here.start : here.stop].copy()) for t in range(steps)]
    x, y = zip(*(setup.batch(t) for t in range(steps)), strict=True)
    return torch.stack(at), torch.stack(x), torch.stack(y)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "data",
    [{}, {"partition": "iid"}, {"images": True, "augment": "crop"}, {"partition": "dirichlet", "alpha": 0.5}],
    ids=["shuffled", "iid", "augmented", "dirichlet"],
)
def test_processes_read_the_batches_of_one_process(data: dict[str, Any], count: int, processes: Pool) -> None:
    found = processes.run(count, f"{HERE}:read", data=data, steps=7)
    expected = read(data, 7, wired=False)
    for parts, whole in zip(zip(*found, strict=True), expected, strict=True):
        assert torch.equal(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("partition", ["shuffled", "iid"])
def test_every_sample_is_seen_once_an_epoch(partition: str, processes: Pool) -> None:
    found = processes.run(2, f"{HERE}:read", data={"partition": partition}, steps=2 * EPOCH)
    indices = torch.cat([at for at, _, _ in found], dim=1)
    first, second = indices[:EPOCH], indices[EPOCH:]
    for epoch in (first, second):
        assert epoch.flatten().sort().values.tolist() == list(range(SIZE))
    assert not torch.equal(first, second), "each epoch has an order of its own"
    if partition == "iid":
        assert all(set(first[:, i].flatten().tolist()) == set(second[:, i].flatten().tolist()) for i in range(WORKERS))


def starts() -> tuple[Tensor, str]:
    setup = Setup.build(cell(), Wire(timeout=60))
    return setup.engine.x, setup.facts()["start_hash"]


def test_workers_start_where_they_start_in_one_process(processes: Pool) -> None:
    found = processes.run(2, f"{HERE}:starts")
    expected = Setup.build(cell())
    assert torch.equal(torch.cat([x for x, _ in found]), expected.engine.x)
    assert {start for _, start in found} == {expected.facts()["start_hash"]}


def other_configuration() -> str:
    wire = Wire(timeout=30)
    try:
        Setup.build(cell(noise=0.1 * wire.rank), wire)
    except Exception as error:
        return str(error)
    return ""


def no_data() -> str:
    wire = Wire(timeout=30)
    try:
        Setup.build(cell(test=100 + 1680 * wire.rank), wire)
    except Exception as error:
        return str(error)
    return ""


def test_processes_with_other_configurations_end_before_the_first_step(processes: Pool) -> None:
    said = processes.run(2, f"{HERE}:other_configuration")
    assert all("process 1 differs from process 0 in the configuration" in one for one in said)


def test_what_one_process_cannot_build_ends_all(processes: Pool) -> None:
    said = processes.run(2, f"{HERE}:no_data")
    assert "use a batch of at most" in said[1]
    assert said[0] == f"process 1 could not start: {said[1]}"
