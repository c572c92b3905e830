"""`dissensus simulate --problem` against recursions written here from the published equations, in plain numpy.

Nothing of the toolkit's own oracles is used: mixing matrices, optimizers and recursions are spelled out below, worker
by worker. What is compared is the file that the command line leaves.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dissensus.experiments.cli import main

N, D, STEPS = 8, 5, 100
BOUND = 1e-12
"""The largest relative error that is accepted after 100 steps in float64; rounding leaves about 1e-15."""
LR = 0.07

Weights = Callable[[int], np.ndarray]
Rule = Callable[[int], float]
Mover = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""(point, gradient, learning rate) -> new point, of one worker, with a memory of its own."""


@pytest.fixture(scope="module")
def quadratics() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    half = rng.normal(size=(N, D, D)) / math.sqrt(D)
    return {
        "A": 0.3 * np.eye(D) + half @ half.transpose(0, 2, 1) / 2,
        "b": rng.normal(size=(N, D)),
        "x0": rng.normal(size=(N, D)),
        "noise": 0.3 * rng.normal(size=(STEPS, N, D)),
    }


@pytest.fixture(scope="module")
def file(quadratics: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "problem.npz"
    np.savez(path, allow_pickle=False, **quadratics)
    return path


# Mixing matrices, row = receiver.


def ring(t: int) -> np.ndarray:
    w = np.zeros((N, N))
    for i in range(N):
        for j in (i - 1, i, i + 1):
            w[i, j % N] = 1 / 3
    return w


def torus(t: int) -> np.ndarray:
    """2 rows of 4: left, right, and the one other worker of the column."""
    w = np.zeros((N, N))
    for i in range(N):
        r, c = divmod(i, 4)
        for j in (i, 4 * r + (c - 1) % 4, 4 * r + (c + 1) % 4, 4 * (1 - r) + c):
            w[i, j] += 1 / 4
    return w


def one_peer_exponential(t: int) -> np.ndarray:
    w = np.eye(N) / 2
    for i in range(N):
        w[i, (i - (1, 2, 4)[t % 3]) % N] += 1 / 2
    return w


def star(t: int) -> np.ndarray:
    """Metropolis: 1/n on every link, and what is left on the workers themselves."""
    w = np.eye(N) * (1 - 1 / N)
    w[0, :] = w[:, 0] = 1 / N
    return w


def directed_ring(t: int) -> np.ndarray:
    return (np.eye(N) + np.roll(np.eye(N), 1, axis=0)) / 2


TOPOLOGIES: dict[str, tuple[str, Weights]] = {
    "ring": ("--topology ring", ring),
    "torus": ("--topology torus --topology.rows 2", torus),
    "one-peer-exponential": ("--topology one-peer-exponential", one_peer_exponential),
    "star": ("--topology star", star),
    "directed-ring": ("--topology directed-ring", directed_ring),
    "complete": ("--topology complete", lambda t: np.full((N, N), 1 / N)),
}


# Local optimizers, one object per worker.


class Sgd:
    def __init__(self, beta: float = 0.0, nesterov: bool = False, decay: float = 0.0, dampening: float = 0.0) -> None:
        self.beta, self.nesterov, self.decay, self.dampening = beta, nesterov, decay, dampening
        self.v: np.ndarray | None = None

    def __call__(self, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        g = g + self.decay * x
        self.v = g if self.v is None else self.beta * self.v + (1 - self.dampening) * g
        return x - lr * (g + self.beta * self.v if self.nesterov else self.v)


class Adam:
    """Moments committed every s steps, from the mean gradient of the window; s = 1 is Adam."""

    def __init__(
        self,
        s: int = 1,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        coupled: float = 0.0,
        decoupled: float = 0.0,
        inside: bool = False,
    ) -> None:
        self.s, self.b1, self.b2, self.eps, self.inside = s, b1, b2, eps, inside
        self.coupled, self.decoupled = coupled, decoupled
        self.t, self.m, self.v, self.window = 0, 0.0, 0.0, 0.0

    def __call__(self, x: np.ndarray, g: np.ndarray, lr: float) -> np.ndarray:
        self.t += 1
        k = math.ceil(self.t / self.s)
        g = g + self.coupled * x
        m = (self.b1 * self.m + (1 - self.b1) * g) / (1 - self.b1**k)
        v = (self.b2 * self.v + (1 - self.b2) * g**2) / (1 - self.b2**k)
        below = np.sqrt(v + self.eps) if self.inside else np.sqrt(v) + self.eps
        x = (1 - lr * self.decoupled) * x - lr * m / below
        self.window = self.window + g / self.s
        if self.t % self.s == 0:
            self.m = self.b1 * self.m + (1 - self.b1) * self.window
            self.v = self.b2 * self.v + (1 - self.b2) * self.window**2
            self.window = 0.0
        return x


OPTIMIZERS: dict[str, tuple[str, Callable[[], Mover]]] = {
    "unsaid": ("", Sgd),
    "momentum": ("--optimizer sgd --optimizer.momentum 0.9", lambda: Sgd(0.9)),
    "nesterov": ("--optimizer sgd --optimizer.momentum 0.8 --optimizer.nesterov", lambda: Sgd(0.8, True)),
    "nesterov said": ("--optimizer.momentum=0.8 --optimizer.nesterov true", lambda: Sgd(0.8, True)),
    "nesterov denied": ("--optimizer.momentum=0.8 --optimizer.nesterov False", lambda: Sgd(0.8)),
    "decay": ("--optimizer SGD --optimizer.weight_decay 0.1", lambda: Sgd(decay=0.1)),
    "all of sgd": (
        "--optimizer.momentum 0.5 --optimizer.weight-decay 0.05 --optimizer.dampening .2",
        lambda: Sgd(0.5, decay=0.05, dampening=0.2),
    ),
    "adam": ("--optimizer adam", Adam),
    "adam of other moments": (
        "--optimizer adam --optimizer.betas 0.8,0.95 --optimizer.eps 1e-3 --optimizer.weight_decay 0.1",
        lambda: Adam(1, 0.8, 0.95, 1e-3, coupled=0.1),
    ),
    "adamw": (
        "--optimizer adamw --optimizer.betas=[0.9,0.99] --optimizer.weight_decay 0.2",
        lambda: Adam(1, 0.9, 0.99, decoupled=0.2),
    ),
    "accum-adam": (
        "--optimizer accum-adam --optimizer.accum_steps 4 --optimizer.eps 1e-3 --optimizer.weight_decay 0.1",
        lambda: Adam(4, eps=1e-3, coupled=0.1),
    ),
    "accum-adam inside": (
        "--optimizer accum-adam --optimizer.accum_steps 3 --optimizer.eps 1e-3 --optimizer.eps_in_root",
        lambda: Adam(3, eps=1e-3, inside=True),
    ),
    "accum-adamw": (
        "--optimizer accum-adamw --optimizer.accum-steps 8 --optimizer.weight_decay 0.1",
        lambda: Adam(8, decoupled=0.1),
    ),
}


# The recursions.


class Recursion:
    """n workers, their gradients on the problem, their mixing and their local moves."""

    def __init__(self, problem: dict[str, np.ndarray], weights: Weights, mover: Callable[[], Mover], lr: Rule) -> None:
        self.A, self.b, self.noise, self.x0 = (problem[k] for k in ("A", "b", "noise", "x0"))
        self.weights, self.lr = weights, lr
        self.movers = [mover() for _ in range(N)]

    def gradient(self, t: int, x: np.ndarray) -> np.ndarray:
        return np.array([self.A[i] @ x[i] - self.b[i] + self.noise[t, i] for i in range(N)])

    def mix(self, t: int, x: np.ndarray, gamma: float = 1.0) -> np.ndarray:
        w = self.weights(t)
        heard = [sum(w[i, j] * x[j] for j in range(N) if w[i, j] != 0) for i in range(N)]
        return (1 - gamma) * x + gamma * np.array(heard)

    def move(self, t: int, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        return np.array([self.movers[i](x[i], g[i], self.lr(t)) for i in range(N)])

    def dsgd(self, order: str = "awc", gamma: Rule = lambda t: 1.0) -> np.ndarray:
        xs = [self.x0]
        for t in range(STEPS):
            x = xs[-1]
            if order == "awc":
                xs.append(self.move(t, self.mix(t, x, gamma(t)), self.gradient(t, x)))
            elif order == "atc":
                xs.append(self.mix(t, self.move(t, x, self.gradient(t, x)), gamma(t)))
            else:
                y = self.mix(t, x, gamma(t))
                xs.append(self.move(t, y, self.gradient(t, y)))
        return np.array(xs)

    def tracking(self) -> np.ndarray:
        """y⁰ = g(x⁰), x⁺ = W x - α y, y⁺ = W y + g(x⁺) - g(x)."""
        xs, g = [self.x0], self.gradient(0, self.x0)
        y = g
        for t in range(STEPS):
            xs.append(self.mix(t, xs[-1]) - self.lr(t) * y)
            if t + 1 < STEPS:
                after = self.gradient(t + 1, xs[-1])
                y, g = self.mix(t, y) + after - g, after
        return np.array(xs)

    def quasi_global(self, beta: float, nu: float, nesterov: bool) -> np.ndarray:
        xs, m = [self.x0], np.zeros((N, D))
        for t in range(STEPS):
            x, g, lr = xs[-1], self.gradient(t, xs[-1]), self.lr(t)
            hat = beta * m + g
            after = self.mix(t, x - lr * (g + beta * hat if nesterov else hat))
            m = (1 - nu) * m + nu * (x - after) / lr
            xs.append(after)
        return np.array(xs)

    def push(self) -> np.ndarray:
        """z = x / w, x⁺ = A (x - α g(z)), w⁺ = A w: deployed is z."""
        x, w = self.x0, np.ones((N, 1))
        zs = [x]
        for t in range(STEPS):
            x, w = self.mix(t, x - self.lr(t) * self.gradient(t, zs[-1])), self.mix(t, w)
            zs.append(x / w)
        return np.array(zs)

    def choco(self, step: float, keep: int, first: str) -> np.ndarray:
        """Everybody keeps x̂ of everybody: x⁺ᵢ = x½ᵢ + γ Σⱼ wᵢⱼ (x̂ⱼ - x̂ᵢ), x̂⁺ = x̂ + Q(· - x̂)."""

        def top(v: np.ndarray) -> np.ndarray:
            rows = np.zeros_like(v)
            for i, row in enumerate(v):
                for k in sorted(range(D), key=lambda k: -abs(row[k]))[:keep]:
                    rows[i, k] = row[k]
            return rows

        xs, hat = [self.x0], np.zeros((N, D))
        for t in range(STEPS):
            half = xs[-1] - self.lr(t) * self.gradient(t, xs[-1])
            if first == "compress":
                hat = hat + top(half - hat)
            after = half + step * (self.mix(t, hat) - hat)
            if first == "gossip":
                hat = hat + top(after - hat)
            xs.append(after)
        return np.array(xs)

    def local(self, period: int) -> np.ndarray:
        xs = [self.x0]
        for t in range(STEPS):
            x = self.move(t, xs[-1], self.gradient(t, xs[-1]))
            xs.append(np.tile(x.mean(axis=0), (N, 1)) if (t + 1) % period == 0 else x)
        return np.array(xs)

    def centralized(self) -> np.ndarray:
        xs = [self.x0]
        for t in range(STEPS):
            g = np.tile(self.gradient(t, xs[-1]).mean(axis=0), (N, 1))
            xs.append(self.move(t, xs[-1], g))
        return np.array(xs)

    def sharp(self, rho: float) -> np.ndarray:
        """The gradient ρ along the own gradient away, same noise; the mean of all of them."""
        xs = [self.x0]
        for t in range(STEPS):
            g = self.gradient(t, xs[-1])
            g = self.gradient(t, xs[-1] + rho * g / np.linalg.norm(g, axis=1, keepdims=True))
            xs.append(self.move(t, xs[-1], np.tile(g.mean(axis=0), (N, 1))))
        return np.array(xs)


def constant(t: int) -> float:
    return LR


def simulated(file: Path, line: str, out: Path, capsys: pytest.CaptureFixture, lr: float = LR) -> np.ndarray:
    """The trajectory that a command line leaves; what it says of it is checked on the way."""
    words = f"simulate --problem {file} --lr {lr} --steps {STEPS} --trajectory {out} --json {line}".split()
    assert main(words) == 0
    told, complaints = capsys.readouterr()
    assert complaints == ""
    said = json.loads(told)
    with np.load(out) as held:
        assert held.files == ["x"]
        x = held["x"]
    assert x.shape == (STEPS + 1, N, D)
    assert (said["status"], said["n"], said["d"], said["steps"], said["dtype"]) == ("ok", N, D, STEPS, "float64")
    assert said["trajectory"] == str(out)
    return x


def near(found: np.ndarray, expected: np.ndarray) -> None:
    assert abs(expected[-1] - expected[0]).max() > 0.1, "something moved"
    assert abs(found - expected).max() <= BOUND * abs(expected).max()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_dsgd(order: str, optimizer: str, file, quadratics, tmp_path, capsys) -> None:
    said, mover = OPTIMIZERS[optimizer]
    line = f"--algorithm dsgd --algorithm.order {order} --topology one-peer-exponential {said}"
    expected = Recursion(quadratics, one_peer_exponential, mover, constant).dsgd(order)
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("gamma", [0.0, 0.35, 1.0])
def test_topologies_and_constant_gamma(name: str, gamma: float, file, quadratics, tmp_path, capsys) -> None:
    topology, weights = TOPOLOGIES[name]
    line = f"--algorithm dsgd --algorithm.gamma {gamma} {topology}"
    expected = Recursion(quadratics, weights, Sgd, constant).dsgd(gamma=lambda t: gamma)
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


def warm_cosine(t: int) -> float:
    """Ten steps from a fifth of the peak up, then down the cosine to a twentieth."""
    if t < 10:
        return LR * (0.2 + 0.8 * t / 10)
    return LR * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (t - 10) / (STEPS - 10))))


