"""Quadratics as a value: what is refused and where, what is drawn, and the recursion on the engine."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.algorithms import AlgorithmError, algorithm
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.problem import Problem, own_optimizer, solve
from dissensus.theory import topology

N, D, T = 4, 3, 6


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    half = rng.normal(size=(N, D, D))
    usual = {
        "A": half @ half.transpose(0, 2, 1) + np.eye(D),
        "b": rng.normal(size=(N, D)),
        "x0": rng.normal(size=(N, D)),
        "noise": rng.normal(size=(T, N, D)),
    }
    return {key: value for key, value in (usual | changes).items() if value is not None}


def with_entry(name: str, at: tuple[int, ...], value: float) -> dict[str, Any]:
    changed = arrays()
    changed[name][at] = value
    return changed


def written(path: Path, **values: Any) -> Path:
    with path.open("wb") as stream:
        np.savez(stream, **values)
    return path


REFUSED = {
    "A has no workers": (arrays(A=np.eye(D)), r"A must have the shape \(n, d, d\).*got \(3, 3\)"),
    "A is not square": (arrays(A=np.zeros((N, D, D + 1))), r"one square matrix per worker, got \(4, 3, 4\)"),
    "A of nobody": (arrays(A=np.zeros((0, D, D))), r"A must have the shape"),
    "b of fewer workers": (arrays(b=np.zeros((N - 1, D))), r"b must have the shape \(n, d\) = \(4, 3\).*got \(3, 3\)"),
    "b of other length": (arrays(b=np.zeros((N, D + 1))), r"b must have the shape .*got \(4, 4\)"),
    "b without workers": (arrays(b=np.zeros(D)), r"b must have the shape .*got \(3,\)"),
    "x0 of other length": (arrays(x0=np.zeros(D + 1)), r"x0 must have the shape \(3,\) or \(4, 3\).*got \(4,\)"),
    "x0 of fewer workers": (arrays(x0=np.zeros((N - 1, D))), r"x0 must have the shape .*got \(3, 3\)"),
    "noise without steps": (arrays(noise=np.zeros((N, D))), r"noise must have the shape .*\(T, 4, 3\).*got \(4, 3\)"),
    "noise of other workers": (arrays(noise=np.zeros((T, N + 1, D))), r"noise must have the shape .*got \(6, 5, 3\)"),
    "nan in A": (with_entry("A", (2, 0, 1), np.nan), r"A\[2, 0, 1\] is nan: every number must be finite"),
    "inf in b": (with_entry("b", (3, 2), np.inf), r"b\[3, 2\] is inf"),
    "inf in x0": (with_entry("x0", (1, 1), -np.inf), r"x0\[1, 1\] is -inf"),
    "nan in noise": (with_entry("noise", (5, 0, 2), np.nan), r"noise\[5, 0, 2\] is nan"),
    "not symmetric": (
        with_entry("A", (2, 0, 1), 7.5),
        r"A of worker 2 is not symmetric: A\[2, 0, 1\] = 7.5, A\[2, 1, 0\] = .*\(A \+ A'\)/2",
    ),
    "complex": (arrays(b=np.zeros((N, D), dtype=complex)), r"b must be an array of real numbers, got complex128"),
    "text": (arrays(x0=np.array(["a", "b", "c"])), r"x0 must be an array of real numbers, got <U1"),
    "truth values": (arrays(x0=np.zeros(D, dtype=bool)), r"x0 must be an array of real numbers, got bool"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_in_python_and_in_a_file(case: str, tmp_path: Path) -> None:
    values, says = REFUSED[case]
    with pytest.raises(ConfigError, match=says) as in_python:
        Problem(**values)
    path = written(tmp_path / "p.npz", **values)
    with pytest.raises(ConfigError, match=says) as in_file:
        Problem.load(path)
    assert str(in_file.value) == f"{path}: {in_python.value}", "the file is named, and nothing else is different"
    assert "\n" not in str(in_file.value)


def test_workers_of_different_shapes_are_refused(tmp_path: Path) -> None:
    ragged = [np.eye(3).tolist(), np.eye(2).tolist()]
    with pytest.raises(ConfigError, match="got objects: all workers must have matrices and vectors of one shape"):
        Problem(**arrays(A=ragged))
    objects = np.empty(2, dtype=object)
    objects[:] = [np.eye(3), np.eye(2)]
    with pytest.raises(ConfigError, match="A holds objects, not numbers: all workers must"):
        Problem.load(written(tmp_path / "p.npz", **arrays(A=objects)))


def test_files_that_are_no_problem_are_refused(tmp_path: Path) -> None:
    absent = tmp_path / "problm.npz"
    written(tmp_path / "problem.npz", **arrays())
    with pytest.raises(ConfigError, match=r"no problem file '.*problm.npz'; did you mean 'problem.npz'\?"):
        Problem.load(absent)
    (tmp_path / "text.npz").write_text("A = 1")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"A": 1}))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "problem.npz").read_bytes()[:300])
    for name in ("text", "empty", "pickled", "cut"):
        with pytest.raises(ConfigError, match=rf"{name}.npz: not an .npz file; numpy.savez writes one, with A \(n, d"):
            Problem.load(tmp_path / f"{name}.npz")
    np.save(tmp_path / "single.npy", np.eye(3))
    with pytest.raises(ConfigError, match=r"single.npy: a single array, not an .npz"):
        Problem.load(tmp_path / "single.npy")
    with pytest.raises(ConfigError, match=r"cannot read the problem file .*: Is a directory"):
        Problem.load(tmp_path)


def test_an_archive_that_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "p.npz", **arrays())
    held = bytearray(path.read_bytes())
    at = held.index(arrays()["b"].tobytes())
    held[at : at + 8] = bytes(8)
    path.write_bytes(held)
    with pytest.raises(ConfigError, match=r"p.npz: the array 'b' cannot be read: .*CRC"):
        Problem.load(path)


@pytest.mark.parametrize(
    ("renamed", "says"),
    [
        ({"x0": "x_0"}, "there is no array 'x0'; did you mean 'x_0'?"),
        ({"b": "q"}, "there is no array 'b'; it holds q"),
        ({"b": None}, "there is no array 'b'; it needs A (n, d, d), b (n, d)"),
        ({"noise": "noises"}, "there is no use for an array 'noises'; did you mean 'noise'?"),
        ({"noise": "Noise"}, "there is no use for an array 'Noise'; did you mean 'noise'?"),
    ],
)
def test_arrays_of_other_names(renamed: dict[str, str | None], says: str, tmp_path: Path) -> None:
    values = {renamed.get(key, key): value for key, value in arrays().items()}
    path = written(tmp_path / "p.npz", **{key: value for key, value in values.items() if key})
    with pytest.raises(ConfigError) as refusal:
        Problem.load(path)
    assert str(refusal.value).startswith(f"{path}: {says}")


def test_a_problem_comes_back_to_the_bit(tmp_path: Path) -> None:
    before = Problem(**arrays())
    before.save(tmp_path / "p.npz")
    after = Problem.load(tmp_path / "p.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"], "no draft is left behind"
    for name in ("A", "b", "x0", "noise"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    written(tmp_path / "more.npz", **arrays(), W=np.eye(N), seed=3)
    assert Problem.load(tmp_path / "more.npz").size == N, "arrays of other names are left alone"
    Problem(**arrays(noise=None)).save(tmp_path / "quiet.npz")
    assert Problem.load(tmp_path / "quiet.npz").noise is None


def test_a_common_start_is_everybodys_and_arguments_stay_as_they_are() -> None:
    given = arrays(x0=np.arange(3))
    problem = Problem(**given)
    np.testing.assert_array_equal(problem.x0, np.tile([0.0, 1.0, 2.0], (N, 1)))
    problem.A[0] = 0.0
    assert given["A"][0].any()


def test_rounding_is_no_asymmetry() -> None:
    rng = np.random.default_rng(0)
    frames = np.linalg.qr(rng.normal(size=(N, 40, 40)))[0]
    wide = (frames * rng.uniform(0.1, 1.0, 40)) @ frames.transpose(0, 2, 1)
    assert (wide != wide.transpose(0, 2, 1)).any()
    Problem(wide, np.zeros((N, 40)), np.zeros(40))
    narrow = wide.astype(np.float32)
    narrow[:, 0, 1] = narrow[:, 1, 0] * (1 + np.finfo(np.float32).eps)
    Problem(narrow, np.zeros((N, 40)), np.zeros(40))
    with pytest.raises(ConfigError, match="not symmetric"):
        Problem(narrow.astype(np.float64), np.zeros((N, 40)), np.zeros(40))


def test_losses_gradients_and_optimum_against_their_definition() -> None:
    problem = Problem(**arrays())
    given, x = arrays(), np.random.default_rng(1).normal(size=(N, D))
    for i in range(N):
        a, b = given["A"][i], given["b"][i]
        assert problem.losses(x)[i] == pytest.approx(0.5 * x[i] @ a @ x[i] - b @ x[i], rel=1e-13)
        assert problem.losses(x[0])[i] == pytest.approx(0.5 * x[0] @ a @ x[0] - b @ x[0], rel=1e-13)
        np.testing.assert_allclose(problem.gradient(2, x)[i], a @ x[i] - b + given["noise"][2, i], rtol=1e-13)
    assert problem.loss(x[0]) == pytest.approx(problem.losses(x[0]).mean())
    assert problem.optimum is not None
    exact = Problem(**arrays(noise=None))
    np.testing.assert_allclose(exact.gradient(0, problem.optimum).mean(axis=0), 0.0, atol=1e-14)


@pytest.mark.parametrize("eigenvalues", [[1.0, 0.0, 2.0], [1.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
def test_without_a_definite_mean_there_is_no_optimum(eigenvalues: list[float]) -> None:
    flat = np.tile(np.diag(eigenvalues), (N, 1, 1))
    assert Problem(**arrays(A=flat)).optimum is None


@pytest.mark.parametrize(("zeta", "kappa"), [(0.0, 1.0), (0.0, 50.0), (0.5, 10.0), (3.0, 1e4)])
def test_a_drawn_problem_is_what_was_asked_for(zeta: float, kappa: float) -> None:
    problem = Problem.draw(6, 5, seed=3, heterogeneity=zeta, conditioning=kappa)
    spectra = np.linalg.eigvalsh(problem.A)
    assert spectra.min() >= (1 - 1e-9) / kappa
    assert spectra.max() <= 1 + 1e-12
    assert problem.optimum is not None
    at = problem.gradient(0, problem.optimum)
    assert np.mean((at**2).sum(axis=1)) == pytest.approx(zeta**2, rel=1e-9, abs=1e-24)
    np.testing.assert_allclose(at.mean(axis=0), 0.0, atol=1e-12)
    assert (problem.x0 == problem.x0[0]).all(), "all workers start equal"
    if zeta == 0.0:
        assert (problem.A[0] == problem.A).all()
        np.testing.assert_allclose(spectra[0, 0], 1 / kappa, rtol=1e-9)
    else:
        assert abs(problem.A[0] - problem.A[1]).max() > 0.01


def test_a_drawn_problem_is_a_function_of_its_seed() -> None:
    one, same = (Problem.draw(3, 4, seed=1, heterogeneity=1.0, noise=0.5, steps=50) for _ in range(2))
    longer = Problem.draw(3, 4, seed=1, heterogeneity=1.0, noise=0.5, steps=80)
    louder = Problem.draw(3, 4, seed=1, heterogeneity=1.0, noise=1.0, steps=50)
    other = Problem.draw(3, 4, seed=2, heterogeneity=1.0, noise=0.5, steps=50)
    for name in ("A", "b", "x0", "noise"):
        np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
        assert (getattr(one, name) != getattr(other, name)).any()
    assert one.noise is not None
    assert longer.noise is not None
    np.testing.assert_array_equal(longer.noise[:50], one.noise)
    np.testing.assert_array_equal(louder.noise, 2 * one.noise)
    np.testing.assert_array_equal(louder.A, one.A)
    # 600 draws: the mean square of 600 unit normals lies within 5 standard errors of 1
    assert abs(np.mean(one.noise**2) / 0.25 - 1) < 5 * np.sqrt(2 / one.noise.size)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"d": 0}, "d must be at least 1, got 0"),
        ({"heterogeneity": -1.0}, "heterogeneity must be at least 0, got -1.0"),
        ({"heterogeneity": float("nan")}, "heterogeneity must be at least 0, got nan"),
        ({"noise": -0.1}, "noise must be at least 0, got -0.1"),
        ({"noise": 0.1}, "noise = 0.1 needs steps"),
        ({"conditioning": 0.5}, "conditioning is a condition number: at least 1, got 0.5"),
        ({"conditioning": float("inf")}, "at least 1, got inf"),
        ({"n": 1, "heterogeneity": 1.0}, "needs at least 2 workers"),
    ],
)
def test_drawings_that_cannot_be(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Problem.draw(**({"n": 4, "d": 3} | wrong))


def test_a_solution_is_the_recursion_and_leaves_the_problem_alone() -> None:
    problem, ring = Problem(**arrays()), topology("ring", N)
    before = {name: getattr(problem, name).copy() for name in ("A", "b", "x0", "noise")}
    found = solve(problem, algorithm=algorithm("dsgd"), topology=ring, lr=lambda t: 0.1 / (1 + t), steps=T)
    x = problem.x0
    for t in range(T):
        np.testing.assert_allclose(found[t], x, rtol=1e-13)
        x = ring[0].dense() @ x - 0.1 / (1 + t) * problem.gradient(t, x)
    np.testing.assert_allclose(found[T], x, rtol=1e-13)
    assert found.shape == (T + 1, N, D)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(problem, name), value)


def test_the_two_routes_agree_and_single_precision_is_near() -> None:
    problem, ring = Problem(**arrays()), topology("ring", N)
    run = partial(solve, problem, algorithm=algorithm("gradient-tracking"), topology=ring, lr=0.05, steps=T)
    double, single = run(), run(dtype="float32")
    np.testing.assert_allclose(run(gradients="loop"), double, rtol=1e-13)
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    np.testing.assert_array_equal(run(dtype=torch.float32), single)
    # a few steps of a few products each: some tens of units of rounding at the size of the largest number
    assert abs(single - double).max() < 100 * np.finfo(np.float32).eps * abs(double).max()


def test_no_steps_leave_the_start() -> None:
    found = solve(Problem(**arrays()), algorithm=algorithm("dsgd"), topology=topology("ring", N), lr=0.1, steps=0)
    np.testing.assert_array_equal(found, arrays()["x0"][None])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": T + 1}, "noise holds 6 steps, but 7 are asked for"),
        ({"steps": -1}, "steps must be at least 0, got -1"),
        ({"topology": topology("ring", 5)}, "the problem is one of 4 workers, but topology 'ring' has 5"),
        ({"dtype": "float16"}, "dtype must be float64 or float32, got 'float16'"),
        ({"dtype": torch.bfloat16}, "dtype must be float64 or float32, got torch.bfloat16"),
    ],
)
def test_solutions_that_cannot_be(change: dict[str, Any], says: str) -> None:
    usual = {"algorithm": algorithm("dsgd"), "topology": topology("ring", N), "lr": 0.1, "steps": T}
    with pytest.raises(ConfigError, match=says):
        solve(Problem(**arrays()), **(usual | change))


def test_a_run_that_leaves_the_finite_names_worker_and_step() -> None:
    problem = Problem(**arrays(noise=None))
    with pytest.raises(AlgorithmError, match=r"worker \d has .* at step \d+"):
        solve(problem, algorithm=algorithm("dsgd"), topology=topology("ring", N), lr=1e6, steps=500)


def test_an_algorithm_may_have_an_optimizer_of_its_own() -> None:
    dsgd: Any = type(algorithm("dsgd"))

    class WithAdam(dsgd):
        optimizer = "adam"

    problem, ring = Problem(**arrays()), topology("ring", N)
    assert own_optimizer(algorithm("dsgd")) == "sgd"
    assert own_optimizer(WithAdam()) == "adam"
    adam = partial(torch.optim.Adam, lr=0.1)
    own = solve(problem, algorithm=WithAdam(), topology=ring, lr=0.1, steps=T)
    named = solve(problem, algorithm=algorithm("dsgd"), topology=ring, lr=0.1, steps=T, optimizer=adam)
    np.testing.assert_array_equal(own, named)
