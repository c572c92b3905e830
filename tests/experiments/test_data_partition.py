"""Partitioners and the order of samples: every sample with exactly one worker, and nothing forgotten."""

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.experiments.cell import Setup
from dissensus.experiments.data import DATASETS, PARTITIONS, Order, heterogeneity, label_histogram, shards_of
from dissensus.experiments.data.augmentation import AUGMENTATIONS
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load

FIXED = sorted(set(PARTITIONS.names()) - {"shuffled"})
PARAMETERS: dict[str, dict[str, Any]] = {"dirichlet": {"alpha": 1.0}, "quantity": {"alpha": 0.5}}
LABELS = np.random.default_rng(5).integers(0, 6, 600)


def made(name: str, labels: np.ndarray, workers: int, seed: int, **more: Any) -> list[np.ndarray]:
    return shards_of(name, labels, workers, seed, {**PARAMETERS.get(name, {}), **more})


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, np.ndarray, int, int]:
    name = draw(st.sampled_from(FIXED))
    workers = draw(st.integers(1, 12))
    size = draw(st.integers(max(30, 2 * workers), 300))
    classes = draw(st.integers(1, 10))
    seed = draw(st.integers(0, 2**32))
    return name, np.random.default_rng(seed).integers(0, classes, size), workers, seed


@given(problems())
def test_every_sample_is_in_exactly_one_shard_and_no_shard_is_empty(problem: tuple) -> None:
    name, labels, workers, seed = problem
    shards = made(name, labels, workers, seed)
    assert len(shards) == workers
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    assert min(map(len, shards)) >= 1
    assert all(np.all(np.diff(s) > 0) for s in shards)
    again = made(name, labels, workers, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))


