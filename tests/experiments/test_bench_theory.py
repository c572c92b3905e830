"""The theory benchmark: what it compares agrees, and its output is JSON. No time is asserted."""

import json

import pytest

from dissensus.experiments.bench.theory import bench_theory, interleaved
from dissensus.experiments.errors import ConfigError


@pytest.fixture(scope="module")
def small():
    return bench_theory("small", repeats=1)


def test_contenders_agree_on_every_gap(small):
    assert {"ring n=1000", "ring, relabelled, n=1000", "random geometric n=1000"} <= {
        case["case"] for case in small["spectral_gap"]
    }
    for case in small["spectral_gap"]:
        for name, value in case["values"].items():
            assert value == pytest.approx(case["gap"], rel=1e-6, abs=1e-10), (case["case"], name)
        assert set(case["times_slower_than_ours"]) == set(case["values"]) - {"ours"}
        if case["relative_error"] is not None:
            assert case["relative_error"] * case["gap"] <= case["stated_error"] + 1e-15


def test_exchange_equals_the_sparse_product(small):
    for case in small["exchange"]:
        assert case["largest_difference"] < (1e-5 if case["dtype"] == "float32" else 1e-13), case["case"]
        assert case["one_peer"] == ("pairs" in case["case"] or "directed" in case["case"])
        assert case["ratio_to_copy"] > 0
        assert case["ratio_to_best_product"] > 0


def test_predictions_agree_with_the_other_way(small):
    cases = [case["case"] for case in small["prediction"]]
    assert [case.split(",")[0] for case in cases] == ["stationary", "lyapunov", "certificate", "certificate"]
    for case in small["prediction"]:
        assert set(case["times_slower_than_ours"]) == set(case["relative_difference"])
        assert all(apart < 1e-6 for apart in case["relative_difference"].values()), case["case"]


def test_output_is_json(small):
    assert json.loads(json.dumps(small))["scale"] == "small"


def test_runs_are_interleaved():
    seen: list[str] = []
    times, results = interleaved({"a": lambda: seen.append("a"), "b": lambda: len(seen)}, 3)
    assert seen == ["a", "a", "a"]
    assert results["b"] == 3
    assert times["a"]["runs"] == 3
    assert times["b"]["min"] <= times["b"]["median"] <= times["b"]["max"]


def test_scale_is_checked():
    with pytest.raises(ConfigError, match="scale must be 'small' or 'full', got 'huge'"):
        bench_theory("huge")  # type: ignore[arg-type]
