"""How columns are cut into blocks and strips changes no number: for every algorithm, its state, and a resumed run."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AlgorithmError, StackedEngine, algorithm, algorithms
from dissensus.algorithms.engines import layout
from dissensus.algorithms.engines.columns import Columns
from dissensus.algorithms.engines.layout import Layout
from dissensus.algorithms.protocol import Gradient, Local, Mix, Norm, Stateless, Step
from dissensus.algorithms.registry import default_optimizer
from dissensus.theory import topology

N = 6


class Net(nn.Module):
    """Parameters of all sizes: a scalar, biases, a tied weight, a convolution, one that is never used, none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.empty = nn.Parameter(torch.ones(0))
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x)))) * self.scale
        return self.head(self.norm(self.conv(x[:, None])).flatten(1))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch(t: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(t)
    return torch.randn(N, 5, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (N, 5), generator=g)


def built(name: str, **options: Any) -> StackedEngine:
    torch.manual_seed(0)
    graph = topology("directed-ring" if algorithms()[name].promise == "column" else "ring", N)
    usual = {"gradients": "vmap", "lr": lambda t: 0.1 / (1 + t), "groups": decay}
    if default_optimizer(algorithm(name)) is torch.optim.SGD:
        chosen: Any = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    else:  # an epsilon far above rounding: the bias before the normalisation has no gradient but that
        chosen = partial(torch.optim.Adam, eps=1e-4)
    return StackedEngine(Net().double(), loss, algorithm=name, topology=graph, optimizer=chosen, **usual | options)


def decay(name: str, shape: torch.Size) -> dict[str, float]:
    del shape
    return {"weight_decay": 0.1} if name.endswith("weight") else {"weight_decay": 0.0}


def cut(monkeypatch: pytest.MonkeyPatch, own: int, strip: int) -> None:
    monkeypatch.setattr(layout, "OWN_BLOCK", own)
    monkeypatch.setattr(layout, "TOGETHER", 0)
    monkeypatch.setattr(layout, "STRIP", strip)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_strips_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for own, strip in ((10**9, 10**9), (1, 1), (20, 150)):
        cut(monkeypatch, own, strip)
        engine = built(name)
        for t in range(4):
            engine.step(batch(t))
        saved = engine.state_dict()
        resumed = built(name)
        resumed.load_state_dict(saved)
        for t in range(4, 6):
            engine.step(batch(t))
            resumed.step(batch(t))
        assert torch.equal(engine.x, resumed.x)
        assert len(engine._workers.layout.strips) > (1 if engine.algorithm.columnwise and own < 10**9 else 0)
        outcomes.append((engine.x, saved["state"]))
    for x, state in outcomes[1:]:
        torch.testing.assert_close(x, outcomes[0][0], rtol=1e-12, atol=1e-13)
        for field, value in state.items():
            torch.testing.assert_close(value, outcomes[0][1][field], rtol=1e-12, atol=1e-13)


def test_columns_go_into_blocks_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns.of(Net())
    for own, strip, columnwise in ((1, 1, True), (20, 150, True), (10**9, 10**9, True), (1, 1, False)):
        cut(monkeypatch, own, strip)
        laid = Layout.of(N, columns, [{}] * len(columns.names), columnwise=columnwise)
        value = torch.randn(N, columns.size)
        blocks = laid.empty()
        laid.scatter(value, blocks)
        assert torch.equal(laid.gather(blocks), value)
        assert torch.equal(laid.join(laid.cut(value)), value)
        for name, view in laid.views(blocks).items():
            assert torch.equal(view, torch.stack([columns.unflatten(row)[name] for row in value]))
            assert view.untyped_storage().data_ptr() in {b.untyped_storage().data_ptr() for b in blocks}
        covered = sorted((s.block, c) for s in laid.strips for c in range(s.columns.start, s.columns.stop))
        assert covered == [(k, c) for k, b in enumerate(laid.blocks) for c in range(b.width)]
        if not columnwise:
            assert laid.strips[0].width == columns.size


def test_strips_are_equal_where_that_does_not_take_many_more() -> None:
    for columns, wide, expected in (
        *((100, 30, [25] * 4), (200704, 8192, [7168] * 28), (90, 30, [30] * 3), (5, 30, [5]), (0, 30, [])),
        *((101, 30, [30, 30, 30, 11]), (101, 1, [1] * 101)),
    ):
        strips = layout.spans(columns, wide, evenly=True)
        assert [s.stop - s.start for s in strips] == expected
        assert [c for s in strips for c in range(s.start, s.stop)] == list(range(columns))
    assert [s.stop - s.start for s in layout.spans(100, 30, evenly=False)] == [30, 30, 30, 10]


def test_few_numbers_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns.of(Net())
    plain: list[Any] = [{}] * len(columns.names)
    decaying = [decay(name, shape) for name, shape in zip(columns.names, columns.shapes, strict=True)]
    monkeypatch.setattr(layout, "OWN_BLOCK", 20)
    for more, options, expected in ((-1, plain, 3), (0, plain, 1), (0, decaying, 2)):
        monkeypatch.setattr(layout, "TOGETHER", N * columns.size + more)
        laid = Layout.of(N, columns, options, columnwise=True)
        assert (len(laid.blocks), len(laid.strips)) == (expected, expected)
    monkeypatch.setattr(layout, "STRIP", 1)
    assert len(Layout.of(N, columns, plain, columnwise=True).strips) == 1, "however long one of many strips may be"


class Divided:
    """Asks for different things depending on its columns, which only `columnwise = False` may."""

    name, reference, promise, static, columnwise = "divided", "none", "doubly", False, True

    def init(self, x: Tensor) -> Stateless:
        return Stateless()

    def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
        if x.shape[1] == 36:
            yield Norm(x)
        g = yield Gradient(x)
        return local.move((yield Mix(x)), g), state

    def deployed(self, x: Tensor, state: Stateless) -> Tensor:
        return x


def test_an_algorithm_that_looks_at_its_columns_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 20, 10**9)
    engine = StackedEngine(
        Net().double(),
        loss,
        algorithm=Divided(),  # type: ignore[arg-type]
        topology=topology("ring", N),
        optimizer=torch.optim.SGD,
    )
    with pytest.raises(
        AlgorithmError, match=r"the strips of one step asked for different things: .* columnwise = False"
    ):
        engine.step(batch(0))


