"""Every algorithm x topology x layout x local optimizer against an oracle whose author had not seen the implementation.

A hundred steps in float64, a learning rate that changes at every step, noise on every gradient; the relative error must
stay below 1e-10 (what is measured is below 1e-14: nothing but rounding). The rounds the oracle mixes with are held
against the text first, so that an agreement over a wrong matrix is no agreement.
"""

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import StackedEngine, algorithm
from dissensus.algorithms.optimizers.accum_adam import AccumAdam, AccumAdamW
from dissensus.experiments.problem import Problem, solve
from dissensus.theory import Topology, topology


def _load() -> Any:
    """The oracle beside this file: the import mode of the suite puts no folder of tests on the path."""
    spec = importlib.util.spec_from_file_location("blind_oracle", Path(__file__).with_name("blind_oracle.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = _load()
distance, quadratics, DIM, STEPS = oracle.distance, oracle.quadratics, oracle.DIM, oracle.STEPS
LIMIT = 1e-10
LRS = [0.06 * (1 + np.cos(np.pi * t / STEPS)) + 0.01 for t in range(STEPS)]
WARM = [0.005 * (t + 1) for t in range(20)] + [0.1 * (1 - t / 80) + 0.001 for t in range(80)]  # peaks at step 20

TOPOLOGIES: dict[str, Topology] = {
    "ring": topology("ring", 4),
    "directed-ring": topology("directed-ring", 5),
    "one-peer-exponential": topology("one-peer-exponential", 8),
    "one-peer-exponential-6": topology("one-peer-exponential", 6),
    "one-peer-ring": topology("one-peer-ring", 6),
    "aer": topology("aer", 4),
    "random-gossip": topology("random-gossip", 4, seed=3),
}
PUSH_ONLY: dict[str, Topology] = {"random-digraph": topology("random-digraph", 5, degree=2, seed=1)}

# name -> (the optimizer under test, the oracle's)
PLAIN: dict[str, tuple[Any, Callable[[], Any]]] = {
    "sgd": (torch.optim.SGD, oracle.Sgd),
    "sgd-decay": (partial(torch.optim.SGD, weight_decay=0.05), partial(oracle.Sgd, weight_decay=0.05)),
}
MOVES: dict[str, tuple[Any, Callable[[], Any]]] = PLAIN | {
    "heavy-ball": (
        partial(torch.optim.SGD, momentum=0.9, weight_decay=0.05, dampening=0.2),
        partial(oracle.Sgd, 0.9, weight_decay=0.05, dampening=0.2),
    ),
    "nesterov": (
        partial(torch.optim.SGD, momentum=0.8, nesterov=True, weight_decay=0.05),
        partial(oracle.Sgd, 0.8, nesterov=True, weight_decay=0.05),
    ),
    "adam": (
        partial(torch.optim.Adam, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        partial(oracle.Adam, (0.8, 0.95), 1e-3, weight_decay=0.1),
    ),
    "adamw": (
        partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.1),
        partial(oracle.Adam, (0.9, 0.99), weight_decay=0.1, decoupled=True),
    ),
    "adam-root": (
        partial(AccumAdam, betas=(0.9, 0.99), eps=1e-2, eps_in_root=True),
        partial(oracle.Adam, (0.9, 0.99), 1e-2, eps_in_root=True),
    ),
    "accum-adam": (
        partial(AccumAdam, betas=(0.9, 0.99), eps=1e-4, weight_decay=0.1, accum_steps=3),
        partial(oracle.AccumAdam, 3, (0.9, 0.99), 1e-4, weight_decay=0.1),
    ),
    "accum-adam-root": (
        partial(AccumAdam, betas=(0.9, 0.99), eps=1e-2, weight_decay=0.1, accum_steps=4, eps_in_root=True),
        partial(oracle.AccumAdam, 4, (0.9, 0.99), 1e-2, weight_decay=0.1, eps_in_root=True),
    ),
    "accum-adamw": (
        partial(AccumAdamW, betas=(0.9, 0.99), weight_decay=0.1, accum_steps=4),
        partial(oracle.AccumAdam, 4, (0.9, 0.99), weight_decay=0.1, decoupled=True),
    ),
}


def _adaptive(q: Any, rounds: Any, move: Any, lrs: Any, order: str, **rule: Any) -> np.ndarray:
    return oracle.dsgd(q, rounds, move, lrs, order, oracle.adaptive_factors(lrs, **rule))


def _quasi_global(q: Any, rounds: Any, move: Any, lrs: Any, beta: float, nu: float, nesterov: bool) -> np.ndarray:
    return oracle.qg_dsgdm(q, rounds, lrs, beta, nu, nesterov=nesterov, weight_decay=move.weight_decay)


def _choco(q: Any, rounds: Any, move: Any, lrs: Any, compressor: str, order: str, ratio: float = 1.0) -> np.ndarray:
    compress = {
        "top-k": partial(oracle.top_k, k=round(ratio * DIM)),
        "sign": oracle.scaled_sign,
        "identity": lambda rows: rows,
    }[compressor]
    return oracle.choco_sgd(q, rounds, move, lrs, compress, 0.3, order)


def _without_rounds(path: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda q, rounds, move, lrs, **keys: path(q, move, lrs, **keys)


# label -> (name, its keys, the oracle's path of (problem, rounds, move, rates, keys), optimizers that apply)
MIXED: dict[str, tuple[str, dict[str, Any], Callable[..., np.ndarray], dict[str, Any]]] = {
    "awc": ("dsgd", {"order": "awc"}, oracle.dsgd, MOVES),
    "atc-weak": ("dsgd", {"order": "atc", "gamma": 0.6}, oracle.dsgd, MOVES),
    "cta-weak": ("dsgd", {"order": "cta", "gamma": 0.6}, oracle.dsgd, MOVES),
    "ac": ("dsgd-ac", {"order": "awc", "p": 2.0, "gamma_min": 0.1, "start": 10}, _adaptive, MOVES),
    "tracking": ("gradient-tracking", {}, oracle.gradient_tracking, MOVES),
    "qg": ("qg-dsgdm", {"beta": 0.8, "nu": 0.2, "nesterov": False}, _quasi_global, PLAIN),
    "qg-nesterov": ("qg-dsgdm", {"beta": 0.9, "nu": 0.1, "nesterov": True}, _quasi_global, {"sgd": PLAIN["sgd"]}),
    "push": ("sgp", {}, oracle.push_sum, MOVES),
}
COMPRESSED: dict[str, tuple[str, dict[str, Any], Callable[..., np.ndarray], dict[str, Any]]] = {
    f"choco-{kind}-{order}": ("choco-sgd", keys | {"compressor": kind, "order": order}, _choco, MOVES)
    for kind, keys in (("top-k", {"ratio": 0.5}), ("sign", {}), ("identity", {}))
    for order in ("gossip-first", "compress-first")
}
UNMIXED: dict[str, tuple[str, dict[str, Any], Callable[..., np.ndarray], dict[str, Any]]] = {
    "allreduce": ("allreduce", {}, _without_rounds(oracle.allreduce), MOVES),
    "local": ("local-sgd", {"period": 7}, _without_rounds(oracle.local_sgd), MOVES),
    "sam": ("sam", {"rho": 0.3}, oracle.sam, MOVES),
}
CASES = MIXED | COMPRESSED | UNMIXED
CELLS = [
    *[(case, name) for case in MIXED for name in TOPOLOGIES],
    *[("push", name) for name in PUSH_ONLY],
    *[(case, "directed-ring") for case in COMPRESSED],
    *[(case, "ring") for case in COMPRESSED if case.endswith("gossip-first")],
    *[(case, "ring") for case in UNMIXED],
]
LAYOUTS = ("vmap", "loop", "chunked")


@cache
def dense(schedule: Topology) -> list[np.ndarray]:
    """The rounds of a hundred steps."""
    return [schedule[t].dense() for t in range(STEPS)]


class _Point(torch.nn.Module):
    """A model that is nothing but a point."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(DIM, dtype=torch.float64))


def _quadratic(model: Any, batch: Any) -> torch.Tensor:
    a, b, noise = batch
    return 0.5 * model.x @ a @ model.x - b @ model.x + noise @ model.x


def chunked(q: Any, what: Any, schedule: Topology, optimizer: Any, lrs: list[float], **more: Any) -> np.ndarray:
    """The same run on the engine itself, three workers through one vmap."""
    options: dict[str, Any] = {"lr": lrs.__getitem__} | more
    engine = StackedEngine(
        _Point(), _quadratic, algorithm=what, topology=schedule, optimizer=optimizer,
        gradients="vmap", chunk=3, start=torch.from_numpy(q.x0), **options,
    )  # fmt: skip
    a, b, noise = (torch.from_numpy(part) for part in (q.a, q.b, q.noise))
    path = [engine.x]
    for t in range(len(lrs)):
        engine.step((a, b, noise[t]))
        path.append(engine.x)
    return torch.stack(path).numpy()


def run(q: Any, what: Any, schedule: Topology, optimizer: Any, lrs: list[float], layout: Any = "vmap") -> np.ndarray:
    """The implementation's path in one of the layouts."""
    if layout == "chunked":
        return chunked(q, what, schedule, optimizer, lrs)
    return solve(
        Problem(q.a, q.b, q.x0, q.noise), algorithm=what, topology=schedule, optimizer=optimizer,
        lr=lrs.__getitem__, steps=len(lrs), dtype="float64", gradients=layout,
    )  # fmt: skip


def hold(case: str, where: str, layout: str, optimizer: str, steps: int = STEPS) -> None:
    """Holds one cell of the sweep against the oracle."""
    name, keys, path, moves = CASES[case]
    schedule = (TOPOLOGIES | PUSH_ONLY)[where]
    q = quadratics(schedule.size, equal_start=case in UNMIXED)
    theirs, ours = moves[optimizer]
    extra = {"consensus_step": 0.3} if name == "choco-sgd" else {}
    truth = path(q, dense(schedule), ours(), LRS[:steps], **keys)
    found = run(q, algorithm(name, **keys, **extra), schedule, theirs, LRS[:steps], layout)
    assert found.shape == truth.shape
    assert distance(found, truth) < LIMIT, (case, where, layout, optimizer)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("case", "where"), CELLS)
def test_every_algorithm_topology_and_layout(case: str, where: str, layout: str) -> None:
    """Local optimizers and layouts go round: a hundred steps in one layout, twenty in the others. All of it is slow."""
    moves = list(CASES[case][3])
    turn, which = CELLS.index((case, where)), LAYOUTS.index(layout)
    hold(case, where, layout, moves[(turn + 3 * which) % len(moves)], STEPS if turn % 3 == which else 20)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "where"), CELLS)