SCHEDULE = "--lr.schedule cosine --lr.warmup 10 --lr.warmup_from 0.2 --lr.last 0.05"


def adaptive(p: float, least: float, start: int) -> Rule:
    """γ = γ_min + (1 - γ_min)(α/α_max)^p from `start` on, with the largest rate seen since then."""

    top = max(warm_cosine(s) for s in range(start, STEPS))

    def gamma(t: int) -> float:
        if t < start:
            return 1.0
        return least + (1 - least) * (warm_cosine(t) / top) ** p

    return gamma


@pytest.mark.parametrize(("p", "least", "start"), [(3.0, 0.0, 0), (1.0, 0.1, 5), (2.5, 0.0, 40)])
@pytest.mark.parametrize("order", ["awc", "atc", "cta"])
def test_adaptive_consensus(p, least, start, order, file, quadratics, tmp_path, capsys) -> None:
    line = (
        f"--algorithm dsgd-ac --algorithm.p {p} --algorithm.gamma_min {least} --algorithm.start {start} "
        f"--algorithm.order {order} --topology ring --optimizer.momentum 0.9 {SCHEDULE}"
    )
    recursion = Recursion(quadratics, ring, lambda: Sgd(0.9), warm_cosine)
    near(simulated(file, line, tmp_path / "out.npz", capsys), recursion.dsgd(order, adaptive(p, least, start)))


