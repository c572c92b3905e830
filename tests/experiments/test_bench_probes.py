"""The frame of the benchmark of the probes: parts, peers that are missing, and what a row of products says."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from dissensus.experiments.bench import probes, probes_peers, probes_products
from dissensus.experiments.bench.probes_cases import CASES, Case, perceptron
from dissensus.experiments.cli import main
from dissensus.experiments.errors import ConfigError

TINY = Case("tiny", "digits", perceptron(64, 3, 10), 12, 2)


def test_cases_are_the_same_at_every_call_and_as_large_as_they_say():
    sizes = {name: sum(p.numel() for p in case.build().parameters()) for name, case in CASES.items()}
    assert sizes == {
        "mlp 3k": 3466,
        "mlp 3k, relu": 3466,
        "mlp 100k": 99690,
        "cnn 19k": 19162,
        "gpt 108k": 110400,
    }
    state = torch.get_rng_state()
    first, second = TINY.model(), TINY.model()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert all(p.grad is None for p in first.parameters())


def test_a_row_of_products_compares_what_agrees(monkeypatch):
    monkeypatch.setattr(probes_products, "CASES", dict.fromkeys(("mlp 3k", "mlp 100k", "cnn 19k", "gpt 108k"), TINY))
    row = probes_products._row(TINY, 3, 0.0, 2)
    assert json.loads(json.dumps(row)) == row
    assert (row["parameters"], row["samples"], row["block"], row["route"]) == (235, 12, 3, "recorded")
    assert row["gradients"]["gradient"] == 1
    assert set(row["relative_error"]) == set(row["gradients"]) - {"gradient"}
    assert max(row["relative_error"].values()) < 1e-4
    assert set(row["missing"]) | (set(row["gradients"]) & set(probes_peers.PEERS)) == set(probes_peers.PEERS)


def test_peers_that_are_not_installed_are_named(monkeypatch):
    for name in ("pyhessian", "pyhessian.utils", "curvlinops", "hessian_eigenthings.operators.hessian"):
        monkeypatch.setitem(sys.modules, name, None)
    row = probes_products._row(TINY, 2, 0.0, 2)
    assert set(row["missing"]) == set(probes_peers.PEERS)
    assert all(reason.startswith("not installed: ") for reason in row["missing"].values())
    assert (row["fastest_peer"], row["ratio"], row["met"]) == (None, None, False)


def test_parts_come_from_the_registry_and_the_missing_are_skipped(monkeypatch, capsys):
    monkeypatch.setattr(probes, "PARTS", {"products": "json:nothing", "trace": f"{__name__}:part", "x": "absent:f"})
    assert main(["bench", "probes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"part": "trace", "scale": "small", "number": 0.5}]
    assert set(found["skipped"]) == {"products", "x"}
    assert main(["bench", "probes", "--only", "trace", "--scale", "full"]) == 0
    printed = capsys.readouterr().out
    assert "full" in printed
    assert "0.5" in printed


def part(scale):
    yield {"part": "trace", "scale": scale, "number": 0.5}


def test_unknown_parts_and_scales_are_refused():
    with pytest.raises(ConfigError, match=r"parts must be among products, trace, eigenvalues, .*, got 'speed'"):
        probes.bench_probes(parts=["speed"])
    with pytest.raises(ConfigError, match=r"scale must be 'small' or 'full', got 'huge'"):
        probes.bench_probes("huge")  # type: ignore[arg-type]