def test_every_algorithm_topology_layout_and_optimizer(case: str, where: str) -> None:
    for layout in LAYOUTS:
        for optimizer in CASES[case][3]:
            hold(case, where, layout, optimizer)


@pytest.mark.parametrize("optimizer", MOVES)
def test_every_local_optimizer_on_one_directed_schedule(optimizer: str) -> None:
    for case in ("awc", "atc-weak"):
        hold(case, "one-peer-exponential-6", "vmap", optimizer)


@pytest.mark.parametrize("optimizer", ["sgd", "accum-adamw"])
@pytest.mark.parametrize("case", MIXED)
def test_workers_with_learning_rates_of_their_own(case: str, optimizer: str) -> None:
    """Row i moves with rate i, and where a recursion divides by the rate, as QG does, it divides by rate i."""
    name, keys, path, moves = CASES[case]
    if optimizer not in moves or case == "ac":
        pytest.skip("takes plain SGD" if optimizer not in moves else "one gamma for all needs one rate for all")
    schedule = TOPOLOGIES["one-peer-exponential-6"]
    q, (theirs, ours) = quadratics(schedule.size), moves[optimizer]
    rates = np.linspace(0.02, 0.1, schedule.size)
    truth = path(q, dense(schedule), ours(), [rates[:, None]] * STEPS, **keys)
    own: dict[str, Any] = {"lr": None, "per_worker": [{"lr": float(rate)} for rate in rates]}
    found = chunked(q, algorithm(name, **keys), schedule, partial(theirs, lr=0.1), LRS, **own)
    assert distance(found, truth) < LIMIT


