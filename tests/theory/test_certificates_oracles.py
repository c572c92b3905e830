"""Certificates against programs posed by other means: a performance-estimation toolbox, and runs that are drawn."""

from typing import Any

import numpy as np
import pytest

from dissensus.theory import from_matrices
from dissensus.theory.certificates import certify

OTHER = 2e-5
"""Relative; what the modelling layer and its default tolerances leave."""

quiet = pytest.mark.filterwarnings("ignore")
"""The toolbox and its modelling layer warn about themselves."""


def functions(pepit: Any, problem: Any, size: int, smoothness: float, convexity: float) -> tuple[list[Any], Any]:
    kind = pepit.functions.SmoothStronglyConvexFunction if convexity else pepit.functions.SmoothConvexFunction
    options = {"L": smoothness, **({"mu": convexity} if convexity else {})}
    local = [problem.declare_function(kind, reuse_gradient=True, **options) for _ in range(size)]
    total = local[0]
    for f in local[1:]:
        total = total + f
    return local, total


def by_toolbox(
    w: Any, *, order: str, steps: int, lr: float, convexity: float, criterion: str, band: float | None
) -> float:
    """DSGD of two or three workers from one point, smoothness, distance and heterogeneity 1."""
    pepit = pytest.importorskip("PEPit")
    import PEPit.functions  # noqa: F401

    problem = pepit.PEP()
    size = len(w)
    local, total = functions(pepit, problem, size, 1.0, convexity)
    optimum = total.stationary_point()
    start = problem.set_initial_point()
    problem.set_initial_condition((start - optimum) ** 2 <= 1)
    problem.set_initial_condition(
        sum((f.gradient(optimum) ** 2 for f in local[1:]), local[0].gradient(optimum) ** 2) / size <= 1
    )
    pairs: list[tuple[list[Any], list[Any]]] = []

    def mean(x: list[Any]) -> Any:
        return sum(x[1:], x[0]) / size

    def mix(x: list[Any], equal: bool) -> list[Any]:
        if band is None:
            return [sum((w[i][j] * x[j] for j in range(1, size)), w[i][0] * x[0]) for i in range(size)]
        if equal:
            return x
        middle = mean(x)
        received = [pepit.Point() for _ in range(size - 1)]
        received.append(-1 * sum(received[1:], received[0]))
        pairs.append(([v - middle for v in x], received))
        return [middle + v for v in received]

    x, trail = [start] * size, []
    for t in range(steps):
        trail.append(x)
        if order == "awc":
            g = [f.gradient(v) for f, v in zip(local, x, strict=True)]
            x = [m - lr * v for m, v in zip(mix(x, t == 0), g, strict=True)]
        else:
            x = mix([v - lr * f.gradient(v) for f, v in zip(local, x, strict=True)], False)
    if band is not None:
        inner = [
            [
                sum((band * a - b) * (d + band * c) for a, b, c, d in zip(*pairs[k], *pairs[m], strict=True))
                for m in range(len(pairs))
            ]
            for k in range(len(pairs))
        ]
        problem.add_psd_matrix(inner)
    if criterion == "objective":
        problem.set_performance_metric(sum((total(mean(v)) - total(optimum)) for v in trail) / size / steps)
    elif criterion == "last":
        problem.set_performance_metric((total(mean(x)) - total(optimum)) / size)
    else:
        problem.set_performance_metric(sum((v - mean(x)) ** 2 for v in x) / size)
    return problem.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0)


@quiet
@pytest.mark.parametrize(
    ("order", "steps", "convexity", "criterion"),
    [("awc", 2, 0.0, "objective"), ("atc", 2, 0.1, "last"), ("awc", 3, 0.0, "last"), ("atc", 2, 0.0, "consensus")],
)
def test_a_given_matrix_by_another_toolbox(order: str, steps: int, convexity: float, criterion: str) -> None:
    w = np.array([[0.8, 0.2], [0.2, 0.8]])
    expected = by_toolbox(w, order=order, steps=steps, lr=0.5, convexity=convexity, criterion=criterion, band=None)
    found = certify(
        topology=from_matrices(w), order=order, steps=steps, lr=0.5, convexity=convexity, criterion=criterion
    )
    assert found.certified
    assert found.value == pytest.approx(expected, rel=OTHER)