def test_adaptive_consensus_with_a_constant_factor(file, quadratics, tmp_path, capsys) -> None:
    line = (
        f"--algorithm dsgd-ac --algorithm.gamma 0.2 --algorithm.start 30 --topology torus --topology.rows=2 {SCHEDULE}"
    )
    expected = Recursion(quadratics, torus, Sgd, warm_cosine).dsgd(gamma=lambda t: 1.0 if t < 30 else 0.2)
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


@pytest.mark.parametrize("optimizer", ["unsaid", "accum-adam"])
def test_dadam_is_dsgd_with_adam(optimizer: str, file, quadratics, tmp_path, capsys) -> None:
    said, mover = OPTIMIZERS[optimizer]
    expected = Recursion(quadratics, ring, Adam if optimizer == "unsaid" else mover, constant).dsgd()
    near(simulated(file, f"--algorithm dadam --topology ring {said}", tmp_path / "out.npz", capsys), expected)


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "directed-ring"])
def test_gradient_tracking(name: str, file, quadratics, tmp_path, capsys) -> None:
    topology, weights = TOPOLOGIES[name]
    expected = Recursion(quadratics, weights, Sgd, warm_cosine).tracking()
    line = f"--algorithm gradient-tracking {topology} {SCHEDULE}"
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", ["ring", "one-peer-exponential"])
def test_quasi_global_momentum(nesterov: bool, name: str, file, quadratics, tmp_path, capsys) -> None:
    topology, weights = TOPOLOGIES[name]
    expected = Recursion(quadratics, weights, Sgd, warm_cosine).quasi_global(0.7, 0.2, nesterov)
    line = f"--algorithm qg-dsgdm --algorithm.beta 0.7 --algorithm.nu 0.2 {topology} {SCHEDULE}"
    line += " --algorithm.nesterov" if nesterov else ""
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