def test_a_norm_is_that_of_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watching(Divided):
        def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
            seen.append((yield Norm(x)))
            g = yield Gradient(x)
            seen.append((yield Norm(g)))
            return local.move(x, g), state

    cut(monkeypatch, 20, 100)
    start = torch.randn(N, Columns.of(Net()).size, dtype=torch.float64)
    engine = StackedEngine(
        Net().double(),
        loss,
        algorithm=Watching(),  # type: ignore[arg-type]
        topology=topology("ring", N),
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        start=start,
    )
    engine.step(batch(0))
    strips = len(engine._workers.layout.strips)
    for norm in seen[:strips]:
        torch.testing.assert_close(norm, start.norm(dim=1, keepdim=True))
    for norm in seen[strips:]:
        torch.testing.assert_close(norm, (engine.x - start).norm(dim=1, keepdim=True))


def test_memory_that_lies_in_the_points_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm may remember the very tensors it was given; the engine writes over them at the end of the step."""
    from typing import NamedTuple

    class Before(NamedTuple):
        x: Tensor
        g: Tensor

    class Remembering(Divided):
        def init(self, x: Tensor) -> Any:
            return Before(x, x)

        def step(self, x: Tensor, state: Any, local: Local) -> Any:
            g = yield Gradient(x)
            return local.move(x, g), Before(x, g)

    cut(monkeypatch, 20, 100)
    engine = StackedEngine(
        Net().double(),
        loss,
        algorithm=Remembering(),  # type: ignore[arg-type]
        topology=topology("ring", N),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
    )
    for t in range(3):
        before = engine.x
        if t == 0:
            assert torch.equal(engine.state.x, before)
        engine.step(batch(t))
        assert torch.equal(engine.state.x, before)
        torch.testing.assert_close(engine.state.g, (before - engine.x) / 0.5)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_move_writes_over_what_nobody_reads_again(in_place: bool) -> None:
    """Only where the algorithm says so, and never over the points: a step that fails leaves them as they were."""
    seen: dict[str, Tensor] = {}

    class Handing(Divided):
        def step(self, x: Tensor, state: Stateless, local: Local) -> Step[Stateless]:
            g = yield Gradient(x)
            seen["mixed"] = yield Mix(x)
            seen["before"], seen["moved"] = seen["mixed"].clone(), local.move(seen["mixed"], g)
            return local.move(x, g), state

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            if "moved" in seen:
                raise RuntimeError("no")

    Handing.in_place = in_place  # type: ignore[attr-defined]
    start = torch.randn(N, Columns.of(Net()).size, dtype=torch.float64)
    options: dict[str, Any] = {"topology": topology("ring", N), "optimizer": Failing, "start": start, "lr": 0.1}
    engine = StackedEngine(Net().double(), loss, algorithm=Handing(), **options)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no"):
        engine.step(batch(0))
    assert torch.equal(engine.x, start)
    assert torch.equal(seen["mixed"], seen["before"]) != in_place
    assert (seen["moved"].data_ptr() == seen["mixed"].data_ptr()) == in_place