@quiet
@pytest.mark.parametrize(
    ("order", "steps", "criterion", "size"),
    [("awc", 3, "objective", 2), ("atc", 2, "last", 2), ("awc", 3, "consensus", 2), ("awc", 2, "consensus", 3)],
)
def test_a_class_of_matrices_by_another_toolbox(order: str, steps: int, criterion: str, size: int) -> None:
    shape = np.zeros((size, size))
    expected = by_toolbox(shape, order=order, steps=steps, lr=0.5, convexity=0.0, criterion=criterion, band=0.6)
    found = certify(contraction=0.6, order=order, steps=steps, lr=0.5, criterion=criterion)
    assert found.certified
    assert found.value == pytest.approx(expected, rel=OTHER)


# Drawn instances: plain numpy, quadratics and W of the class.


def drawn(rng: np.random.Generator, n: int, d: int, band: float, convexity: float) -> tuple[np.ndarray, ...]:
    """W, Hessians, slopes and start of an instance with smoothness, distance and heterogeneity 1."""
    basis, _ = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, n - 1))]))
    values = np.concatenate(
        [[1.0], band * np.where(rng.random(n - 1) < 0.5, rng.uniform(-1, 1, n - 1), rng.choice([-1, 1], n - 1))]
    )
    w = (basis * values) @ basis.T
    turn, _ = np.linalg.qr(rng.normal(size=(n, d, d)))
    spectrum = np.where(
        rng.random((n, d)) < 0.5, rng.uniform(convexity, 1, (n, d)), rng.choice([convexity, 1.0], (n, d))
    )
    hessians = np.einsum("nij,nj,nkj->nik", turn, spectrum, turn)
    slopes = rng.normal(size=(n, d))
    slopes -= slopes.mean(axis=0)
    slopes /= np.sqrt((slopes**2).sum() / n)
    start = rng.normal(size=d)
    return w, hessians, slopes, start / np.linalg.norm(start)


def measured(criterion: str, xs: np.ndarray, hessians: np.ndarray) -> float:
    mean = hessians.mean(axis=0)
    means = xs.mean(axis=1)
    if criterion == "objective":
        return float(np.mean([m @ mean @ m / 2 for m in means[:-1]]))
    if criterion == "last":
        return float(means[-1] @ mean @ means[-1] / 2)
    off = xs[-1] - means[-1] if criterion == "consensus" else xs[-1]
    return float((off**2).sum(axis=1).mean())


@pytest.mark.parametrize("method", ["awc", "atc", "cta", "gradient-tracking", "extra", "d2"])
@pytest.mark.parametrize("convexity", [0.0, 0.2])
def test_no_drawn_quadratic_exceeds_a_certificate(method: str, convexity: float) -> None:
    band, steps, lr = 0.6, 3, 0.7
    order = method if method in ("awc", "atc", "cta") else "awc"
    name = "dsgd" if order == method else method
    criteria = ("objective", "last", "distance", "consensus")
    bound = {}
    for criterion in criteria:
        found = certify(
            name, order=order, contraction=band, steps=steps, lr=lr, convexity=convexity, criterion=criterion
        )
        assert found.certified
        bound[criterion] = found.value
    rng, largest = np.random.default_rng(1), dict.fromkeys(criteria, 0.0)
    for _ in range(150):
        n, d = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        w, hessians, slopes, start = drawn(rng, n, d, band, convexity)

        def gradient(x: np.ndarray, a: np.ndarray = hessians, c: np.ndarray = slopes) -> np.ndarray:
            return np.einsum("nij,nj->ni", a, x) + c

        xs = [np.tile(start, (n, 1))]
        y = gradient(xs[0])
        for t in range(steps):
            x, g = xs[-1], gradient(xs[-1])
            if method == "awc":
                x = w @ x - lr * g
            elif method == "atc":
                x = w @ (x - lr * g)
            elif method == "cta":
                x = w @ x - lr * gradient(w @ x)
            elif method == "gradient-tracking":
                x = w @ x - lr * y
                y = w @ y + gradient(x) - g
            elif method == "extra":
                x = w @ x - lr * g if t == 0 else x + w @ x - (xs[-2] + w @ xs[-2]) / 2 - lr * (g - gradient(xs[-2]))
            else:
                x = w @ (x - lr * g) if t == 0 else w @ (2 * x - xs[-2] - lr * (g - gradient(xs[-2])))
            xs.append(x)
        for criterion in criteria:
            largest[criterion] = max(largest[criterion], measured(criterion, np.stack(xs), hessians))
    for criterion in criteria:
        assert largest[criterion] <= bound[criterion]
        assert largest[criterion] >= 0.05 * bound[criterion], criterion  # the draw comes close enough to mean something
