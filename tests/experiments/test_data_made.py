"""Data sets that are made: what is claimed to be known of them is computed here a second way."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from dissensus.algorithms.streams import numpy_stream
from dissensus.experiments.data import DataSet, Order, dataset
from dissensus.experiments.data.logistic import optimum
from dissensus.experiments.data.markov import MarkovSource
from dissensus.experiments.data.signals import shapes
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.models import model
from dissensus.probes import Curvature


def test_signals_have_their_sizes_and_every_class_equally_often() -> None:
    data = dataset("signals", {"classes": 5, "length": 32, "train": 102, "test": 50, "waves": 3})
    assert (data.size, data.shape, data.classes, len(data.test_y)) == (102, (1, 32), 5, 50)
    assert sorted(data.train_y.bincount().tolist()) == [20, 20, 20, 21, 21]
    assert (
        data.fingerprint
        == dataset("signals", {"classes": 5, "length": 32, "train": 102, "test": 50, "waves": 3}).fingerprint
    )
    assert data.fingerprint != dataset("signals", {"seed": 1}).fingerprint


def test_a_signal_without_noise_is_its_class_shifted() -> None:
    plain = {"sigma": 0.0, "length": 40, "classes": 3, "train": 30, "waves": 4}
    still = dataset("signals", {**plain, "shift": 0.0})
    for c in range(3):
        same = still.train_x[still.train_y == c]
        assert torch.equal(same, same[:1].expand_as(same))
    moved = dataset("signals", {**plain, "shift": 0.2})
    spectra = [torch.fft.rfft(d.train_x[:, 0].double(), dim=1).abs() for d in (still, moved)]
    for c in range(3):
        ours, theirs = spectra[1][moved.train_y == c], spectra[0][still.train_y == c][:1]
        assert torch.allclose(ours, theirs.expand_as(ours), atol=1e-4)
    assert not torch.allclose(moved.train_x[moved.train_y == 0][:1], moved.train_x[moved.train_y == 0])
    power = still.train_x.double().square().mean(dim=2)
    assert torch.allclose(power, torch.ones_like(power), atol=1e-5)


def test_shapes_are_the_series_they_claim() -> None:
    a = numpy_stream(0, "test").standard_normal((1, 2, 3))
    u = np.array([[0.13, 0.7]])
    wanted = [
        sum(
            a[0, 0, k] * math.cos(2 * math.pi * (k + 1) * v) + a[0, 1, k] * math.sin(2 * math.pi * (k + 1) * v)
            for k in range(3)
        )
        for v in u[0]
    ]
    assert np.allclose(shapes(a, u), [wanted], rtol=1e-13)


def test_label_noise_of_signals_is_on_training_labels_only() -> None:
    clean, wrong = dataset("signals", {"train": 200}), dataset("signals", {"train": 200, "noise": 0.3})
    assert int((clean.train_y != wrong.train_y).sum()) == 60
    assert torch.equal(clean.test_y, wrong.test_y)
    assert torch.equal(clean.train_x, wrong.train_x)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("signals", {"waves": 32}, r"32 waves need a length above 64, got 64: set data\.waves to at most 31"),
        ("characters", {"alphabet": 64, "order": 4}, r"order 4 over 64 characters has 1073741824 transitions"),
        ("characters", {"path": "nowhere.txt"}, r"cannot read nowhere\.txt: No such file"),
    ],
)
def test_impossible_parameters_are_refused(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset(name, parameters)


HARD: list[dict[str, Any]] = [
    {},
    {"classes": 4, "dimension": 6, "noise": 0.2, "heterogeneity": 1.5, "condition": 100.0},
    {"ridge": 1e-5, "strength": 30.0, "train": 100, "dimension": 5},
]


def the_optimum(data: DataSet) -> torch.Tensor:
    assert data.optimum is not None
    return data.optimum


@pytest.mark.parametrize("parameters", HARD)
def test_the_optimum_is_one_for_torch_too(parameters: dict) -> None:
    data = dataset("logistic", parameters)
    net = model("linear", data.shape, data.classes, 0, {}).double()
    torch.nn.utils.vector_to_parameters(the_optimum(data), net.parameters())
    loss = data.task.loss(net, (data.train_x, data.train_y))
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])
    assert float(gradient.norm()) < 1e-12
    assert loss.item() == pytest.approx(data.facts["best_loss"], rel=1e-13)
    assert data.facts["gradient_norm_at_optimum"] < 1e-12
    hessian = Curvature(net, data.task.loss, [(data.train_x, data.train_y)]).dense()
    eigenvalues = torch.linalg.eigvalsh(hessian)
    assert float(eigenvalues[-1]) == pytest.approx(data.facts["smoothness_at_optimum"], rel=1e-9)
    assert float(eigenvalues[0]) >= data.facts["strong_convexity"] * (1 - 1e-9)


def test_the_optimum_is_what_another_solver_finds() -> None:
    data = dataset("logistic", HARD[1])
    x, y, ridge = data.train_x.numpy(), data.train_y.numpy(), data.task.ridge

    def objective(w: np.ndarray) -> float:
        scores = x @ w[:24].reshape(4, 6).T + w[24:]
        top = scores.max(axis=1, keepdims=True)
        lost = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0] - scores[np.arange(len(y)), y]
        return float(lost.mean() + 0.5 * ridge * w @ w)

    found = minimize(objective, np.zeros(28), method="BFGS", options={"gtol": 1e-7})
    assert found.fun == pytest.approx(data.facts["best_loss"], abs=1e-9)
    assert np.allclose(found.x, the_optimum(data).numpy(), atol=1e-3)


def test_workers_that_keep_different_numbers_have_another_optimum() -> None:
    data = dataset("logistic", {**HARD[1], "train": 200})
    x, y = data.train_x.numpy(), data.train_y.numpy()
    shards = Order(200, 4, 4, 0, "dirichlet", data.labels, {"alpha": 0.3, "min_samples": 5}).shards
    own = optimum(x, y, 4, data.task.ridge, shards)
    net = model("linear", data.shape, 4, 0, {}).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(own.point), net.parameters())
    losses = [data.task.loss(net, (data.train_x[s], data.train_y[s])) for s in shards]
    total = torch.stack(losses).mean()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(total, list(net.parameters()))])
    assert float(gradient.norm()) < 1e-12
    assert total.item() == pytest.approx(own.value, rel=1e-12)
    assert np.linalg.norm(own.point - the_optimum(data).numpy()) > 0.01
    equal = optimum(x, y, 4, data.task.ridge, Order(200, 4, 4, 0, "iid").shards)
    assert np.allclose(equal.point, the_optimum(data).numpy(), atol=1e-12 / data.task.ridge)


def test_an_optimum_that_cannot_be_certified_is_refused() -> None:
    x = 1e9 * np.eye(4)
    with pytest.raises(
        ConfigError, match=r"not certified: the gradient is .* there.*set a larger data\.ridge than 1e-06"
    ):
        optimum(x + 0.3e9, np.array([0, 1, 0, 1]), 2, 1e-6)


def test_groups_are_alike_without_heterogeneity_and_are_not_with_it() -> None:
    def spread(h: float) -> float:
        data = dataset("logistic", {"train": 8000, "heterogeneity": h, "dimension": 3})
        means = torch.stack([data.train_x[data.groups == g].mean(dim=0) for g in range(8)])
        return float(means.var(dim=0).sum())

    assert spread(0.0) < 3 * 3 / 1000
    assert spread(1.0) > 0.5
    flipped, clean = (dataset("logistic", {"noise": share}) for share in (0.1, 0.0))
    assert int((flipped.train_y != clean.train_y).sum()) == 102
    assert flipped.facts["best_loss"] > clean.facts["best_loss"]


def source(characters: int, order: int) -> MarkovSource:
    return MarkovSource.drawn(numpy_stream(3, "test", characters, order), characters, order, 0.3, 0.02)


def law(chain: MarkovSource, text: tuple[int, ...]) -> float:
    """The probability of a text, from its first characters and the transitions."""
    k = chain.order
    p = float(chain.stationary[text[:k]])
    for j in range(k, len(text)):
        p *= float(chain.transitions[text[j - k : j + 1]])
    return p


@pytest.mark.parametrize(("characters", "order"), [(2, 1), (3, 1), (2, 2), (3, 2), (2, 3)])
def test_the_least_loss_is_what_counting_every_text_gives(characters: int, order: int) -> None:
    chain, context = source(characters, order), 5
    texts = {t: law(chain, t) for t in itertools.product(range(characters), repeat=context + 1)}
    assert sum(texts.values()) == pytest.approx(1, abs=1e-12)
    losses = []
    for j in range(context):
        until: dict[tuple, float] = {}
        for text, p in texts.items():
            for end in (j + 1, j + 2):
                until[text[:end]] = until.get(text[:end], 0.0) + p
        losses.append(-sum(p * math.log(until[t[: j + 2]] / until[t[: j + 1]]) for t, p in texts.items()))
    assert chain.least_loss(context) == pytest.approx(np.mean(losses), abs=1e-11)
    assert chain.entropy_rate == pytest.approx(losses[-1], abs=1e-11)
    assert np.all(np.diff(chain.conditional_entropies) < 1e-12)


def test_the_stationary_law_stays() -> None:
    chain = source(4, 3)
    after = (chain.stationary[..., None] * chain.transitions).sum(axis=0)
    assert np.allclose(after, chain.stationary, atol=1e-14)
    assert np.allclose(chain.transitions.sum(axis=-1), 1, atol=1e-14)
    assert chain.transitions.min() >= 0.02 / 4 * 0.999


def test_text_follows_the_transitions() -> None:
    chain = MarkovSource(np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]]))
    text = chain.text(numpy_stream(0, "test"), 50, 40)
    for a, b, c in zip(text[:, :-2].ravel(), text[:, 1:-1].ravel(), text[:, 2:].ravel(), strict=True):
        assert chain.transitions[a, b, c] > 0
    sharp = source(3, 2).text(numpy_stream(1, "test"), 4000, 4)
    counts = np.zeros((3, 3, 3))
    np.add.at(counts, tuple(sharp[:, 1:].T), 1)
    wanted = source(3, 2).stationary[..., None] * source(3, 2).transitions
    # each cell is a binomial share of 4000 independent texts: five standard deviations
    assert np.all(np.abs(counts / 4000 - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 4000) + 1e-9)


def test_no_predictor_beats_the_least_loss_and_the_source_reaches_it() -> None:
    parameters = {"alphabet": 5, "order": 1, "context": 6, "train": 3000, "test": 3000, "seed": 2}
    data = dataset("characters", parameters)
    chain = MarkovSource.drawn(numpy_stream(2, "characters", "source", 0), 5, 1, 0.2, 0.01)
    p = torch.from_numpy(chain.transitions)
    oracle = torch.nn.Embedding.from_pretrained(p.log())
    score = data.task.score(oracle, (data.test_x, data.test_y))
    surprise = -p[data.test_x, data.test_y].log().mean(dim=1)
    error = float(surprise.std()) / math.sqrt(3000)
    assert abs(score.loss / score.answers - data.facts["best_loss"]) < 5 * error
    assert score.answers == 18000
    assert data.facts["best_loss"] == pytest.approx(data.facts["entropy_rate"], abs=1e-14)


def test_characters_are_blocks_of_context_and_next() -> None:
    data = dataset("characters", {"context": 7, "train": 12, "test": 3, "dialects": 5, "alphabet": 6})
    assert data.train_x.shape == data.train_y.shape == (12, 7)
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])
    assert (data.classes, data.task.tokens, data.shape) == (6, True, (7,))
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert data.facts["best_loss_at_most"] - data.facts["best_loss"] == pytest.approx(math.log(5) / 7)
    assert data.to(torch.float64).train_x.dtype == torch.int64


def test_the_least_loss_of_two_dialects_lies_where_it_is_said_to() -> None:
    chains, context = [source(2, 1), MarkovSource(np.array([[0.1, 0.9], [0.6, 0.4]]))], 6
    entropies = []
    for length in (context + 1, 1):
        mixed = [np.mean([law(c, t) for c in chains]) for t in itertools.product(range(2), repeat=length)]
        entropies.append(-sum(p * math.log(p) for p in mixed))
    least = (entropies[0] - entropies[1]) / context
    low = np.mean([c.least_loss(context) for c in chains])
    assert low < least < low + math.log(2) / context


def test_text_is_read_from_a_file_and_nothing_of_it_is_lost_but_the_end(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    written = "".join(chr(97 + (i * i) % 7) for i in range(200)) + "é"
    file.write_text(written, encoding="utf-8")
    data = dataset("characters", {"path": str(file), "context": 10, "test_share": 0.2, "dialects": 3})
    letters = sorted(set(written))
    assert data.classes == len(letters)
    held = 201 - round(0.2 * 201)
    spelt = ["".join(letters[i] for i in row) for row in data.train_x]
    assert "".join(spelt) == written[: 10 * len(spelt)]
    assert len(spelt) == (held - 1) // 10
    assert "".join(letters[i] for i in data.test_x[0]) == written[held : held + 10]
    assert torch.equal(data.train_x[1:, 0], data.train_y[:-1, -1])
    assert np.all(np.diff(data.labels) >= 0)
    assert set(data.labels) == {0, 1, 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "has 3 characters, too few for 1 training blocks and a test block of context = 32"),
        (b"\xff\xfe\x00" * 400, "is no UTF-8 text: invalid start byte at 0"),
        (b"a" * 4000, "repeats one character: there is nothing to learn"),
        (b"", "has 0 characters, too few"),
    ],
)
def test_a_text_that_is_none_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        dataset("characters", {"path": str(file)})
