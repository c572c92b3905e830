"""Named random streams, and the five-line simulation built on them."""

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dissensus.algorithms import AlgorithmError, numpy_stream, simulate, stream
from dissensus.algorithms.simulate import worker_batches

KEYS: list[tuple] = [
    (),
    ("order",),
    ("order", 0),
    ("order", 1),
    (0, "order"),
    ("order", "0"),
    ("ord", "er", 0),
    (10,),
    (1, 0),
]


def test_a_key_decides_the_stream() -> None:
    seen = {}
    for seed in (0, 1):
        for key in KEYS:
            numbers = torch.randint(0, 2**62, (2,), generator=stream(seed, *key)).tolist()
            assert numbers == torch.randint(0, 2**62, (2,), generator=stream(seed, *key)).tolist()
            seen[tuple(numbers)] = (seed, key)
            drawn = numpy_stream(seed, *key).integers(0, 2**62, 2).tolist()
            assert drawn == numpy_stream(seed, *key).integers(0, 2**62, 2).tolist()
            seen[tuple(drawn)] = (seed, key)
    assert len(seen) == 2 * 2 * len(KEYS), "no two keys share a stream"


def test_streams_stay_what_they_are() -> None:
    # a run that is resumed by a later version must find the same numbers
    assert torch.randint(0, 1000, (4,), generator=stream(7, "order", 3)).tolist() == STREAM_7_ORDER_3
    assert numpy_stream(7, "order", 3).integers(0, 1000, 4).tolist() == NUMPY_7_ORDER_3


STREAM_7_ORDER_3 = [493, 258, 674, 1]
NUMPY_7_ORDER_3 = [261, 553, 440, 668]


def test_streams_do_not_touch_the_global_generators() -> None:
    before = torch.get_rng_state()
    stream(0, "a")
    numpy_stream(0, "a")
    assert torch.equal(before, torch.get_rng_state())


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: tuple) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def samples(count: int = 330) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=g)
    return x, x[:, :3].argmax(dim=1)