def test_dadam_is_local_adam_of_its_own_accord() -> None:
    """Named without an optimizer it is torch's Adam with torch's defaults, epsilon outside the root."""
    schedule = TOPOLOGIES["one-peer-exponential"]
    q = quadratics(schedule.size)
    truth = oracle.dsgd(q, dense(schedule), oracle.Adam(), LRS)
    assert distance(run(q, algorithm("dadam"), schedule, None, LRS), truth) < LIMIT


@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_sharpness_aware_steps_in_the_three_orders(order: str) -> None:
    schedule = TOPOLOGIES["one-peer-exponential"]
    q = quadratics(schedule.size)
    theirs, ours = MOVES["nesterov"]
    truth = oracle.sam(q, dense(schedule), ours(), LRS, 0.3, order)
    assert distance(run(q, algorithm("sam", rho=0.3, order=order), schedule, theirs, LRS), truth) < LIMIT


def test_opposite_random_directions_leave_a_quadratic_alone() -> None:
    """The mean of the gradients at x + e and x - e is the gradient at x: all-reduce, exactly."""
    schedule = TOPOLOGIES["ring"]
    q = quadratics(schedule.size, equal_start=True)
    what = algorithm("avg-sam", rho=0.3, antithetic=True)
    assert distance(run(q, what, schedule, torch.optim.SGD, LRS), oracle.allreduce(q, oracle.Sgd(), LRS)) < LIMIT


