"""`dissensus export`: the file loads with strict=True into the bare module and holds the consensus, or one worker."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from dissensus.algorithms.engines.distributed.saving import save
from dissensus.experiments.cli import main
from dissensus.experiments.export import export, write_safetensors
from dissensus.experiments.loading import load
from dissensus.experiments.records import Run
from dissensus.experiments.runner import run_cell
from dissensus.experiments.state import STATE_FILE, finished

N = 3


class Everything(nn.Module):
    """Tied weights, BatchNorm, a frozen layer, a buffer that is not kept, and a scalar."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.conv, self.norm = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.scale = nn.Parameter(torch.rand(()))
        self.register_buffer("scratch", torch.rand(2), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.to(dtype)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.num_batches_tracked.fill_(7 + seed)  # type: ignore[union-attr]
        with torch.no_grad():
            self.frozen.weight.fill_(0.1)
            self.frozen.bias.fill_(-0.3)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "parameters": dict(model.named_parameters(remove_duplicate=False)),
        "buffers": dict(model.named_buffers(remove_duplicate=False)),
        "names": list(model.state_dict()),
    }


def saved(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> list[nn.Module]:
    models: list[nn.Module] = [Everything(seed, dtype) for seed in range(N)]
    save(folder, 40, {i: state_of(m) for i, m in enumerate(models)}, size=N, **options)
    return models


def loaded(file: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    fresh = Everything(99, dtype)
    fresh.load_state_dict(load_file(file), strict=True)
    return fresh.state_dict()


def about(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return opened.metadata()


def close(got: torch.Tensor, rows: list[torch.Tensor]) -> bool:
    """Whether it is their mean: n additions and a division in their own precision, or in a wider one."""
    exact = np.stack([row.double().numpy() for row in rows])
    error = np.abs(got.double().numpy() - exact.mean(0)).max()
    return got.dtype == rows[0].dtype and error <= (N + 2) * torch.finfo(got.dtype).eps * max(1e-30, abs(exact).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_consensus_of_a_checkpoint_loads_strictly_and_is_the_mean(dtype: torch.dtype, tmp_path: Path) -> None:
    models = saved(tmp_path / "checkpoints", dtype)
    done = export(tmp_path / "checkpoints", tmp_path / "m.safetensors")
    got = loaded(done.out, dtype)
    states = [m.state_dict() for m in models]
    for name, value in got.items():
        if value.is_floating_point():
            assert close(value, [s[name] for s in states]), name
        else:
            assert torch.equal(value, states[0][name]), name
    assert torch.equal(got["frozen.weight"], torch.full((2, 2), 0.1, dtype=dtype)), "what is equal stays to the bit"
    assert torch.equal(got["head.weight"], got["embed.weight"])
    assert (done.which, done.bn, done.step, done.workers) == ("consensus", "average", 40, N)
    assert done.numbers == sum(v.numel() for v in got.values())
    assert about(done.out) | {"dissensus": ""} == {
        "format": "pt",
        "which": "consensus",
        "bn": "average",
        "step": "40",
        "workers": "3",
        "left_out": "[]",
        "source": "step_000040",
        "dissensus": "",
    }


def test_buffers_of_worker_0_or_a_worker_with_its_own(tmp_path: Path) -> None:
    models = saved(tmp_path)
    local = loaded(export(tmp_path, tmp_path / "l.safetensors", bn="local").out)
    assert torch.equal(local["norm.running_mean"], models[0].state_dict()["norm.running_mean"])
    assert close(local["conv.weight"], [m.state_dict()["conv.weight"] for m in models])
    one = export(tmp_path / "step_000040", tmp_path / "w.safetensors", worker=2)
    assert all(torch.equal(v, models[2].state_dict()[name]) for name, v in loaded(one.out).items())
    assert (one.which, one.bn, about(one.out)["which"]) == ("worker 2", "worker 2's own", "worker 2")


def test_what_push_sum_deploys_is_exported_and_not_its_point(tmp_path: Path) -> None:
    models = [nn.Linear(3, 2) for _ in range(2)]
    own = {
        i: {
            **state_of(m),
            "deployed": {"weight": m.weight.detach() / (0.5 + i)},
            "algorithm": {"weight": torch.ones(1)},
        }
        for i, m in enumerate(models)
    }
    save(tmp_path, 1, own, size=2)
    got = load_file(export(tmp_path, tmp_path / "m.safetensors").out)
    rows = [m.weight.detach() / (0.5 + i) for i, m in enumerate(models)]
    assert torch.allclose(got["weight"], (rows[0] + rows[1]) / 2, rtol=1e-6)
    assert torch.allclose(got["bias"], (models[0].bias + models[1].bias) / 2, rtol=1e-6)


def test_isolated_and_gone_workers_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    models = [nn.Linear(2, 2) for _ in range(4)]
    own = {i: state_of(m) for i, m in enumerate(models) if i != 3}
    save(tmp_path, 5, own, size=4, facts={"isolated": [1]}, together=lambda said: [said])
    out = tmp_path / "m.safetensors"
    assert main(["export", str(tmp_path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "consensus of 4 workers, without 1, 3 after 5 steps: 6 numbers in 2 tensors",
        str(out),
    ]
    assert torch.equal(load_file(out)["weight"], (models[0].weight + models[2].weight) / 2)
    assert about(out)["left_out"] == "[1, 3]"
    assert export(tmp_path, out, worker=1).left_out == ()
    save(tmp_path, 6, {i: state_of(models[i]) for i in range(2)}, size=2, facts={"isolated": [0, 1]})
    assert "holds no worker that is not isolated: name one with --worker" in refused(capsys, tmp_path, "--out", out)


def test_shared_and_scattered_memory_and_parameters_are_written_by_themselves(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    tensors = {
        "row": flat[:4],
        "again": flat[:4],
        "column": flat.view(3, 4)[:, 1],
        "images": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "wide": torch.ones(1).expand(5),
        "p": nn.Parameter(torch.ones(2)),
    }
    write_safetensors(tmp_path / "m.safetensors", tensors, {})
    got = load_file(tmp_path / "m.safetensors")
    assert got.keys() == tensors.keys()
    assert all(torch.equal(got[name], value) for name, value in tensors.items())


def test_a_file_that_was_there_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "m.safetensors"
    write_safetensors(out, {"a": torch.zeros(2)}, {})

    def stuck(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stuck)
        with pytest.raises(PermissionError):
            write_safetensors(out, {"a": torch.ones(2)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    assert torch.equal(load_file(out)["a"], torch.zeros(2))
    write_safetensors(out, {"a": torch.ones(2)}, {})
    assert torch.equal(load_file(out)["a"], torch.ones(2))


CONFIG = {
    "name": "tiny",
    "data": {"name": "digits", "images": True},
    "model": {"name": "resnet", "depth": 8, "width": 1},
    "lr": {"peak": 0.05},
    "train": {"steps": 6, "workers": N, "batch": 4, "keep": True},
    "probes": {"every": 6, "curvature_every": 0, "samples": 8, "noise_batches": 2, "trace_error": 0.9},
    "arms": {"dsgd": {"algorithm": "dsgd"}},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outcome = run_cell(load(**CONFIG).cell("dsgd", 0), tmp_path_factory.mktemp("runs"))
    assert outcome.status == "ok", outcome.error
    return outcome.path


@pytest.mark.parametrize("bn", ["average", "local"])
def test_a_run_is_exported_as_its_engine_has_it(bn: Any, ran: Path, tmp_path: Path) -> None:
    done = export(ran, tmp_path / "m.safetensors", bn=bn)
    engine = finished(Run.read(ran)).engine
    with engine.consensus(bn) as model:
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(load_file(done.out), strict=True)
        assert any("running_var" in name for name in expected)
        assert all(torch.equal(load_file(done.out)[name], value) for name, value in expected.items())
    assert (done.step, done.workers, done.bn, done.source) == (6, N, bn, ran)
    one = export(ran, tmp_path / "w.safetensors", worker=1)
    with engine.worker(1) as model:
        assert all(torch.equal(load_file(one.out)[name], value) for name, value in model.state_dict().items())


def test_a_run_without_weights_is_trained_again_or_refused(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bare = tmp_path / ran.name
    shutil.copytree(ran, bare)
    (bare / STATE_FILE).unlink()
    shutil.rmtree(bare / "checkpoints", ignore_errors=True)
    out = tmp_path / "m.safetensors"
    assert "holds no weights (no state.pt): train it once more with --again (6 steps)" in refused(
        capsys, bare, "--out", out
    )
    assert main(["export", str(bare), "--out", str(out), "--again", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["out"] == str(out)
    assert (said["which"], said["step"], said["workers"], said["left_out"]) == ("consensus", 6, N, [])
    assert load_file(out).keys() == load_file(export(ran, tmp_path / "o.safetensors").out).keys()


def test_the_last_checkpoint_of_a_run_that_has_not_come_to_its_end(ran: Path, tmp_path: Path) -> None:
    cut = tmp_path / ran.name
    shutil.copytree(ran, cut)
    for name in (STATE_FILE, "summary.json"):
        (cut / name).unlink()
    model = nn.Linear(2, 2)
    save(cut / "checkpoints", 4, {i: state_of(model) for i in range(N)}, size=N)
    done = export(cut, tmp_path / "m.safetensors")
    assert (done.step, done.source.name) == (4, "step_000004")
    model.load_state_dict(load_file(done.out), strict=True)


def refused(capsys: pytest.CaptureFixture, *line: Any) -> str:
    assert main(["export", *map(str, line)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dissensus: export: ")
    assert err.count("\n") == 1, "an error is one sentence"
    return err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["{ok}"], "the following arguments are required: --out"),
        (["{ok}", "--out", "m.pt"], "m.pt would be written as safetensors: give it a name that ends in .safetensors"),
        (
            ["{ok}", "--out", "m.safetensors", "--worker", "7"],
            "there is no worker 7: {ok}/step_000040 holds workers 0, 1",
        ),
        (
            ["{ok}", "--out", "m.safetensors", "--worker", "1", "--bn", "local"],
            "--bn is for the consensus, and --worker",
        ),
        (["{ok}", "--out", "m.safetensors", "--bn", "recalibrate"], "invalid choice: 'recalibrate'"),
        (["{ok}", "--out", "m.safetensors", "--again"], "{ok} is no run directory, which alone can be trained again"),
        (["gone", "--out", "m.safetensors"], "gone is no run directory and holds no complete checkpoint"),
        (["{runs}", "--out", "m.safetensors"], "holds no complete checkpoint; it holds 1 runs, such as {run}"),
        (["{run}", "--out", "m.safetensors", "--worker", "-1"], "there is no worker -1: {run} holds workers 0, 1, 2"),
        (["{ok}", "--out", "gone/m.safetensors"], "gone/m.safetensors could not be written"),
    ],
)
def test_errors(line: list[str], says: str, ran: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "ok")
    places = {"ok": tmp_path / "ok", "runs": ran.parent, "run": ran}
    assert says.format(**places) in refused(capsys, *(part.format(**places) for part in line))
    assert sorted(os.listdir(tmp_path)) == ["ok"], "nothing is left behind"


def test_what_safetensors_cannot_hold_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "m.safetensors"
    out.write_bytes(b"earlier")
    phase = {
        "parameters": {"w": torch.ones(2), "phase": torch.ones(2, dtype=torch.complex128)},
        "names": ["w", "phase"],
    }
    save(tmp_path, 1, {0: phase}, size=1)
    says = "'phase' is torch.complex128, which safetensors has no name for: convert it"
    assert says in refused(capsys, tmp_path, "--out", out)
    save(tmp_path, 2, {0: {"parameters": {"w": torch.ones(2)}, "names": ["w", "_extra_state"]}}, size=1)
    says = "step_000002 has no tensor '_extra_state', which the state_dict of the bare model needs; what a module adds"
    assert says in refused(capsys, tmp_path, "--out", out)
    assert out.read_bytes() == b"earlier", "a file that was there stays whole"