def test_push_sum_on_a_digraph_whose_rows_do_not_sum_to_one(file, quadratics, tmp_path, capsys) -> None:
    from dissensus.theory import topology

    w = topology("random-digraph", N, degree=3, seed=4)[0].dense()
    assert abs(w.sum(axis=1) - 1).max() > 0.1
    line = "--algorithm sgp --topology random-digraph --topology.degree 3 --topology.seed 4"
    expected = Recursion(quadratics, lambda t: w, Sgd, constant).push()
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


@pytest.mark.parametrize("first", ["gossip", "compress"])
def test_compressed_gossip(first: str, file, quadratics, tmp_path, capsys) -> None:
    line = (
        f"--algorithm choco-sgd --algorithm.compressor top-k --algorithm.ratio 0.4 --algorithm.consensus_step 0.25 "
        f"--algorithm.order {first}-first --topology ring"
    )
    expected = Recursion(quadratics, ring, Sgd, constant).choco(0.25, 2, first)
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)


def test_what_needs_no_topology_needs_none(file, quadratics, tmp_path, capsys) -> None:
    recursion = Recursion(quadratics, ring, lambda: Sgd(0.9), constant)
    near(
        simulated(file, "--algorithm local-sgd --algorithm.period 7 --optimizer.momentum .9", tmp_path / "a", capsys),
        recursion.local(7),
    )
    recursion = Recursion(quadratics, ring, Adam, constant)
    line = "--algorithm allreduce --optimizer adam --topology ring"
    near(simulated(file, line, tmp_path / "b", capsys), recursion.centralized())
    recursion = Recursion(quadratics, ring, Sgd, constant)
    near(simulated(file, "--algorithm sam --algorithm.rho 0.3", tmp_path / "c", capsys), recursion.sharp(0.3))


