"""Models: their sizes, their starts, and that n of them in one vmap are n of them in a loop."""

from typing import Any

import pytest
import torch
from torch import nn

from dissensus.algorithms.engines.stacked import StackedEngine
from dissensus.algorithms.streams import stream
from dissensus.experiments.cell import Setup
from dissensus.experiments.data import Task, dataset
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.measurement import evaluate
from dissensus.experiments.models import MODELS, cross_entropy, model, starts
from dissensus.probes import Curvature
from dissensus.theory import topology

N, B = 3, 4
FAMILIES: dict[str, tuple[str, tuple[int, ...], int, dict[str, Any], Task]] = {
    "mlp": ("mlp", (5,), 4, {"width": 6}, Task()),
    "linear": ("linear", (5,), 4, {}, Task(ridge=0.3)),
    "cnn": ("cnn", (2, 8, 8), 4, {"channels": 3}, Task()),
    "conv1d": ("conv1d", (2, 16), 4, {"channels": 3, "stages": 3}, Task()),
    "resnet": ("resnet", (3, 8, 8), 4, {"width": 3}, Task()),
    "wrn": ("wrn", (3, 8, 8), 4, {}, Task()),
    "wrn with dropout": ("wrn", (3, 8, 8), 4, {"dropout": 0.3}, Task()),
    "gpt": ("gpt", (6,), 7, {"width": 8}, Task(tokens=True)),
    "gpt untied with dropout": ("gpt", (6,), 7, {"width": 8, "tied": False, "dropout": 0.2}, Task(tokens=True)),
}


def batch(shape: tuple[int, ...], classes: int, task: Task, *lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = stream(1, "test", len(lead))
    if task.tokens:
        text = torch.randint(0, classes, (*lead, shape[0] + 1), generator=generator)
        return text[..., :-1], text[..., 1:]
    x = torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, lead, generator=generator)


def engine(family: str, route: Any, seed: int = 0) -> StackedEngine:
    name, shape, classes, parameters, task = FAMILIES[family]
    return StackedEngine(
        model(name, shape, classes, seed, parameters).double(),
        task.loss,
        algorithm="dsgd",
        topology=topology("ring", N),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        gradients=route,
        start=starts(name, shape, classes, seed, parameters, N),
    )


def test_every_model_is_among_those_that_are_tested() -> None:
    assert {family[0] for family in FAMILIES.values()} | {"logistic"} == set(MODELS.names())


@pytest.mark.parametrize("family", FAMILIES)
def test_workers_in_one_vmap_equal_workers_in_a_loop(family: str) -> None:
    _, shape, classes, _, task = FAMILIES[family]
    stacked, looped = engine(family, "vmap"), engine(family, "loop")
    for _ in range(3):
        data = batch(shape, classes, task, N, B)
        losses = [e.step(data).losses for e in (stacked, looped)]
        assert torch.allclose(*losses, rtol=1e-11, atol=1e-12)
    assert torch.allclose(stacked.x, looped.x, rtol=1e-10, atol=1e-11)
    for name, value in stacked.buffers.items():
        assert torch.allclose(value.double(), looped.buffers[name].double(), rtol=1e-10, atol=1e-11), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_can_be_differentiated_twice(family: str) -> None:
    name, shape, classes, parameters, task = FAMILIES[family]
    net = model(name, shape, classes, 0, parameters).double()
    operator = Curvature(net, task.loss, [batch(shape, classes, task, B)])
    v = torch.randn(operator.size, generator=stream(0, "v"), dtype=torch.float64)
    with torch.no_grad():
        h, p = 1e-7, list(net.parameters())
        at = nn.utils.parameters_to_vector(p).clone()
        gradients = []
        for side in (h, -h):
            nn.utils.vector_to_parameters(at + side * v, p)
            gradients.append(Curvature(net, task.loss, [batch(shape, classes, task, B)]).gradient())
        nn.utils.vector_to_parameters(at, p)
    wanted = (gradients[0] - gradients[1]) / (2 * h)
    # h is so small that no ReLU changes sides between the two; rounding of the gradients is then 1e-16 / h
    assert torch.linalg.vector_norm(operator.matvec(v) - wanted) < 1e-6 * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_starts_are_functions_of_the_seed_and_of_the_worker(family: str) -> None:
    name, shape, classes, parameters, _ = FAMILIES[family]
    torch.manual_seed(1)
    rows = starts(name, shape, classes, 4, parameters, 3)
    torch.manual_seed(2)
    assert torch.equal(starts(name, shape, classes, 4, parameters, 2), rows[:2])
    common = nn.utils.parameters_to_vector(model(name, shape, classes, 4, parameters).parameters())
    for row in (rows[1], rows[2], common, starts(name, shape, classes, 5, parameters, 1)[0]):
        assert not torch.equal(rows[0], row)


