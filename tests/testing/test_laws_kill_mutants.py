"""Deliberate faults: each must be refused by the constructor, a law, or the comparison with dense rounds.

A suite that cannot fail proves nothing. Every mutant says by which of the three it dies and with which words; that its
unharmed original lives is tested first.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from dissensus.testing import (
    check_mixing_matrix,
    check_report,
    check_rounds,
    check_topology,
    dense_report,
    dense_rounds,
)
from dissensus.theory import ClosedForm, MixingError, MixingMatrix, Moments, Topology, from_function, from_matrices

ORIGINALS: list[tuple[str, int, dict[str, Any]]] = [
    ("complete", 4, {}),
    ("ring", 6, {}),
    ("path", 5, {}),
    ("star", 5, {}),
    ("grid", 6, {}),
    ("torus", 12, {}),
    ("hypercube", 8, {}),
    ("exponential", 6, {}),
    ("one-peer-exponential", 6, {}),
    ("one-peer-hypercube", 8, {}),
    ("one-peer-ring", 6, {}),
    ("aer", 16, {"workers_per_node": 2}),
    ("ring-lattice", 9, {"k": 4}),
    ("directed-ring", 5, {}),
]


@pytest.mark.parametrize(("name", "n", "parameters"), ORIGINALS, ids=[o[0] for o in ORIGINALS])
def test_the_unharmed_original_lives(name: str, n: int, parameters: dict[str, Any]):
    rounds = dense_rounds(name, n, **parameters)
    check_topology(from_matrices(rounds))
    check_rounds(from_matrices(rounds), rounds)


def column_digraph() -> np.ndarray:
    """0 sends to 1 and 2, 1 to 2, 2 to 0; each divides evenly: columns sum to one, rows do not."""
    return np.array([[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])


def ring_with(n: int, own: float, left: float, right: float) -> np.ndarray:
    w = own * np.eye(n)
    for i in range(n):
        w[i, (i - 1) % n] += left
        w[i, (i + 1) % n] += right
    return w


def sum_off_by(much: float) -> np.ndarray:
    w = dense_rounds("ring", 5)[0]
    w[2, 3] += much
    return w


def hop(n: int, h: int) -> np.ndarray:
    return (np.eye(n) + np.roll(np.eye(n), h, axis=0)) / 2


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "push-sum weights transposed": (
        lambda: MixingMatrix.of(column_digraph().T, "column"),
        r"not column stochastic: column 2 sums to 1\.3333",
    ),
    "push-sum weights taken for doubly stochastic": (
        lambda: MixingMatrix.of(column_digraph()),
        r"not row stochastic: row 2 sums to 1\.3333.*promise='column'",
    ),
    "sum 1.001": (lambda: MixingMatrix.of(sum_off_by(1e-3)), r"row 2 sums to 1\.001, expected 1"),
    "uniform weights 1/(d+1) on a star": (
        lambda: MixingMatrix.of(np.array([[1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0], [1 / 2, 0, 1 / 2]])),
        r"not column stochastic: column 0 sums to 1\.3333.*promise='row'",
    ),
    "an edge written over another": (
        lambda: MixingMatrix.of(dense_rounds("ring", 5)[0] * (1 - np.eye(5)[1][:, None] * np.eye(5)[2][None, :])),
        r"row 1 sums to 0\.6666",
    ),
    "hops that share a factor with n": (
        lambda: from_matrices([hop(6, 2), hop(6, 4)]),
        r"disconnected over its period of 2.*2 groups",
    ),
    "a negative weight": (
        lambda: MixingMatrix.of(ring_with(4, 1.2, -0.1, -0.1)),
        r"row 0 has the negative weight -0\.1",
    ),
    "NaN": (lambda: MixingMatrix.of(sum_off_by(np.nan)), r"row 2 has the weight nan from worker 3"),
}


@pytest.mark.parametrize("mutant", REFUSED)
def test_refused_by_the_constructor(mutant: str):
    build, words = REFUSED[mutant]
    with pytest.raises(MixingError, match=words):
        build()


def swapped_slots(rounds: list[np.ndarray]) -> list[np.ndarray]:
    return [rounds[t ^ 1] for t in range(len(rounds))]


AER = {"workers_per_node": 2}
UNLIKE: dict[str, tuple[str, int, dict[str, Any], Callable[[list[np.ndarray]], list[np.ndarray]], str]] = {
    "directed exponential transposed": ("exponential", 6, {}, lambda r: [r[0].T], r"round 0: row 0 gives worker"),
    "one-peer exponential transposed": ("one-peer-exponential", 5, {}, lambda r: [w.T for w in r], "round 0: row 0"),
    "directed ring transposed": ("directed-ring", 5, {}, lambda r: [r[0].T], "round 0: row 0 gives worker 1"),
    "ring 1/2-1/4-1/4": ("ring", 6, {}, lambda r: [ring_with(6, 0.5, 0.25, 0.25)], "worker 0 the weight 0.5"),
    "ring made lazy": ("ring", 6, {}, lambda r: [(r[0] + np.eye(6)) / 2], "row 0 gives worker 0 the weight 0.6666"),
    "AER, slots of a round swapped": ("aer", 16, AER, swapped_slots, "round 0: row"),
    "AER one phase early": ("aer", 16, AER, lambda r: r[1:] + r[:1], "round 0: row"),
    "AER, rounds of distances reversed": ("aer", 16, AER, lambda r: r[4:] + r[2:4] + r[:2], "round 0: row"),
    "AER over workers, not nodes": ("aer", 16, AER, lambda r: dense_rounds("aer", 16), "round 0: row 4"),
    "round 0 reused": ("one-peer-ring", 6, {}, lambda r: [r[0], r[1], r[0], r[0]], "round 3: row"),
    "one-peer ring, phases exchanged": ("one-peer-ring", 6, {}, lambda r: r[::-1], "round 0: row 0"),
    "one-peer hypercube, bits in reverse": ("one-peer-hypercube", 8, {}, lambda r: r[::-1], "round 0: row 0"),
    "hop off by one": ("one-peer-exponential", 7, {}, lambda r: [hop(7, h) for h in (1, 2, 3)], "round 2: row"),
    "one hop too few": ("one-peer-exponential", 7, {}, lambda r: r[:2], "round 2: row"),
    "one hop too many": ("one-peer-exponential", 6, {}, lambda r: [*r, hop(6, 8)], "round 3: row"),
    "self weight of the static exponential": (
        "exponential",
        6,
        {},
        lambda r: [(4 * r[0] + np.eye(6)) / 5],
        "row 0 gives worker 0 the weight 0.4",
    ),
    "torus without the wrap": ("torus", 12, {}, lambda r: dense_rounds("grid", 12), "torus|round 0"),
    "torus of the other shape": ("torus", 12, {}, lambda r: dense_rounds("torus", 12, rows=2), "round 0: row 0"),
    "max-degree instead of Metropolis": (
        "grid",
        6,
        {},
        lambda r: [np.eye(6) - (np.diag((r[0] > 0).sum(axis=1)) - (r[0] > 0)) / 4],
        "round 0: row 0 gives worker 3 the weight 0.25, expected 0.333",
    ),
    "star with another centre": ("star", 5, {}, lambda r: [np.roll(np.roll(r[0], 1, 0), 1, 1)], "round 0: row 0"),
    "lattice of another k": ("ring-lattice", 9, {"k": 4}, lambda r: dense_rounds("ring-lattice", 9, k=6), "round 0"),
}


@pytest.mark.parametrize("mutant", UNLIKE)
def test_unlike_the_dense_rounds(mutant: str):
    name, n, parameters, mutate, words = UNLIKE[mutant]
    expected = dense_rounds(name, n, **parameters)
    faulty = from_matrices([np.asarray(w, dtype=float) for w in mutate(dense_rounds(name, n, **parameters))])
    with pytest.raises(AssertionError, match=words):
        check_rounds(faulty, expected)


class Faulty(MixingMatrix):
    """A round whose views may be made to lie."""


class HearsBackwards(Faulty):
    def row(self, i: int) -> list[tuple[int, float]]:
        return [(j, w) for j, k, w in self.triplets() if k == i]


class HearsItself(Faulty):
    def neighbours(self, i: int) -> list[int]:
        return [j for j, _ in self.row(i)]


class CountsLoops(Faulty):
    @cached_property
    def messages(self) -> int:
        return int(self.weights.nnz)


class MixesTransposed(Faulty):
    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return self.weights.T @ x


class AdaptedTheOtherWay(Faulty):
    def adapted(self, gamma: float) -> MixingMatrix:
        return super().adapted(1 - gamma)


class CallsItselfSymmetric(Faulty):
    @cached_property
    def is_symmetric(self) -> bool:
        return True


class Thawed(Faulty):
    __setattr__ = object.__setattr__


LYING_ROUNDS: dict[type[Faulty], str] = {
    HearsBackwards: r"row: row\(0\) is",
    HearsItself: r"neighbours: worker 0 hears \[.*\], not",
    CountsLoops: "messages: counted 5, but the round says 10",
    MixesTransposed: "W @ x equals the dense product: row",
    AdaptedTheOtherWay: r"adapted\(0\.25\): row 0 gives worker 0 the weight",
    CallsItselfSymmetric: "symmetry: is_symmetric is True",
    Thawed: "immutable: weights of Thawed can be set",
}


@pytest.mark.parametrize("fault", LYING_ROUNDS, ids=lambda f: f.__name__)
def test_a_lying_round_is_found(fault: type[Faulty]):
    with pytest.raises(AssertionError, match=LYING_ROUNDS[fault]):
        check_mixing_matrix(fault.of(dense_rounds("directed-ring", 5)[0]))


def test_a_sum_within_the_constructors_tolerance_is_found_by_the_law():
    with pytest.raises(AssertionError, match=r"row sums: row 2 sums to 1\.00000000005"):
        check_mixing_matrix(MixingMatrix.of(sum_off_by(5e-11)))


class StepsAhead(Topology):
    def __getitem__(self, t: int) -> MixingMatrix:
        return self.rounds[min(t, len(self.rounds) - 1)]


class MultipliesBackwards(Topology):
    def product(self, start: int = 0, steps: int | None = None) -> np.ndarray:
        p = np.eye(self.size)
        for t in range(start, start + (steps or len(self.rounds))):
            p = p @ self[t].dense()
        return p


class AdaptsOnlyTheFirst(Topology):
    def adapted(self, gamma: float) -> Topology:
        return Topology(self.name, self.size, (self.rounds[0].adapted(gamma), *self.rounds[1:]))


class AdaptsForgetfully(Topology):
    def adapted(self, gamma: float) -> Topology:
        return Topology(self.name, self.size, (self.rounds[0].adapted(gamma),), may_disconnect=True)


class WalksBackwards(Topology):
    def __iter__(self) -> Any:
        return iter(self.rounds[::-1])


LYING_SCHEDULES: dict[type[Topology], str] = {
    StepsAhead: "step 2 is step 0, one period on: row 0",
    MultipliesBackwards: "product over 2 steps: row 0",
    AdaptsOnlyTheFirst: r"round 1: adapted\(0\.25\) is \(1-gamma\) I \+ gamma W: row 0",
    AdaptsForgetfully: r"adapted\(0\.25\) has period 1, expected 2",
    WalksBackwards: "iteration does not walk through the rounds",
}


@pytest.mark.parametrize("fault", LYING_SCHEDULES, ids=lambda f: f.__name__)
def test_a_lying_schedule_is_found(fault: type[Topology]):
    rounds = tuple(MixingMatrix.of(w) for w in dense_rounds("one-peer-ring", 6))
    with pytest.raises(AssertionError, match=LYING_SCHEDULES[fault]):
        check_topology(fault("faulty", 6, rounds))


RING = from_matrices(dense_rounds("ring", 6), name="ring")
CLAIMS: dict[str, tuple[ClosedForm, str]] = {
    "gap of the lazy ring": (
        ClosedForm(spectral_gap=1 - np.cos(np.pi / 6) ** 2),
        r"spectral gap 0\.25, but the eigenvalues give 0\.3333",
    ),
    "contraction without the square root": (
        ClosedForm(contraction=4 / 9),
        r"contraction 0\.4444.*contracts by 0\.6666",
    ),
    "eigenvalues of a longer ring": (
        ClosedForm(eigenvalues=lambda: 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(6) / 7)),
        "eigenvalues in ascending order: row 3",
    ),
    "an eigenvalue forgotten": (ClosedForm(eigenvalues=lambda: np.ones(5)), "5 eigenvalues for 6 workers"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_wrong_closed_form_is_found(claim: str):
    form, words = CLAIMS[claim]
    with pytest.raises(AssertionError, match=words):
        check_topology(replace(RING, closed_form=form))


def test_a_draw_that_is_not_a_function_of_the_step_is_found():
    rounds = dense_rounds("one-peer-ring", 6)
    asked: list[int] = []

    def draw(t: int) -> np.ndarray:
        asked.append(t)
        return rounds[len(asked) > 8]

    with pytest.raises(AssertionError, match="step 7 asked again: row"):
        check_topology(from_function(draw, 6))


def test_wrong_moments_are_found():
    mean = RING[0].weights
    drawn = from_function(lambda t: RING[0], 6)
    check_topology(replace(drawn, moments=Moments(mean, mean @ mean)))
    with pytest.raises(AssertionError, match=r"is a covariance, yet it has the eigenvalue -"):
        check_topology(replace(drawn, moments=Moments(mean, mean @ mean @ mean)))
    with pytest.raises(AssertionError, match=r"E\[W\] row sums: row 0 sums to 1\.1"):
        check_topology(replace(drawn, moments=Moments(1.1 * mean, mean)))


EXACT = from_matrices(dense_rounds("one-peer-hypercube", 4), name="one-peer-hypercube")
FIGURES = dense_report(EXACT)


@pytest.mark.parametrize("key", FIGURES)
def test_every_wrong_figure_of_a_report_is_found(key: str):
    value = FIGURES[key]
    if isinstance(value, list):
        wrong: Any = [*value, 99]
    else:
        wrong = not value if isinstance(value, bool) else "?" if isinstance(value, str) else value + 1e-6
    check_report(EXACT, figures=FIGURES)
    with pytest.raises(AssertionError, match=rf"report\['{key}'\] is "):
        check_report(EXACT, figures={**FIGURES, key: wrong})
    with pytest.raises(AssertionError, match=rf"the report has no '{key}'"):
        check_report(EXACT, figures={k: v for k, v in FIGURES.items() if k != key})
