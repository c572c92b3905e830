"""Instruments attached to a decentralized loop: each process has one process's number; training does not notice."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

WORKER = Path(__file__).with_name("attached_ranks_worker.py")
WORLD = 3


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attached_ranks_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every process wrote; whatever happens, none of them outlives the call."""
    place = tmp_path_factory.mktemp("ranks") / "meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", str(WORKER), str(rank), str(WORLD), str(place)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * WORLD, [err for _, err in outputs]
    return [json.loads(Path(f"{place}.{rank}").read_text()) for rank in range(WORLD)]


def measured(line: dict[str, Any]) -> dict[str, Any]:
    """A line without its cost in seconds, which differs."""
    return {key: value for key, value in line.items() if key != "seconds"}


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_every_rank_records_the_same_bits(answers: list[dict[str, Any]], kind: str) -> None:
    first, *others = ([measured(line) for line in answer[kind]["lines"]] for answer in answers)
    assert all(other == first for other in others)
    assert [(line["step"], line["name"]) for line in first] == [
        (t, name) for t in (0, 3, 6, 7) for name in ("trace", "exact", "top 1", "top 2")
    ]
    assert {line["which"] for line in first} == {"consensus"}
    assert not any("error" in line for line in first)


@pytest.mark.parametrize(("kind", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_the_numbers_are_those_of_one_process_with_all_samples(
    answers: list[dict[str, Any]], worker: ModuleType, kind: str, tolerance: float
) -> None:
    dtype = getattr(torch, kind)
    x, y = (torch.cat(part) for part in zip(*worker.data(dtype, WORLD), strict=True))
    lines = iter(answers[0][kind]["lines"])
    with torch.random.fork_rng():
        model = worker.network(dtype).eval()
        for seen in answers[0][kind]["seen"]:
            model.load_state_dict({name: torch.tensor(value, dtype=own.dtype) for (name, own), value in zip(
                model.state_dict().items(), seen.values(), strict=True)})  # fmt: skip
            for look in worker.looks((x, y)).values():
                alone = look(model)
                for estimate in alone.values() if isinstance(alone, dict) else [alone]:
                    line = next(lines)
                    assert line["value"] == pytest.approx(estimate.value, rel=tolerance)
                    assert line["num_matvecs"] == estimate.num_matvecs
                    assert line["converged"] == estimate.converged
    assert next(lines, None) is None


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_training_does_not_see_that_it_is_looked_at(answers: list[dict[str, Any]], kind: str) -> None:
    assert all(answer[kind]["same"] for answer in answers)
    assert all(answer[kind]["seen"] == answers[0][kind]["seen"] for answer in answers), "one consensus for all"
    values = [line["value"] for line in answers[0][kind]["lines"] if line["name"] == "exact"]
    assert len(set(values)) == len(values), "training moved"


def test_the_first_rank_says_whether_there_is_time(answers: list[dict[str, Any]]) -> None:
    for case in ("first is slow", "last is slow"):
        steps = [answer["shared"][case] for answer in answers]
        assert all(own == steps[0] for own in steps), case
    slow, fast = answers[0]["shared"]["first is slow"], answers[0]["shared"]["last is slow"]
    assert fast == list(range(20))
    assert slow[0] == 0
    assert len(slow) < 10


def test_single_workers_are_not_at_hand_on_many_ranks(answers: list[dict[str, Any]]) -> None:
    says = "Decentralized has no view of a single worker: leave workers out, or train in the stacked engine"
    assert [answer["workers"] for answer in answers] == [says] * WORLD