def count(name: str, shape: tuple[int, ...], classes: int, **parameters: Any) -> int:
    return sum(p.numel() for p in model(name, shape, classes, 0, parameters).parameters())


def wide_count(depth: int, k: int, classes: int) -> int:
    """Counted by hand: a first convolution, blocks of two with their normalisations, shortcuts, a head."""
    blocks, before, total = (depth - 4) // 6, 16, 27 * 16
    for width in (16 * k, 32 * k, 64 * k):
        for block in range(blocks):
            inner = before if block == 0 else width
            total += 2 * inner + 9 * inner * width + 2 * width + 9 * width * width
            total += inner * width if inner != width else 0
        before = width
    return total + 2 * before + before * classes + classes


def test_the_wide_nets_have_their_published_sizes() -> None:
    assert count("wrn", (3, 32, 32), 10, depth=16, width=8) == wide_count(16, 8, 10) == 10_961_370
    assert wide_count(28, 10, 10) == 36_479_194
    with torch.device("meta"):
        big = MODELS.build("wrn", {"depth": 28, "width": 10}, (3, 32, 32), 10)
    assert sum(p.numel() for p in big.parameters()) == 36_479_194
    assert round(count("resnet", (3, 32, 32), 10, depth=20) / 1e6, 2) == 0.27


def test_sizes_of_the_small_ones() -> None:
    assert count("linear", (3, 4), 5) == 12 * 5 + 5
    assert count("conv1d", (1, 64), 8, channels=4, kernel=3) == (3 * 4 + 4) + (4 * 3 * 8 + 8) + 8 * 8 + 8
    w, v, context, layers = 12, 9, 6, 2
    block = 2 * w + 3 * w * w + 3 * w + w * w + w + 2 * w + 8 * w * w + 5 * w
    tied = v * w + context * w + layers * block + 2 * w
    assert count("gpt", (6,), 9, width=12, heads=3) == tied
    assert count("gpt", (6,), 9, width=12, heads=3, tied=False) == tied + v * w


def test_a_transformer_sees_nothing_of_what_is_to_come() -> None:
    net = model("gpt", (6,), 7, 0, {"width": 8}).double().eval()
    x, _ = batch((6,), 7, Task(tokens=True), 2)
    other = x.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 7
    a, b = net(x), net(other)
    assert torch.equal(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])
    earlier = x.clone()
    earlier[:, 0] = (earlier[:, 0] + 1) % 7
    assert not torch.allclose(net(earlier)[:, 3], a[:, 3])


