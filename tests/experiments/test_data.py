import builtins
import sys
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.experiments.data import DATASETS, Order, dataset, iid_shards
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models import MODELS, model, parameters_hash
from dissensus.experiments.optimizers import rate_at
from dissensus.experiments.registry import Registry
from dissensus.experiments.sections import Rate


def test_digits_are_split_once_and_for_all_with_every_class_in_proportion() -> None:
    data = dataset("digits", {"test": 360})
    assert (data.size, len(data.test_y), data.shape, data.classes) == (1437, 360, (64,), 10)
    assert float(data.train_x.min()) == 0.0
    assert float(data.train_x.max()) == 1.0
    everything = torch.cat([data.train_y, data.test_y]).bincount()
    assert torch.all((data.test_y.bincount() - 0.2003 * everything).abs() <= 1.0)
    assert dataset("digits").fingerprint == data.fingerprint
    assert dataset("digits", {"test": 361}).fingerprint != data.fingerprint


def test_no_sample_is_in_both_parts() -> None:
    from sklearn.datasets import load_digits

    pixels, _ = load_digits(return_X_y=True)
    data = dataset("digits")
    rows = np.concatenate([data.train_x.numpy(), data.test_x.numpy()]) * 16
    assert np.array_equal(np.array(sorted(map(tuple, rows))), np.array(sorted(map(tuple, pixels))))


def test_label_noise_touches_training_labels_only_and_every_noisy_label_is_wrong() -> None:
    clean, noisy = dataset("digits"), dataset("digits", {"noise": 0.2})
    changed = clean.train_y != noisy.train_y
    assert int(changed.sum()) == round(0.2 * clean.size)
    assert torch.equal(clean.test_y, noisy.test_y)
    assert torch.equal(clean.train_x, noisy.train_x)
    assert int(noisy.train_y.max()) <= 9


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"test": 5}, "test must be between 10 and 1787 samples, got 5"),
        ({"noise": 1.0}, r"noise is a share of labels in \[0, 1\), got 1.0"),
        ({"tests": 5}, "has no parameter 'tests'; did you mean 'test'"),
    ],
)
def test_digits_refuse(parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset("digits", parameters)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [m for m in sys.modules if m.startswith("sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"comes with scikit-learn: pip install 'dissensus\[data\]'"):
        dataset("digits")


@pytest.mark.parametrize(("size", "workers"), [(10, 3), (7, 7), (100, 8), (5, 1)])
def test_iid_shards_hold_every_sample_once(size: int, workers: int) -> None:
    shards = iid_shards(size, workers, seed=3)
    assert sorted(np.concatenate(shards)) == list(range(size))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    if workers > 1:
        assert any(not np.array_equal(a, b) for a, b in zip(shards, iid_shards(size, workers, seed=4), strict=True))


def test_more_workers_than_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 workers cannot share 7 training samples: at most 7 workers"):
        iid_shards(7, 8, 0)
    with pytest.raises(ConfigError, match=r"4 workers with batches of 30 need 120 .* use a batch of at most 25"):
        Order(100, 4, 30, 0)


@pytest.mark.parametrize("partition", ["shuffled", "iid"])
def test_an_epoch_shows_no_sample_twice(partition: Any) -> None:
    order = Order(50, 4, 3, seed=1, partition=partition)
    epoch = order.epoch(0)
    assert epoch.shape == (4, 4, 3) == (order.steps_per_epoch, 4, 3)
    assert len(np.unique(epoch)) == epoch.size
    assert not np.array_equal(epoch, order.epoch(1))
    assert np.array_equal(order.at(5), order.epoch(1)[1])
    assert np.array_equal(order.at(2), epoch[2])


def test_iid_workers_stay_in_their_shards_and_shuffled_ones_do_not() -> None:
    fixed, dealt = (Order(40, 2, 4, seed=0, partition=p) for p in ("iid", "shuffled"))
    for epoch in range(3):
        for worker, shard in enumerate(fixed.shards):
            assert set(fixed.epoch(epoch)[:, worker].ravel()) <= set(shard)
    seen = set(np.concatenate([dealt.epoch(e)[:, 0].ravel() for e in range(8)]))
    assert len(seen) > 30


def test_models_start_from_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = (torch.nn.utils.parameters_to_vector(model("mlp", (64,), 10, s, {}).parameters()) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert len(a) == 64 * 64 + 64 + 64 * 10 + 10
    assert parameters_hash(a) == parameters_hash(b.clone()) != parameters_hash(c)


def test_the_convolution_net_takes_images() -> None:
    data = dataset("digits", {"images": True})
    net = model("cnn", data.shape, 10, 0, {"channels": 3})
    assert net(data.train_x[:5]).shape == (5, 10)
    with pytest.raises(ConfigError, match=r"model 'cnn' needs inputs of shape .* set data\.images = true"):
        model("cnn", (64,), 10, 0, {})
    with pytest.raises(ConfigError, match="unknown activation 'rleu'; known: gelu, relu, tanh"):
        model("mlp", (64,), 10, 0, {"activation": "rleu"})


def test_the_rate_warms_up_and_follows_the_cosine() -> None:
    at = rate_at(Rate(peak=2.0, warmup=10, warmup_from=0.1, last=0.5), 110)
    assert at(0) == pytest.approx(0.2)
    assert at(5) == pytest.approx(2.0 * 0.55)
    assert at(10) == pytest.approx(2.0)
    assert at(60) == pytest.approx(1.5)
    assert at(110) == pytest.approx(1.0)
    assert rate_at(Rate(peak=2.0, schedule="constant"), 9)(7) == 2.0


def test_a_registry_names_what_is_wrong() -> None:
    shelf: Registry[int] = Registry("thing", given=("size",))

    @shelf.register("one-two")
    def build(size: int, least: int, most: int = 3) -> int:
        return size + least + most

    assert shelf.build("one_two", {"least": 1}, 10) == 14
    assert shelf.names() == ["one-two"]
    with pytest.raises(ConfigError, match="unknown thing 'one-tow'; did you mean 'one-two'"):
        shelf.build("one-tow", {}, 1)
    with pytest.raises(ConfigError, match="thing 'one-two' needs the parameter 'least'"):
        shelf.build("one-two", {}, 1)
    with pytest.raises(ConfigError, match=r"thing 'one-two' refuses \{'least': 'x'\}"):
        shelf.build("one-two", {"least": "x"}, 1)
    with pytest.raises(ConfigError, match="thing 'one-two' is registered twice"):
        shelf.register("one-two")(build)
    assert {"digits", "fashion-mnist", "cifar-10", "cifar-100", "signals", "logistic", "characters"} <= set(
        DATASETS.names()
    )
    assert {"mlp", "linear", "cnn", "conv1d", "resnet", "wrn", "gpt"} <= set(MODELS.names())
