r"""Laws that every mixing matrix and every topology obeys, as assertions to call on your own.

With $W$ a round (row = receiver) and $P$ the product over a period:

- row stochastic: $W\mathbf 1 = \mathbf 1$, consensus is kept; column stochastic: $\mathbf 1^\top W = \mathbf 1^\top$,
  sums are kept; doubly: both, so the mean is kept;
- $W_\gamma = (1-\gamma) I + \gamma W$ round by round;
- $\|P - J\| \le \prod_t \|W_t - J\|$ for doubly stochastic rounds;
- step t and step t + period are one round, and a drawn step is a pure function of t.

An assertion that fails names the law, the round, the row and the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dissensus.testing.dense_report import dense_report, strongly_connected
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.topology import Topology

TOLERANCE = 1e-12
"""How far a sum of weights, or a weight, may lie from what it must be."""

_GAMMAS = (0.25, 1.0)


def check_mixing_matrix(w: MixingMatrix, *, where: str = "", tolerance: float = TOLERANCE) -> None:
    """Asserts every law of one round: what it promises, and that all its views tell of the same weights."""
    say = f"{where}: " if where else ""
    a, n = w.dense(), w.size
    assert a.shape == (n, n), f"{say}shape: dense() has shape {a.shape}, but size is {n}"
    for i in range(n):
        assert np.isfinite(a[i]).all(), f"{say}finite: row {i} has the weight {a[i][~np.isfinite(a[i])][0]}"
        assert w.signed or a[i].min() >= 0, f"{say}non-negative: row {i} has the weight {a[i].min():.6g}"
    if w.promise in ("doubly", "row"):
        _check_sums(a.sum(axis=1), f"{say}row sums", "row", tolerance)
        _close(w @ np.full(n, 3.0), np.full(n, 3.0), f"{say}consensus is kept", 3 * tolerance)
    if w.promise in ("doubly", "column"):
        _check_sums(a.sum(axis=0), f"{say}column sums", "column", tolerance)
        x = np.sin(np.arange(1.0, n + 1))
        total, before = float(np.sum(w @ x)), float(np.sum(x))
        assert abs(total - before) <= n * tolerance, f"{say}the sum is kept: it was {before:.12g} and is {total:.12g}"
    _check_views(w, a, say)
    _check_frozen(w, ("weights", "promise"), say)
    for gamma in _GAMMAS:
        _equal(w.adapted(gamma).dense(), (1 - gamma) * np.eye(n) + gamma * a, f"{say}adapted({gamma:g})", tolerance)


def check_topology(topology: Topology, *, steps: int = 8, tolerance: float = TOLERANCE, report: bool = False) -> None:
    """Asserts every law of a schedule: over its period, or over the first `steps` steps when it is drawn.

    With `report=True` the figures of its report are recomputed as well (`check_report`; periodic schedules only).
    """
    name, n, period = topology.name, topology.size, topology.period
    rounds = [topology[t] for t in range(period or steps)]
    for t, w in enumerate(rounds):
        assert w.size == n, f"{name}, round {t}: size: it has {w.size} workers, the topology {n}"
        check_mixing_matrix(w, where=f"{name}, round {t}", tolerance=tolerance)
    _check_frozen(topology, ("size", "rounds"), f"{name}: ")
    _check_promise(topology, rounds)
    _check_steps(topology, rounds)
    dense = [w.dense() for w in rounds]
    if period is not None and not topology.may_disconnect:
        assert strongly_connected(dense), f"{name}: connected: some worker is never heard by another over the period"
    for gamma in _GAMMAS:
        adapted = topology.adapted(gamma)
        assert adapted.period == period, f"{name}: adapted({gamma:g}) has period {adapted.period}, expected {period}"
        for t, a in enumerate(dense):
            _equal(
                adapted[t].dense(),
                (1 - gamma) * np.eye(n) + gamma * a,
                f"{name}, round {t}: adapted({gamma:g}) is (1-gamma) I + gamma W",
                tolerance,
            )
    p = np.eye(n)
    for a in dense:
        p = a @ p
    _equal(topology.product(0, len(dense)), p, f"{name}: product over {len(dense)} steps", n * tolerance)
    if topology.promise == "doubly":
        j = np.full((n, n), 1 / n)
        bound = float(np.prod([np.linalg.norm(a - j, 2) for a in dense]))
        found = float(np.linalg.norm(p - j, 2))
        assert found <= bound + n * tolerance, (
            f"{name}: contraction of the product is {found:.12g}, above the product {bound:.12g} of the contractions"
        )
    _check_closed_form(topology, dense)
    _check_moments(topology, tolerance)
    if report:
        check_report(topology)


def check_rounds(topology: Topology, expected: Sequence[np.ndarray], *, tolerance: float = TOLERANCE) -> None:
    """Asserts that a periodic topology consists of exactly these dense rounds, in this order and phase."""
    period = topology.period
    assert period is not None, f"{topology.name}: expected a period of {len(expected)}, but it is drawn at every step"
    for t in range(max(period, len(expected))):
        _equal(
            topology[t].dense(),
            expected[t % len(expected)],
            f"{topology.name}, n={topology.size}, round {t}",
            tolerance,
        )
    longest, shortest = max(period, len(expected)), min(period, len(expected))
    assert longest % shortest == 0, f"{topology.name}: period {period}, expected {len(expected)}"


def check_report(topology: Topology, *, memory: float = 0.9, figures: dict[str, Any] | None = None) -> None:
    """Asserts that every figure of the report equals its recomputation by dense numpy.

    `figures` are those of `dissensus.theory.analysis.report(topology, memory=memory).to_dict()` unless given.
    """
    if figures is None:
        from dissensus.theory.analysis import report

        figures = report(topology, memory=memory).to_dict()
    for key, expected in dense_report(topology, memory).items():
        assert key in figures, f"{topology.name}: the report has no {key!r}"
        found = figures[key]
        say = f"{topology.name}, n={topology.size}: report[{key!r}] is {found!r}, recomputed {expected!r}"
        if isinstance(expected, float):
            # eigenvalues are good to n eps; 1 - rho ** (1/period) magnifies the rounding of an exact average
            slack = 1e-9 if key != "spectral_gap" else max(1e-9, 1e-14 ** (1 / (topology.period or 1)))
            assert isinstance(found, float | int), say
            assert abs(found - expected) <= slack * max(1.0, abs(expected)), say
        else:
            assert found == expected, say


def _check_sums(sums: np.ndarray, law: str, word: str, tolerance: float) -> None:
    where = int(np.argmax(np.abs(sums - 1)))
    assert abs(sums[where] - 1) <= tolerance, f"{law}: {word} {where} sums to {sums[where]:.15g}, expected 1"


def _equal(found: np.ndarray, expected: np.ndarray, law: str, tolerance: float) -> None:
    assert found.shape == expected.shape, f"{law}: shape {found.shape}, expected {expected.shape}"
    off = np.abs(found - expected)
    i, j = np.unravel_index(int(np.argmax(off)), off.shape)
    assert off[i, j] <= tolerance, (
        f"{law}: row {i} gives worker {j} the weight {found[i, j]:.12g}, expected {expected[i, j]:.12g}"
    )


def _close(found: np.ndarray, expected: np.ndarray, law: str, tolerance: float) -> None:
    i = int(np.argmax(np.abs(found - expected)))
    assert abs(found[i] - expected[i]) <= tolerance, (
        f"{law}: row {i} holds {found[i]:.15g}, expected {expected[i]:.15g}"
    )


def _check_views(w: MixingMatrix, a: np.ndarray, say: str) -> None:
    n = w.size
    for i in range(n):
        expected = {j: a[i, j] for j in range(n) if a[i, j] != 0}
        assert dict(w.row(i)) == expected, f"{say}row: row({i}) is {w.row(i)}, the weights are {expected}"
        heard = [j for j in range(n) if j != i and a[i, j] != 0]
        assert sorted(w.neighbours(i)) == heard, f"{say}neighbours: worker {i} hears {heard}, not {w.neighbours(i)}"
    triplets = sorted((i, j, a[i, j]) for i in range(n) for j in range(n) if a[i, j] != 0)
    assert sorted(w.triplets()) == triplets, f"{say}triplets: they are not the non-zero weights"
    messages = sum(1 for i, j, _ in triplets if i != j)
    assert w.messages == messages, f"{say}messages: counted {messages}, but the round says {w.messages}"
    symmetric = bool(np.abs(a - a.T).max() <= 1e-13)
    assert w.is_symmetric == symmetric, f"{say}symmetry: is_symmetric is {w.is_symmetric}"
    x = np.cos(np.arange(2.0 * n)).reshape(n, 2)
    _close((w @ x).ravel(), (a @ x).ravel(), f"{say}W @ x equals the dense product", n * 1e-14)


def _check_frozen(value: Any, names: tuple[str, ...], say: str) -> None:
    for name in names:
        try:
            setattr(value, name, getattr(value, name))
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"{say}immutable: {name} of {type(value).__name__} can be set")


def _check_promise(topology: Topology, rounds: list[MixingMatrix]) -> None:
    for t, w in enumerate(rounds):
        keeps = {"row": w.is_row_stochastic, "column": w.is_column_stochastic}
        keeps["doubly"] = keeps["row"] and keeps["column"]
        assert keeps[topology.promise], f"{topology.name}, round {t}: promise: it is not {topology.promise} stochastic"


def _check_steps(topology: Topology, rounds: list[MixingMatrix]) -> None:
    name, period = topology.name, topology.period
    for t in reversed(range(len(rounds))):
        again = t if period is None else t + period
        law = f"{name}: step {again} {'asked again' if period is None else f'is step {t}, one period on'}"
        _equal(topology[again].dense(), rounds[t].dense(), law, 0.0)
    if period is not None:
        assert [w.dense().tolist() for w in topology] == [w.dense().tolist() for w in rounds], (
            f"{name}: iteration does not walk through the rounds of the period"
        )


def _check_closed_form(topology: Topology, dense: list[np.ndarray]) -> None:
    known, n, name = topology.closed_form, topology.size, topology.name
    j, p = np.full((n, n), 1 / n), np.eye(n)
    for a in dense:
        p = a @ p
    if known.contraction is not None:
        found = float(np.linalg.norm(p - j, 2))
        assert abs(found - known.contraction) <= 1e-10, (
            f"{name}: closed form: contraction {known.contraction:.12g}, but the product contracts by {found:.12g}"
        )
    if known.eigenvalues is not None:
        exact, numeric = np.sort(known.eigenvalues()), np.linalg.eigvalsh(dense[0])
        assert exact.shape == numeric.shape, f"{name}: closed form: {exact.size} eigenvalues for {n} workers"
        _close(exact, numeric, f"{name}: closed form: eigenvalues in ascending order", 1e-10)
    if known.spectral_gap is not None:
        assert topology.is_static, f"{name}: closed form: a spectral gap is of one static round, but period is not 1"
        numeric = np.linalg.eigvalsh(dense[0]) if topology.is_symmetric else np.linalg.eigvals(dense[0])
        gap = 1 - float(np.sort(np.abs(numeric))[-2]) if n > 1 else 1.0
        assert abs(gap - known.spectral_gap) <= 1e-10, (
            f"{name}, n={n}: closed form: spectral gap {known.spectral_gap:.12g}, but the eigenvalues give {gap:.12g}"
        )


def _check_moments(topology: Topology, tolerance: float) -> None:
    if topology.moments is None:
        return
    n, name = topology.size, topology.name
    mean, raw = topology.moments.mean.toarray(), topology.moments.square
    square = raw if isinstance(raw, np.ndarray) else raw.toarray()
    if topology.promise in ("doubly", "row"):
        _check_sums(mean.sum(axis=1), f"{name}: E[W] row sums", "row", n * tolerance)
    if topology.promise in ("doubly", "column"):
        _check_sums(mean.sum(axis=0), f"{name}: E[W] column sums", "column", n * tolerance)
    if topology.promise == "doubly":
        _check_sums(square.sum(axis=1), f"{name}: E[W'W] row sums", "row", n * tolerance)
    _equal(square, square.T, f"{name}: E[W'W] is symmetric", n * tolerance)
    least = float(np.linalg.eigvalsh(square - mean.T @ mean).min())
    assert least >= -1e-10, f"{name}: E[W'W] - E[W]'E[W] is a covariance, yet it has the eigenvalue {least:.6g}"