def test_five_lines_train_eight_workers(schedules: dict) -> None:
    seen: list[int] = []
    run = simulate(
        classifier(), loss, samples(), algorithm="dsgd", topology=schedules["ring"](8), steps=60, lr=0.5,
        optimizer=partial(torch.optim.SGD, momentum=0.9), batch_size=16, on_step=lambda e, r: seen.append(r.t),
    )  # fmt: skip
    assert seen == list(range(60))
    assert run.loss.shape == run.consensus_distance.shape == (60,)
    assert run.loss[-10:].mean() < 0.3 < run.loss[0]
    x = run.engine.x.double().numpy()
    expected = ((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert run.consensus_distance[-1] == pytest.approx(expected, rel=1e-4)
    with run.engine.consensus() as model:
        assert float((model(samples()[0]).argmax(dim=1) == samples()[1]).float().mean()) > 0.9


def test_the_rate_is_the_one_that_was_given_or_else_the_optimizers_own(schedules: dict) -> None:
    sgd = partial(torch.optim.SGD, momentum=0.9)
    run = partial(simulate, classifier(), loss, samples(), topology=schedules["ring"](4), steps=3, algorithm="dsgd-ac")

    def rates(**options: Any) -> tuple[set[float], float]:
        seen: set[float] = set()
        made = run(**options, on_step=lambda e, r: seen.add(r.lr))
        return seen, made.engine.algorithm.lr_max  # type: ignore[attr-defined]

    assert rates() == ({0.1}, 0.1)
    assert rates(optimizer=partial(sgd, lr=0.05)) == ({0.05}, 0.05)
    assert rates(optimizer=sgd) == ({1e-3}, 1e-3), "torch's own"
    assert rates(optimizer=partial(sgd, lr=0.05), lr=0.2) == ({0.2}, 0.2)
    assert rates(lr=lambda t: 0.4 / (1 + t))[1] == 0.4
    with pytest.raises(AlgorithmError, match="optimizer must be a function of parameters"):
        run(optimizer=lambda p: "sgd")  # type: ignore[arg-type]


def test_a_simulation_is_its_seed(schedules: dict) -> None:
    run = partial(simulate, classifier(), loss, samples(), topology=schedules["ring"](4), steps=5)
    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    assert torch.equal(first.engine.x, again.engine.x)
    assert np.array_equal(first.loss, again.loss)
    assert not np.array_equal(first.loss, other.loss)


def test_topologies_by_name(schedules: dict) -> None:
    by_name = simulate(classifier(), loss, samples(), topology="complete", workers=4, steps=2)
    by_value = simulate(classifier(), loss, samples(), topology=schedules["complete"](4), steps=2)
    np.testing.assert_allclose(by_name.loss, by_value.loss, rtol=1e-6)


def test_every_sample_is_seen_once_an_epoch() -> None:
    part = (torch.arange(10), torch.arange(10))
    batches = worker_batches(part, 5, seed=3, worker=1)
    epochs = [torch.cat([next(batches)[0], next(batches)[0]]) for _ in range(3)]
    assert all(sorted(e.tolist()) == list(range(10)) for e in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    again = worker_batches(part, 5, seed=3, worker=1)
    assert torch.equal(next(again)[0], epochs[0][:5])
    assert not torch.equal(next(worker_batches(part, 5, seed=3, worker=2))[0], epochs[0][:5])


def test_the_split_gives_every_sample_to_one_worker(schedules: dict) -> None:
    seen: list[torch.Tensor] = []

    def watch(model: nn.Module, batch: tuple) -> torch.Tensor:
        seen.append(batch[0])
        return model(batch[0][:, None]).mean()

    simulate(
        nn.Linear(1, 1), watch, (torch.arange(12.0),), topology=schedules["ring"](4), steps=1, batch_size=3,
        gradients="loop",
    )  # fmt: skip
    assert sorted(torch.cat(seen).tolist()) == list(range(12))


def test_data_that_is_partitioned_already(schedules: dict) -> None:
    x, y = samples(40)
    parts = [(x[i * 10 : (i + 1) * 10], y[i * 10 : (i + 1) * 10]) for i in range(4)]
    run = simulate(classifier(), loss, parts, topology=schedules["ring"](4), steps=1, batch_size=10, lr=0.0)
    alone = [loss(classifier(), part).item() for part in parts]
    assert run.loss[0] == pytest.approx(np.mean(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (samples(), {"topology": "ring"}, "say how many workers topology 'ring' is for: workers=8"),
        (samples(), {"workers": 5}, "workers=5, but topology 'ring' has 4 workers"),
        (samples(3), {}, "3 samples cannot be split among 4 workers"),
        ((samples()[0], samples()[1][:5]), {}, r"part 0 of the data has tensors of different lengths \[5, 330\]"),
        ([samples()] * 3, {}, "the data has 3 parts for 4 workers"),
        (samples(), {"batch_size": 100}, "worker 0 has 83 samples: batch_size must lie between 1 and 83, got 100"),
        (samples(), {"batch_size": 0}, "batch_size must lie between 1 and 83, got 0"),
        (samples()[0], {}, r"a tuple of tensors .* \(inputs, targets\), or a list of one such .*, got a Tensor"),
        (tuple(v.numpy() for v in samples()), {}, "for every worker, got a tuple of ndarray"),
        (torch.utils.data.TensorDataset(*samples()), {}, "for every worker, got a TensorDataset"),
        (list(samples()), {}, "for every worker, got a list of Tensor"),
        ([tuple(v.numpy() for v in samples())] * 4, {}, "for every worker, got a list of tuple of ndarray"),
        ((*samples(), samples()), {}, "for every worker, got a tuple of Tensor, tuple of Tensor"),
        ((torch.tensor(1.0),), {}, "for every worker, got a tuple of Tensor without samples"),
        ((), {}, "for every worker, got a tuple of nothing"),
    ],
)
def test_what_cannot_be_simulated_is_refused(data: Any, options: dict, message: str, schedules: dict) -> None:
    with pytest.raises(AlgorithmError, match=message):
        simulate(classifier(), loss, data, **({"topology": schedules["ring"](4), "steps": 1} | options))


def test_importing_dissensus_does_not_import_torch() -> None:
    code = "import sys, dissensus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