def test_tied_and_untied_and_the_start_of_the_output() -> None:
    assert model("gpt", (6,), 7, 0, {}).get_parameter("embedding.weight").std().item() == pytest.approx(0.02, rel=0.3)
    names = [n for n, _ in model("gpt", (6,), 7, 0, {"tied": False}).named_parameters()]
    assert "head.weight" in names
    x, y = batch((6,), 7, Task(tokens=True), 8)
    assert Task(tokens=True).loss(model("gpt", (6,), 7, 0, {}), (x, y)).item() == pytest.approx(1.9459, abs=0.05)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "message"),
    [
        ("resnet", (3, 8, 8), {"depth": 10}, r"depth must be 6 k \+ 2, got 10; the nearest is 8"),
        ("resnet", (64,), {}, r"model 'resnet' needs inputs of shape \(channels, height, width\), got \(64,\)"),
        ("wrn", (3, 8, 8), {"depth": 26}, r"depth must be 6 k \+ 4, got 26; the nearest is 28"),
        ("wrn", (64,), {}, r"model 'wrn' needs inputs of shape"),
        ("conv1d", (64,), {}, r"model 'conv1d' needs inputs of shape \(channels, length\), got \(64,\)"),
        ("conv1d", (1, 8), {"stages": 4}, r"halves 8 places 4 times .* needs at least 16 places"),
        ("conv1d", (1, 8), {"kernel": 4}, r"an odd kernel"),
        (
            "gpt",
            (1, 8, 8),
            {},
            r"model 'gpt' needs inputs of shape \(context,\), got \(1, 8, 8\); see data 'characters'",
        ),
        ("gpt", (8,), {"width": 10, "heads": 4}, r"width = 10 is no multiple of heads = 4; the nearest is 8"),
    ],
)
def test_models_refuse(name: str, shape: tuple[int, ...], parameters: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(name, shape, 10, 0, parameters)


def test_a_model_that_does_not_fit_the_data_is_refused_before_the_first_step() -> None:
    for data, name, message in (
        (
            "characters",
            "mlp",
            r"model 'mlp' on data set 'characters': the model cannot read characters of shape \(32,\)",
        ),
        ("digits", "gpt", r"model 'gpt' on data set 'digits': the model cannot read numbers of shape \(64,\)"),
    ):
        study = load((), [f"data.name={data}", f"model.name={name}"], arms={"a": {"algorithm": "dsgd"}})
        with pytest.raises(ConfigError, match=message):
            Setup.build(study.cell("a", 0))
    scores = (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"2 samples need scores of shape \(2, 4\), the model gives \(2, 5\)"):
        Task().check("this", nn.Linear(3, 5), scores, 4)


def test_checking_a_model_leaves_no_trace() -> None:
    net = model("wrn", (3, 8, 8), 4, 0, {"dropout": 0.5}).double()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    Task().check("this", net, batch((3, 8, 8), 4, Task(), 2), 4)
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_scores_and_losses_are_the_same_numbers() -> None:
    for family in ("mlp", "linear", "gpt"):
        name, shape, classes, parameters, task = FAMILIES[family]
        net = model(name, shape, classes, 0, parameters).double()
        data = batch(shape, classes, task, 10)
        parts = [(data[0][:4], data[1][:4]), (data[0][4:], data[1][4:])]
        loss, accuracy = evaluate(net, parts, task)
        assert loss == pytest.approx(task.loss(net, data).item(), rel=1e-12)
        right = (net(data[0]).argmax(dim=-1) == data[1]).double().mean()
        assert accuracy == pytest.approx(right.item(), rel=1e-12)
    net, data = nn.Linear(3, 2).double(), batch((3,), 2, Task(), 5)
    squares = sum(p.square().sum() for p in net.parameters())
    assert torch.allclose(Task(ridge=0.4).loss(net, data), cross_entropy(net, data) + 0.2 * squares)
    assert torch.equal(Task().loss(net, data), cross_entropy(net, data))


def test_the_hessian_of_logistic_regression_has_the_ridge_in_it() -> None:
    net, data = nn.Linear(3, 2).double(), batch((3,), 2, Task(), 5)
    plain, ridged = (Curvature(net, Task(ridge=r).loss, [data]).dense() for r in (0.0, 0.4))
    assert torch.allclose(ridged - plain, 0.4 * torch.eye(8, dtype=torch.float64), atol=1e-12)


def test_workers_start_at_one_point_unless_told_otherwise() -> None:
    arms = {"a": {"algorithm": "dsgd"}}
    said, unsaid, own = (
        Setup.build(load((), o, arms=arms).cell("a", 0)).engine.x
        for o in (["train.start=equal"], [], ["train.start=independent"])
    )
    assert torch.equal(said, unsaid)
    assert torch.equal(unsaid, unsaid[:1].expand_as(unsaid))
    assert len(torch.unique(own, dim=0)) == len(own)
    fewer = Setup.build(load((), ["train.start=independent", "train.workers=4"], arms=arms).cell("a", 0)).engine.x
    assert torch.equal(fewer, own[:4])
    with pytest.raises(ConfigError, match=r"train\.start: Input should be 'equal' or 'independent', got 'same'"):
        load((), ["train.start=same"], arms=arms)


def test_a_linear_model_can_start_at_zero() -> None:
    net = model("linear", (5,), 2, 0, {"zero": True})
    assert all(float(p.detach().abs().max()) == 0 for p in net.parameters())
    data = dataset("logistic")
    zero = model("logistic", data.shape, data.classes, 0, {"zero": True}).double()
    assert data.task.loss(zero, (data.train_x, data.train_y)).item() == pytest.approx(0.6931471805599453, rel=1e-12)