@pytest.mark.parametrize("name", FIXED)
def test_another_seed_makes_other_shards(name: str) -> None:
    a, b = made(name, LABELS, 4, 0), made(name, LABELS, 4, 1)
    assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_shards_are_the_same_in_another_process() -> None:
    code = """
import numpy as np
from dissensus.experiments.data import Order
labels = np.random.default_rng(5).integers(0, 6, 600)
print(Order(600, 4, 8, 3, "dirichlet", labels, {"alpha": 0.3}).fingerprint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == Order(600, 4, 8, 3, "dirichlet", LABELS, {"alpha": 0.3}).fingerprint, done.stderr


@given(st.integers(0, 1000), st.integers(2, 9))
def test_dirichlet_with_a_large_alpha_is_iid_to_within_one_sample(seed: int, workers: int) -> None:
    histogram = label_histogram(LABELS, made("dirichlet", LABELS, workers, seed, alpha=1e9))
    # proportions of Dir(1e9) are 1/n to within 1e-4 (ten standard deviations): 0.07 samples of a label
    assert np.all(np.abs(histogram - np.bincount(LABELS) / workers) <= 1.1)


@given(st.integers(0, 1000))
def test_dirichlet_with_a_small_alpha_gives_a_label_to_one_worker(seed: int) -> None:
    labels = np.arange(2000) % 40
    histogram = label_histogram(labels, made("dirichlet", labels, 4, seed, alpha=1e-3))
    share = histogram.max(axis=0) / histogram.sum(axis=0)
    assert np.mean(share == 1.0) > 0.8
    assert heterogeneity(histogram) > 0.5


def test_heterogeneity_falls_with_alpha_and_is_what_it_says() -> None:
    values = [
        heterogeneity(label_histogram(LABELS, made("dirichlet", LABELS, 6, 2, alpha=a))) for a in (0.01, 0.3, 10, 1e6)
    ]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.01
    assert heterogeneity(np.array([[4, 0], [0, 4]])) == 0.5
    assert heterogeneity(np.array([[1, 3], [2, 6]])) == 0.0
    assert heterogeneity(np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9]])) == pytest.approx(2 / 3)
    assert label_histogram(np.array([0, 2, 2, 1]), [np.array([0, 3]), np.array([1, 2])]).tolist() == [
        [1, 1, 0],
        [0, 0, 2],
    ]


def test_proportions_have_the_moments_of_the_dirichlet_law() -> None:
    labels, alpha, workers = np.zeros(1000, dtype=int), 0.7, 4
    shares = np.array(
        [[len(s) / 1000 for s in made("dirichlet", labels, workers, seed, alpha=alpha)] for seed in range(300)]
    )
    # without rejection the variance would be (1/n)(1 - 1/n) / (n alpha + 1); empty shards are drawn again, rarely
    kept = shares[:, 0].var()
    assert kept == pytest.approx(0.25 * 0.75 / (workers * alpha + 1), rel=0.3)
    assert shares.mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=5 * np.sqrt(kept / 300))


@pytest.mark.parametrize("s", [1, 2, 5])
def test_shards_hold_few_labels_each(s: int) -> None:
    labels = np.repeat(np.arange(10), 60)
    histogram = label_histogram(labels, made("shards", labels, 10, 0, shards_per_worker=s))
    assert np.all((histogram > 0).sum(axis=1) <= s)
    assert np.all(histogram.sum(axis=1) == 60)
    assert heterogeneity(histogram) >= 1 - s / 10 - 1e-12


def test_the_shards_of_a_worker_are_dealt_at_random() -> None:
    labels = np.repeat(np.arange(20), 30)
    pairs = {
        tuple(np.flatnonzero(row))
        for row in label_histogram(labels, made("shards", labels, 10, 0, shards_per_worker=2))
    }
    # of ten random pairs among twenty labels about one is of neighbours, not all of them
    assert len(pairs & {(k, k + 1) for k in range(19)}) < 5


def test_quantity_skews_sizes_and_not_labels() -> None:
    sizes = [len(s) for s in made("quantity", LABELS, 8, 1, alpha=0.3, min_samples=10)]
    assert min(sizes) >= 10
    assert max(sizes) > 3 * np.median(sizes)
    assert {len(s) for s in made("quantity", LABELS, 8, 1, alpha=1e9)} <= {74, 75, 76}
    law = sorted((len(s) for s in made("power-law", np.zeros(5000), 5, 0, power=1.0)), reverse=True)
    wanted = 1 + (5000 - 5) / np.arange(1, 6) / np.sum(1 / np.arange(1, 6))
    assert np.all(np.abs(law - wanted) <= 1)
    assert {len(s) for s in made("power-law", LABELS, 8, 1, power=0.0)} <= {74, 75, 76}
    orders = {tuple(np.argsort([len(s) for s in made("power-law", LABELS, 5, seed)])) for seed in range(6)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dirichlet", {}, "partition 'dirichlet' needs the parameter 'alpha'"),
        ("dirichlet", {"alpha": 0.0}, "parameter 'alpha': input should be greater than or equal to 0.0001, got 0.0"),
        ("dirichlet", {"alpha": 1, "min_samples": 76}, r"8 workers with min_samples = 76 need 608 .* at most 75"),
        ("shards", {"shards_per_worker": 100}, r"shards_per_worker = 100 need 800 .* at most 75"),
        ("quantity", {"alpha": 1, "min_samples": 76}, r"set data\.min_samples to at most 75"),
        ("power-law", {"power": -1.0}, "parameter 'power': input should be greater than or equal to 0"),
        ("dirichelt", {}, "unknown partition 'dirichelt'; did you mean 'dirichlet'"),
        ("dirichlet", {"alhpa": 1}, "has no parameter 'alhpa'; did you mean 'alpha'"),
    ],
)
def test_partitions_refuse(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shards_of(name, LABELS, 8, 0, parameters)


@pytest.mark.parametrize("name", FIXED)
def test_more_workers_than_samples_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="9 workers cannot share 5 training samples: at most 5 workers"):
        made(name, LABELS[:5], 9, 0)


@pytest.mark.parametrize(("workers", "alpha", "least", "reached"), [(8, 0.01, 20, False), (4, 0.2, 145, True)])
def test_dirichlet_that_does_not_come_about_proposes_what_does(
    workers: int, alpha: float, least: int, reached: bool
) -> None:
    refused = rf"in 50 draws with alpha = {alpha:g} some of the {workers} workers always had fewer"
    with pytest.raises(ConfigError, match=refused) as said:
        made("dirichlet", LABELS, workers, 0, alpha=alpha, min_samples=least)
    proposed = dict(re.findall(r"data\.(\w+) = ([0-9.e+]+)", str(said.value)))
    assert set(proposed) == ({"alpha", "min_samples"} if reached else {"alpha"})
    assert float(proposed["alpha"]) > alpha
    made("dirichlet", LABELS, workers, 0, alpha=float(proposed["alpha"]), min_samples=least)
    if reached:
        best = int(proposed["min_samples"])
        made("dirichlet", LABELS, workers, 0, alpha=alpha, min_samples=best)
        with pytest.raises(ConfigError, match=f"at best {best}"):
            made("dirichlet", LABELS, workers, 0, alpha=alpha, min_samples=best + 1)


UNEQUAL = [("dirichlet", {"alpha": 0.2}), ("quantity", {"alpha": 0.4}), ("shards", {}), ("power-law", {"power": 2.0})]


@pytest.mark.parametrize(("name", "parameters"), UNEQUAL)
def test_a_worker_walks_its_own_shard_and_forgets_nothing(name: str, parameters: dict) -> None:
    order = Order(600, 5, 7, 3, name, LABELS, parameters)
    assert order.steps_per_epoch == 600 // 35
    lines = np.concatenate([order.epoch(e) for e in range(4)]).transpose(1, 0, 2).reshape(5, -1)
    for line, shard in zip(lines, order.shards, strict=True):
        assert set(line) <= set(shard)
        whole = len(line) // len(shard)
        for k in range(whole):
            assert sorted(line[k * len(shard) : (k + 1) * len(shard)]) == shard.tolist()
        counts = Counter(line.tolist())
        assert all(whole <= counts[i] <= whole + 1 for i in shard.tolist())
    assert np.array_equal(lines.reshape(5, -1, 7)[:, 20], order.at(20))


def test_no_two_passes_of_a_worker_are_alike() -> None:
    order = Order(600, 5, 7, 3, "dirichlet", LABELS, {"alpha": 0.2})
    shard = min(order.shards, key=len)
    worker = next(i for i, s in enumerate(order.shards) if s is shard)
    line = np.concatenate([order.epoch(e)[:, worker].ravel() for e in range(6)])
    passes = [tuple(line[k : k + len(shard)]) for k in range(0, len(line) - len(shard), len(shard))]
    assert len(passes) >= 2
    assert len(set(passes)) == len(passes)


def test_workers_with_shards_of_one_size_walk_them_in_orders_of_their_own() -> None:
    order = Order(600, 5, 7, 3, "shards", LABELS)
    assert {len(s) for s in order.shards} == {120}
    lines = order.epoch(0).transpose(1, 0, 2).reshape(5, -1)
    places = {tuple(np.searchsorted(shard, line)) for shard, line in zip(order.shards, lines, strict=True)}
    assert len(places) == 5


def test_a_shard_smaller_than_a_batch_is_passed_several_times() -> None:
    labels = np.zeros(100, dtype=int)
    order = Order(100, 2, 20, 0, "power-law", labels, {"power": 6.0})
    small = int(np.argmin([len(s) for s in order.shards]))
    shard = order.shards[small]
    assert len(shard) < 5
    counts = Counter(order.at(0)[small].tolist())
    assert max(counts.values()) - min(counts[int(i)] for i in shard) <= 1


@pytest.mark.parametrize(("name", "parameters"), [*UNEQUAL, ("iid", {}), ("shuffled", {})])
def test_a_step_is_the_same_whatever_was_asked_before(name: str, parameters: dict) -> None:
    walked = Order(600, 5, 7, 3, name, LABELS, parameters)
    steps = [walked.at(t).copy() for t in range(60)]
    for t in (59, 3, 40):
        assert np.array_equal(Order(600, 5, 7, 3, name, LABELS, parameters).at(t), steps[t])
        assert np.array_equal(walked.at(t), steps[t])


def test_facts_of_the_order() -> None:
    facts = Order(600, 5, 7, 3, "dirichlet", LABELS, {"alpha": 0.1}).facts()
    assert 0.3 < facts["label_heterogeneity"] < 1
    assert facts["shard_sizes"][0] < 60 < facts["shard_sizes"][1]
    assert Order(600, 5, 7, 3, labels=LABELS).facts() == {"label_heterogeneity": 0.0, "shard_sizes": [120, 120]}
    with pytest.raises(ConfigError, match="there are 600 training samples, but 500 labels"):
        Order(600, 5, 7, 3, labels=LABELS[:500])


ARMS = {"a": {"algorithm": "dsgd"}}


def test_a_study_says_how_its_data_come_to_the_workers() -> None:
    study = load((), ["data.partition=dirichlet", "data.alpha=0.1", "data.noise=0.1"], arms=ARMS)
    assert study.data.parameters == {"noise": 0.1}
    assert study.data.partition_parameters == {"alpha": 0.1}
    facts = Setup.build(study.cell("a", 0)).facts()
    assert facts["label_heterogeneity"] > 0.3
    other = Setup.build(load((), [], arms=ARMS).cell("a", 0)).facts()
    assert other["label_heterogeneity"] == 0.0
    assert (facts["start_hash"], facts["order_hash"] == other["order_hash"]) == (other["start_hash"], False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.partition=dirichelt"], "unknown partition 'dirichelt'; did you mean 'dirichlet'"),
        (["data.partition=dirichlet"], "partition 'dirichlet' needs the parameter 'alpha'"),
        (
            ["data.partition=dirichlet", "data.alpha=-1"],
            "partition 'dirichlet': parameter 'alpha': input should be great",
        ),
        (["data.partition=dirichlet", "data.alhpa=1"], "there is no parameter 'alhpa'; did you mean 'alpha'"),
        (["data.alpha=1"], "'alpha' belongs to partition 'dirichlet' or 'quantity', but data.partition is 'shuffled'"),
        (["data.partition=shards", "data.power=1"], "belongs to partition 'power-law', but data.partition is 'shards'"),
        (["data.augment=crop-filp"], "unknown augmentation 'crop-filp'; did you mean 'crop-flip'"),
        (["data.padding=2"], "'padding' belongs to augmentation 'crop' or 'crop-flip', but there is no data.augment"),
        (["data.augment=crop", "data.padding=0"], "augmentation 'crop': parameter 'padding': input should be greater"),
        (["data.partitoin=iid"], "there is no parameter 'partitoin'; did you mean 'partition'"),
        (["data.noize=0.1"], "data set 'digits' has no parameter 'noize'; did you mean 'noise'"),
    ],
)
def test_a_mistake_in_the_section_is_named_with_the_nearest(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load((), overrides, arms=ARMS)


def test_no_key_of_the_section_could_mean_two_things() -> None:
    """Parameters of data sets, partitions and augmentations share one section."""
    own = {"name", "partition", "augment"}
    handling = {p for r in (PARTITIONS, AUGMENTATIONS) for name in r.names() for p in r.parameters(name)}
    for name in DATASETS.names():
        assert not set(DATASETS.parameters(name)) & (handling | own), name
    assert not handling & own
    partition = {p for name in PARTITIONS.names() for p in PARTITIONS.parameters(name)}
    assert not partition & {p for name in AUGMENTATIONS.names() for p in AUGMENTATIONS.parameters(name)}