def read(capsys: pytest.CaptureFixture, file: Path, line: str) -> dict:
    assert main(["simulate", "--problem", str(file), "--json", *line.split()]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    return json.loads(out)


def test_a_schedule_is_constant_where_only_its_warmup_is_said(file, quadratics, tmp_path, capsys) -> None:
    line = "--algorithm dsgd --topology ring --lr.warmup 20"
    expected = Recursion(quadratics, ring, Sgd, lambda t: LR * min(1.0, 0.1 + 0.9 * t / 20)).dsgd()
    near(simulated(file, line, tmp_path / "out.npz", capsys), expected)
    said = read(capsys, file, f"{line} --lr {LR} --steps 30")
    assert said["lr_schedule"] == {"schedule": "constant", "warmup": 20, "warmup_from": 0.1, "last": 0.0}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_command_in_a_process_of_its_own(threads: int, file, quadratics, tmp_path, capsys) -> None:
    tracking = "--algorithm gradient-tracking --topology torus --topology.rows 2"
    accumulating = f"--algorithm dsgd --topology star {OPTIMIZERS['accum-adam'][0]}"
    line, expected = {
        1: (tracking, lambda: Recursion(quadratics, torus, Sgd, constant).tracking()),
        2: (accumulating, lambda: Recursion(quadratics, star, OPTIMIZERS["accum-adam"][1], constant).dsgd()),
    }[threads]
    line += f" --lr {LR} --steps {STEPS}"
    call = [sys.executable, "-m", "dissensus", "simulate", "--problem", file.name, "--json", *line.split()]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [*call, "--trajectory", str(tmp_path / "out.npz")],
        cwd=file.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    said = json.loads(done.stdout)
    assert said["problem"] == "problem.npz"
    with np.load(tmp_path / "out.npz") as held:
        near(held["x"], expected())
    assert said["parameters_hash"] == read(capsys, file, line)["parameters_hash"], "threads change nothing"