@pytest.mark.parametrize("rates", ["falling", "warming up"])
@pytest.mark.parametrize("start", [0, 10, 40])
@pytest.mark.parametrize(("capture", "order"), [("window", "awc"), ("window", "atc"), ("published", "awc")])
def test_adaptive_factor_with_the_maximum_known(rates: str, start: int, capture: str, order: str) -> None:
    lrs = LRS if rates == "falling" else WARM
    rule: dict[str, Any] = {"p": 1.0, "gamma_min": 0.1, "start": start}
    if capture == "published":
        peak, rule["capture"] = lrs[start], "published"
    else:
        peak = rule["lr_max"] = max(lrs[start:])
    if peak < max(lrs[start:]) / 3:
        pytest.skip("the published rule makes gamma so large here that the recursion leaves every bound")
    schedule = TOPOLOGIES["ring"]
    q = quadratics(schedule.size)
    truth = _adaptive(q, dense(schedule), oracle.Sgd(), lrs, order, **{**rule, "lr_max": peak})
    found = run(q, algorithm("dsgd-ac", order=order, **rule), schedule, torch.optim.SGD, lrs)
    assert distance(found, truth) < LIMIT


@pytest.mark.parametrize("start", [0, 10])
def test_adaptive_factor_that_starts_inside_the_warm_up(start: int) -> None:
    """gamma_t = (lr_t / max over s >= start of lr_s)^p: below one as long as the rate still rises."""
    schedule = TOPOLOGIES["ring"]
    q = quadratics(schedule.size)
    truth = _adaptive(q, dense(schedule), oracle.Sgd(), WARM, "awc", p=2.0, start=start)
    found = run(q, algorithm("dsgd-ac", p=2.0, start=start), schedule, torch.optim.SGD, WARM)
    assert distance(found, truth) < LIMIT


def test_quasi_global_nesterov_with_weight_decay() -> None:
    """The decay is added to g, which enters u = g + beta (beta m + g) twice."""
    schedule = TOPOLOGIES["ring"]
    q = quadratics(schedule.size)
    theirs, ours = MOVES["sgd-decay"]
    keys = {"beta": 0.9, "nu": 0.1, "nesterov": True}
    truth = _quasi_global(q, dense(schedule), ours(), LRS, **keys)
    assert distance(run(q, algorithm("qg-dsgdm", **keys), schedule, theirs, LRS), truth) < LIMIT


@pytest.mark.parametrize("case", [*[c for c in CASES if c not in ("push", "qg", "qg-nesterov", "sam")]])
def test_the_mean_does_not_know_the_topology(case: str) -> None:
    """On one common quadratic with additive noise the mean follows centralized SGD with momentum, whoever mixes."""
    name, keys, _, _ = CASES[case]
    if name == "local-sgd":
        keys = {"period": 3}
    schedule = TOPOLOGIES["ring"]
    q = quadratics(schedule.size, equal_start=True)
    q = q._replace(a=np.repeat(q.a[:1], schedule.size, axis=0), b=np.repeat(q.b[:1], schedule.size, axis=0))
    lrs = [0.1] * STEPS
    optimizer = partial(torch.optim.SGD, momentum=0.0 if name == "gradient-tracking" else 0.9)
    found = run(q, algorithm(name, **keys), schedule, optimizer, lrs).mean(axis=1)
    centre = q._replace(**{key: getattr(q, key).mean(axis=0, keepdims=True) for key in ("a", "b", "x0")})
    centre = centre._replace(noise=q.noise.mean(axis=1, keepdims=True))
    momentum = optimizer.keywords["momentum"]
    np.testing.assert_allclose(found, oracle.allreduce(centre, oracle.Sgd(momentum), lrs)[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd-decay", "heavy-ball", "nesterov", "adam", "adamw"])
def test_the_moves_are_those_of_torch(optimizer: str) -> None:
    theirs, ours = MOVES[optimizer]
    rng = np.random.default_rng(5)
    x, move = rng.standard_normal((3, DIM)), ours()
    point = torch.nn.Parameter(torch.from_numpy(x.copy()))
    torchs = theirs([point], lr=LRS[0])
    for lr in LRS:
        g = rng.standard_normal((3, DIM))
        torchs.param_groups[0]["lr"] = lr
        point.grad = torch.from_numpy(g)
        torchs.step()
        x = move(x, g, lr)
    np.testing.assert_allclose(x, point.detach().numpy(), rtol=1e-12)


def test_accumulated_moments() -> None:
    """One step a window is Adam; under a constant gradient the committed moments do not depend on the window."""
    q, schedule = quadratics(4), TOPOLOGIES["ring"]
    one = oracle.dsgd(q, dense(schedule), oracle.AccumAdam(1, weight_decay=0.1), LRS)
    assert distance(one, oracle.dsgd(q, dense(schedule), oracle.Adam(weight_decay=0.1), LRS)) < LIMIT
    moments = []
    for window in (1, 2, 5):
        move = oracle.AccumAdam(window)
        for _ in range(4 * window):
            move(np.ones(2), np.array([0.3, -2.0]), 0.1)
        moments.append((move.m, move.v))
    np.testing.assert_allclose(moments[1:], [moments[0]] * 2, rtol=1e-14)
