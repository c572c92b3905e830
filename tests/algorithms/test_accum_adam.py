"""AccumAdam and AccumAdamW: torch's Adam where s = 1, the published recursion in numpy elsewhere, and what holds by
construction."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.algorithms import AccumAdam, AccumAdamW, AlgorithmError, StackedEngine
from dissensus.algorithms.optimizers import accum_adam, optimizer_class, optimizer_name, optimizers
from dissensus.theory import from_matrices

EPS = np.finfo(np.float64).eps


def published(
    x: np.ndarray,
    gradients: np.ndarray,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    s: int,
    coupled: float = 0.0,
    decoupled: float = 0.0,
    inside: bool = False,
) -> np.ndarray:
    """The recursion as a list of windows: what is committed is computed from the stored gradients of a window."""
    (b1, b2), m, v, path = betas, np.zeros_like(x), np.zeros_like(x), [x]
    for start in range(0, len(gradients), s):
        window = []
        for g in gradients[start : start + s]:
            k = start // s + 1
            g = g + coupled * x
            window.append(g)
            m_hat = (b1 * m + (1 - b1) * g) / (1 - b1**k)
            v_hat = (b2 * v + (1 - b2) * g**2) / (1 - b2**k)
            below = np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps
            x = x - lr * decoupled * x - lr * m_hat / below
            path.append(x)
        mean = sum(window) / s
        m, v = b1 * m + (1 - b1) * mean, b2 * v + (1 - b2) * mean**2
    return np.stack(path)


def run(optimizer: Callable, x: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    p = nn.Parameter(torch.from_numpy(x.copy()))
    built, path = optimizer([p]), [x]
    for g in gradients:
        p.grad = torch.from_numpy(g.copy())
        built.step()
        assert np.array_equal(p.grad.numpy(), g), "gradients are not written to"
        path.append(p.detach().numpy().copy())
    return np.stack(path)


@pytest.fixture
def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 6)), rng.normal(size=(60, 4, 6)) * np.logspace(-4, 1, 6)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("s", [1, 2, 7])
@pytest.mark.parametrize("cls", [AccumAdam, AccumAdamW])
def test_the_published_recursion(cls: type, s: int, decay: float, inside: bool, numbers: tuple) -> None:
    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3}
    got = run(
        partial(cls, **options, weight_decay=decay, accum_steps=s, eps_in_root=inside),
        *numbers,
    )
    how = {"decoupled" if cls is AccumAdamW else "coupled": decay}
    expected = published(*numbers, **options, s=s, **how, inside=inside)
    # 60 steps, each a dozen roundings of numbers of the size of x and of its step
    assert np.abs(got - expected).max() <= 1000 * EPS * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("ours", "torchs"), [(AccumAdam, torch.optim.Adam), (AccumAdamW, torch.optim.AdamW)])
def test_with_one_step_it_is_torchs_to_the_bit(ours: Any, torchs: Any, decay: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    start = [torch.randn(5, 7, dtype=dtype), torch.randn(3, dtype=dtype), torch.randn((), dtype=dtype)]
    sides = []
    for cls in (ours, torchs):
        parameters = [nn.Parameter(s.clone()) for s in start]
        sides.append((parameters, cls(parameters, lr=0.03, betas=(0.7, 0.9), eps=1e-6, weight_decay=decay)))
    for _ in range(40):
        gradients = [torch.randn_like(s) for s in start]
        for parameters, optimizer in sides:
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g.clone()
            optimizer.step()
    for a, b in zip(sides[0][0], sides[1][0], strict=True):
        assert torch.equal(a, b)
    for p, q in zip(sides[0][0], sides[1][0], strict=True):
        mine, theirs = sides[0][1].state[p], sides[1][1].state[q]
        assert set(mine) == set(theirs) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert mine["step"].dtype == theirs["step"].dtype


def test_the_defaults_are_torchs() -> None:
    for ours, torchs in ((AccumAdam, torch.optim.Adam), (AccumAdamW, torch.optim.AdamW)):
        p = nn.Parameter(torch.zeros(2))
        mine, theirs = ours([p]).defaults, torchs([p]).defaults
        assert {k: mine[k] for k in ("lr", "betas", "eps", "weight_decay")} == {
            k: theirs[k] for k in ("lr", "betas", "eps", "weight_decay")
        }
        assert mine["accum_steps"] == 1
        assert mine["eps_in_root"] is False


def test_a_constant_gradient_commits_the_same_whatever_the_window(numbers: tuple) -> None:
    x, gradients = numbers
    moments = []
    for s in (1, 3, 8):
        p = nn.Parameter(torch.from_numpy(x.copy()))
        optimizer = AccumAdam([p], lr=0.1, betas=(0.9, 0.99), accum_steps=s)
        for _ in range(5 * s):
            p.grad = torch.from_numpy(gradients[0])
            optimizer.step()
        moments.append(optimizer.state[p])
    for other in moments[1:]:
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(other[key], moments[0][key], rtol=50 * EPS, atol=0)


def test_the_second_moment_has_the_variance_of_the_larger_batch() -> None:
    # signs that cancel within every window of two: nothing is ever committed, while Adam remembers their squares
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = AccumAdam([p], accum_steps=2)
    for t in range(10):
        p.grad = torch.full_like(p, (-1.0) ** t)
        optimizer.step()
    assert float(optimizer.state[p]["exp_avg_sq"].abs().max()) == 0.0
    assert float(optimizer.state[p]["exp_avg"].abs().max()) == 0.0


def test_memory_changes_at_the_end_of_a_window_only(numbers: tuple) -> None:
    x, gradients = numbers
    p = nn.Parameter(torch.from_numpy(x.copy()))
    optimizer = AccumAdam([p], accum_steps=4)
    before = None
    for t, g in enumerate(gradients[:12], start=1):
        p.grad = torch.from_numpy(g)
        optimizer.step()
        state = optimizer.state[p]
        if before is not None:
            assert torch.equal(before, state["exp_avg_sq"]) == (t % 4 != 0)
        assert (float(state["window"].abs().max()) == 0.0) == (t % 4 == 0)
        assert float(state["step"]) == t
        before = state["exp_avg_sq"].clone()


def test_inside_the_root_epsilon_weighs_more() -> None:
    g = np.full((1, 1, 1), 1e-6)
    beside = run(partial(AccumAdam, lr=1.0, eps=1e-8), np.zeros((1, 1)), g)[-1]
    inside = run(partial(AccumAdam, lr=1.0, eps=1e-8, eps_in_root=True), np.zeros((1, 1)), g)[-1]
    assert float(-beside[0, 0]) == pytest.approx(1e-6 / (1e-6 + 1e-8), rel=1e-12)
    assert float(-inside[0, 0]) == pytest.approx(1e-6 / math.sqrt(1e-12 + 1e-8), rel=1e-12)


@pytest.mark.parametrize("stop", [5, 6])
def test_a_run_continued_from_its_state_is_the_same_run(stop: int, numbers: tuple) -> None:
    x, gradients = numbers
    whole = nn.Parameter(torch.from_numpy(x.copy()))
    factory = partial(AccumAdamW, lr=0.1, accum_steps=3, weight_decay=0.1)
    first, saved = factory([whole]), {}
    for t, g in enumerate(gradients[:20]):
        if t == stop:
            saved = copy.deepcopy({"x": whole.detach(), "optimizer": first.state_dict()})
        whole.grad = torch.from_numpy(g)
        first.step()
    part = nn.Parameter(saved["x"])
    second = factory([part])
    second.load_state_dict(saved["optimizer"])
    for g in gradients[stop:20]:
        part.grad = torch.from_numpy(g)
        second.step()
    assert torch.equal(part, whole)


def test_a_copy_goes_on_by_itself(numbers: tuple) -> None:
    x, gradients = numbers
    p = nn.Parameter(torch.from_numpy(x.copy()))
    optimizer = AccumAdam([p], accum_steps=2)
    p.grad = torch.from_numpy(gradients[0])
    optimizer.step()
    q, twin = copy.deepcopy((p, optimizer))
    (q,) = twin.param_groups[0]["params"]
    for one, by in ((p, optimizer), (q, twin)):
        one.grad = torch.from_numpy(gradients[1])
        by.step()
    assert torch.equal(p, q)
    assert p.data_ptr() != q.data_ptr()


def test_groups_have_their_own_options_and_rates(numbers: tuple) -> None:
    x, gradients = numbers
    a, b = (nn.Parameter(torch.from_numpy(x.copy())) for _ in range(2))
    both = AccumAdam([{"params": [a], "accum_steps": 3, "lr": 0.2}, {"params": [b], "eps_in_root": True}], lr=0.1)
    for g in gradients:
        a.grad, b.grad = torch.from_numpy(g), torch.from_numpy(g)
        both.step()
    assert np.array_equal(a.detach(), run(partial(AccumAdam, lr=0.2, accum_steps=3), x, gradients)[-1])
    assert np.array_equal(b.detach(), run(partial(AccumAdam, lr=0.1, eps_in_root=True), x, gradients)[-1])


def test_a_parameter_without_a_gradient_waits(numbers: tuple) -> None:
    x, gradients = numbers
    a, b = (nn.Parameter(torch.from_numpy(x.copy())) for _ in range(2))
    optimizer = AccumAdam([a, b], lr=0.1, accum_steps=2)
    for t, g in enumerate(gradients[:10]):
        a.grad, b.grad = torch.from_numpy(g), (torch.from_numpy(gradients[t - 3]) if t >= 3 else None)
        optimizer.step()
    expected = run(partial(AccumAdam, lr=0.1, accum_steps=2), x, gradients[:7])[-1]
    assert np.array_equal(b.detach(), expected), "its windows and its bias correction count its own steps"


def test_a_closure_is_evaluated_with_gradients() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = AccumAdam([p], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = p.square().sum()
        value.backward()
        return value

    assert float(optimizer.step(closure).detach()) == 2.0
    assert float(p.detach()[0]) == pytest.approx(0.9)


@pytest.mark.parametrize(("rows", "columns"), [(7, 30), (2, 150), (3, 64)])
@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
def test_pieces_do_not_change_the_numbers(
    rows: int, columns: int, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, columns + 5, dtype=torch.float64)
    gradients = torch.randn(9, rows, columns + 5, dtype=torch.float64)

    def points() -> Tensor:
        memory = x.clone()
        p = nn.Parameter(memory[:, 2:-3] if sliced else memory)
        optimizer = AccumAdamW([p], lr=0.1, accum_steps=2)
        for g in gradients:
            p.grad = g[:, 2:-3] if sliced else g
            optimizer.step()
        return p.detach().clone()

    whole = points()
    monkeypatch.setattr(accum_adam, "PIECE", 64)
    torch.testing.assert_close(points(), whole, rtol=4 * EPS, atol=4 * EPS)


@pytest.mark.parametrize("s", [1, 4])
def test_stacked_workers_move_like_separate_ones(s: int, quadratics: Any) -> None:
    problem, factory = quadratics.draw(3, 5, 9), partial(AccumAdamW, lr=0.1, accum_steps=s)
    alone = from_matrices(np.eye(3), name="nobody", may_disconnect=True)
    points = problem.run(problem.engine("dsgd", alone, optimizer=factory, gradients="loop"), 9)
    for i in range(3):
        p = nn.Parameter(torch.from_numpy(problem.x0[i].copy()))
        optimizer = factory([p])
        for t in range(9):
            p.grad = torch.from_numpy(problem.gradient(t, points[t])[i])
            optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), points[-1, i], rtol=0, atol=1e-13)


def test_an_engine_resumes_inside_a_window(quadratics: Any, schedules: dict) -> None:
    problem = quadratics.draw(4, 3, 11)

    def engine() -> StackedEngine:
        factory = partial(AccumAdam, lr=0.1, accum_steps=4)
        return problem.engine("dsgd", schedules["ring"](4), optimizer=factory)

    whole, first, second = engine(), engine(), engine()
    problem.run(whole, 11)
    problem.run(first, 6)
    second.load_state_dict(first.state_dict())
    for t in range(6, 11):
        second.step(problem.batch(t))
    assert torch.equal(second.x, whole.x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "AccumAdam: lr must be a number of at least 0, got -1.0"),
        ({"eps": float("nan")}, "AccumAdam: eps must be a number of at least 0, got nan"),
        ({"weight_decay": -0.1}, "AccumAdam: weight_decay must be a number of at least 0, got -0.1"),
        ({"betas": (0.9, 1.0)}, r"AccumAdam: betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"betas": (0.9,)}, r"AccumAdam: betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ({"accum_steps": 0}, "AccumAdam: accum_steps must be a whole number of steps, at least 1, got 0"),
        ({"accum_steps": 2.0}, "AccumAdam: accum_steps must be a whole number of steps, at least 1, got 2.0"),
        ({"accum_steps": True}, "AccumAdam: accum_steps must be a whole number of steps, at least 1, got True"),
    ],
)
def test_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        AccumAdam([nn.Parameter(torch.zeros(2))], **options)
    with pytest.raises(AlgorithmError, match=message):
        AccumAdam([{"params": [nn.Parameter(torch.zeros(2))], **options}])


def test_numbers_it_cannot_move_are_refused() -> None:
    with pytest.raises(AlgorithmError, match=r"AccumAdamW moves real numbers; a parameter is torch.complex64"):
        AccumAdamW([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    p = nn.Parameter(torch.zeros(2, 2))
    p.grad = torch.eye(2).to_sparse()
    with pytest.raises(AlgorithmError, match=r"AccumAdam has no form for sparse gradients; use torch.optim.SparseAdam"):
        AccumAdam([p]).step()


@pytest.mark.parametrize("name", ["accum-adamw", "accum_adamw", "AccumAdamW", "accumadamw"])
def test_names_of_optimizers(name: str) -> None:
    assert optimizer_class(name) is AccumAdamW
    assert optimizer_name(AccumAdamW) == "accum-adamw"
    assert optimizer_class("SGD") is torch.optim.SGD
    assert "adam" in optimizers()


def test_an_unknown_optimizer_is_answered_with_the_nearest() -> None:
    with pytest.raises(AlgorithmError, match="unknown optimizer 'acum_adam'; did you mean 'accum-adam'"):
        optimizer_class("acum_adam")


def test_configurations_know_them() -> None:
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.optimizers import check_optimizer, optimizer, optimizer_parameters

    for name in ("accum-adam", "accum_adam", "accumadam"):
        assert optimizer_parameters(name) == ["betas", "eps", "weight_decay", "accum_steps", "eps_in_root"]
        built = optimizer(name, {"accum_steps": 4, "betas": [0.9, 0.98]}, 0.1)([torch.zeros(2)])
        assert isinstance(built, AccumAdam)
        assert built.defaults["accum_steps"] == 4
    check_optimizer("accum-adamw", {"eps_in_root": True})
    with pytest.raises(ConfigError, match="optimizer 'accum-adam' has no parameter 'acum_steps'; did you mean 'accum"):
        check_optimizer("accum-adam", {"acum_steps": 4})
    with pytest.raises(ConfigError, match=r"optimizer 'accum-adam' refuses .* accum_steps must be a whole number"):
        check_optimizer("accum-adam", {"accum_steps": 0})
    with pytest.raises(ConfigError, match=r"optimizer 'accum-adam': parameter 'accum_steps': .*, got 'four'"):
        check_optimizer("accum-adam", {"accum_steps": "four"})
    with pytest.raises(ConfigError, match=r"optimizer 'sgd' refuses .*Nesterov momentum requires"):
        check_optimizer("sgd", {"nesterov": True})
    with pytest.raises(ConfigError, match="unknown optimizer 'acumadam'; did you mean 'accum-adam'"):
        check_optimizer("acumadam", {})
