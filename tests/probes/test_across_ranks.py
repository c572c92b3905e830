"""Two processes, each with its own data, against one process with all of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dissensus.probes import Curvature, Matrix, ProbeError, top_eigenvalues
from dissensus.probes.across_ranks import AcrossRanks

WORKER = Path(__file__).with_name("across_ranks_worker.py")


def run(place, kind, patience=120):
    """What both ranks write; whatever happens, none of them outlives the call."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(place), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=patience) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], [err for _, err in outputs]
    return [json.loads(Path(f"{place}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("kind", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_every_rank_has_the_number_of_one_process(tmp_path, kind, tolerance):
    spec = importlib.util.spec_from_file_location("across_ranks_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    first, second = run(tmp_path / "meeting", kind)
    assert first["products"] == second["products"]
    assert first["eigenvalue"] == second["eigenvalue"]
    dtype = getattr(torch, kind)
    with torch.random.fork_rng():
        model, batches = worker.problem(dtype)
    op = Curvature(model, worker.loss, batches)
    v = torch.randn(3, op.size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    truth = op.matvec(v).double()
    distance = (torch.tensor(first["products"], dtype=torch.float64) - truth).norm()
    assert distance <= tolerance * truth.norm()
    assert first["eigenvalue"] == pytest.approx(top_eigenvalues(op, 1)[0].value, rel=1e3 * tolerance)
    assert first["counted"] == second["counted"] == 3
    assert (first["share"], second["share"]) == (5 / 11, 6 / 11)
    assert first["one-sided"] == "AcrossRanks: the product failed on another rank, whose own error says why"
    assert second["one-sided"] == "no product here"
    assert first["wrong"] == "AcrossRanks: the ranks have [31, 15] parameters; build the same model on every rank"


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(ProbeError, match=r"AcrossRanks: torch.distributed is not initialised; call init_process_group"):
        AcrossRanks(Matrix(torch.eye(2).double()), 3)


def test_a_rank_without_samples_is_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1)
    try:
        with pytest.raises(ProbeError, match=r"AcrossRanks: samples must be positive on every rank, got 0"):
            AcrossRanks(Matrix(torch.eye(2).double()), 0)
        v = torch.ones(2).double()
        op = AcrossRanks(Matrix(torch.diag(torch.tensor([2.0, 3.0]).double())), 7)
        assert op.matvec(v).tolist() == [2.0, 3.0]
        assert (op.dtype, op.device, op.products) == (torch.float64, torch.device("cpu"), 1)
    finally:
        torch.distributed.destroy_process_group()
