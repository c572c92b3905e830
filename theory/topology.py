r"""A topology: who mixes with whom at which step, an immutable schedule of mixing rounds over n workers.

A schedule is periodic, `W_0, …, W_{P-1}, W_0, …` (a static graph has P = 1), or drawn anew at every step from a seed
(random gossip, MATCHA, dynamic EquiTopo). Both are indexed by the step alone, `topology[t]`, so that every worker, on
whatever machine, knows the same round without talking about it, and a resumed run finds its phase by itself.

A topology knows what is known of it in closed form (`closed_form`), for a drawn schedule the exact moments
`E[W]` and `E[WᵀW]` (`moments`), and how many workers share a machine (`workers_per_node`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix, Stochasticity, check_gamma


@dataclass(frozen=True)
class ClosedForm:
    """What is known of a topology without computing it, each with its source. `None` where it is not known."""

    spectral_gap: float | None = None
    """1 - (second largest eigenvalue modulus) of the round of a static symmetric topology, free of cancellation."""
    contraction: float | None = None
    """The 2-norm of the product over a period minus averaging."""
    eigenvalues: Callable[[], np.ndarray] | None = None
    """All n eigenvalues of a static symmetric round, in any order."""
    source: str = ""


@dataclass(frozen=True)
class Moments:
    """The exact first and second moment of a round that is drawn anew, independently, at every step."""

    mean: sp.csr_array
    """E[W]."""
    square: np.ndarray | sp.csr_array
    """E[WᵀW]."""


@dataclass(frozen=True, eq=False)
class Topology:
    """An immutable schedule of mixing rounds. Build one with `dissensus.topology(name, n, ...)`."""

    name: str
    size: int
    rounds: tuple[MixingMatrix, ...] = ()
    """The rounds of one period; empty for a schedule that is drawn anew at every step."""
    draw: Callable[[int], MixingMatrix] | None = None
    """For a drawn schedule: the round of step t, a pure function of t."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    closed_form: ClosedForm = field(default_factory=ClosedForm)
    moments: Moments | None = None
    workers_per_node: int = 1
    """Worker i lives on machine i // workers_per_node; only the count of messages depends on it."""
    may_disconnect: bool = False
    """Whether workers that never hear of each other over a period are meant (gamma = 0, partitions)."""

    def __post_init__(self) -> None:
        if (self.draw is None) == (len(self.rounds) == 0):
            raise MixingError(f"topology {self.name!r} needs either the rounds of a period or a function of the step")
        if self.size < 1:
            raise MixingError(f"topology {self.name!r} needs at least one worker, got n={self.size}")
        for t, w in enumerate(self.rounds):
            if w.size != self.size:
                raise MixingError(
                    f"topology {self.name!r}: round {t} has {w.size} workers, but the topology has {self.size}"
                )
        kinds = [w.promise for w in self.rounds]
        if "row" in kinds and "column" in kinds:
            raise MixingError(
                f"topology {self.name!r}: round {kinds.index('row')} is only row and round {kinds.index('column')} "
                "only column stochastic; together they keep neither consensus nor sums: use one kind over the period"
            )
        if self.rounds and not self.may_disconnect:
            _check_connected(self)

    @property
    def period(self) -> int | None:
        """The number of rounds after which the schedule repeats, or `None` if it is drawn anew at every step."""
        return len(self.rounds) or None

    def __getitem__(self, t: int) -> MixingMatrix:
        if isinstance(t, bool) or not isinstance(t, int | np.integer):
            raise MixingError(f"a step is a whole number, got {t!r}")
        if t < 0:
            raise MixingError(f"a step is counted from 0, got {t}")
        if self.draw is None:
            return self.rounds[t % len(self.rounds)]
        w = self.draw(t)
        if w.size != self.size:
            raise MixingError(f"topology {self.name!r}: step {t} has {w.size} workers, expected {self.size}")
        return w

    def __iter__(self) -> Iterator[MixingMatrix]:
        """The rounds of one period."""
        if not self.rounds:
            raise MixingError(f"topology {self.name!r} is drawn anew at every step: it has no period to walk through")
        return iter(self.rounds)

    @cached_property
    def promise(self) -> Stochasticity:
        """What holds of every round: `doubly`, `row` or `column` stochastic."""
        for w in self.rounds or (self[0],):
            if w.promise != "doubly":
                return w.promise
        return "doubly"

    @cached_property
    def is_static(self) -> bool:
        """Whether every step mixes with one and the same matrix."""
        return self.period == 1

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every round of the period (of the first 8 steps, if drawn) is symmetric."""
        return all(w.is_symmetric for w in (self.rounds or [self[t] for t in range(8)]))

    def product(self, start: int = 0, steps: int | None = None) -> np.ndarray:
        """The dense product W_{start+steps-1} ··· W_{start} (one period unless told otherwise)."""
        p = np.eye(self.size)
        for t in range(start, start + (steps if steps is not None else self.period or 1)):
            p = self[t] @ p
        return p

    def adapted(self, gamma: float) -> Topology:
        r"""Adaptive consensus on every round, $W_\gamma = (1-\gamma) I + \gamma W$."""
        check_gamma(gamma)
        draw, name = self.draw, f"{self.name}(gamma={gamma:g})"
        known, base = self.closed_form, ClosedForm()
        if known.eigenvalues is not None:
            eigenvalues = known.eigenvalues
            base = ClosedForm(eigenvalues=lambda: 1.0 - gamma * (1.0 - eigenvalues()), source=known.source)
        return replace(
            self,
            name=name,
            rounds=tuple(w.adapted(gamma) for w in self.rounds),
            draw=None if draw is None else lambda t: draw(t).adapted(gamma),
            parameters={**self.parameters, "gamma": gamma},
            closed_form=base,
            moments=None if self.moments is None else _adapted_moments(self.moments, gamma, self.size),
            may_disconnect=self.may_disconnect or gamma == 0,
        )

    def __repr__(self) -> str:
        schedule = f"period {self.period}" if self.period else "drawn at every step"
        return f"Topology({self.name!r}, n={self.size}, {schedule})"


def from_matrices(
    matrices: MixingMatrix | np.ndarray | sp.sparray | Sequence[Any],
    *,
    name: str = "custom",
    promise: Stochasticity = "doubly",
    signed: bool = False,
    workers_per_node: int = 1,
    may_disconnect: bool = False,
) -> Topology:
    """A topology from one matrix, or from the list of the matrices of one period."""
    if isinstance(matrices, MixingMatrix | sp.sparray | sp.spmatrix) or _is_one_matrix(matrices):
        matrices = [matrices]
    if isinstance(matrices, np.ndarray) and matrices.ndim != 3:
        raise MixingError(f"expected one n x n matrix or a list of them, got an array of shape {matrices.shape}")
    rounds: list[MixingMatrix] = []
    for t, m in enumerate(matrices):
        try:
            rounds.append(m if isinstance(m, MixingMatrix) else MixingMatrix.of(m, promise, signed=signed))
        except MixingError as error:
            raise MixingError(f"round {t}: {error}") from None
    if not rounds:
        raise MixingError("a topology needs at least one matrix, got an empty list")
    return Topology(
        name, rounds[0].size, tuple(rounds), workers_per_node=workers_per_node, may_disconnect=may_disconnect
    )


def _is_one_matrix(matrices: Any) -> bool:
    """Whether this is one array (nested lists count) and not a list of them, which may be ragged."""
    if isinstance(matrices, np.ndarray):
        return matrices.ndim == 2
    if not isinstance(matrices, Sequence) or isinstance(matrices, str):
        raise MixingError(f"expected one n x n matrix or a list of them, got {matrices!r}")
    return bool(matrices) and all(isinstance(row, Sequence) and np.ndim(row[:1]) == 1 for row in matrices)


def from_function(
    round_of: Callable[[int], Any], n: int, *, name: str = "custom", promise: Stochasticity = "doubly"
) -> Topology:
    """A topology from any function of the step; each round is checked when it is first asked for."""

    def draw(t: int) -> MixingMatrix:
        m = round_of(t)
        try:
            return m if isinstance(m, MixingMatrix) else MixingMatrix.of(m, promise)
        except MixingError as error:
            raise MixingError(f"step {t}: {error}") from None

    return Topology(name, n, draw=draw)


def _check_connected(topology: Topology) -> None:
    """Refuses a period over which the news of some worker never reaches some other."""
    first, *rest = topology.rounds
    union: Any = sum((abs(w.weights) for w in rest), abs(first.weights))
    count, label = connected_components(union, directed=True, connection="strong")
    if count == 1:
        return
    links = union - sp.diags_array(union.diagonal())
    degree = np.asarray(links.sum(axis=0)).ravel() + np.asarray(links.sum(axis=1)).ravel()
    isolated = np.flatnonzero(degree == 0)
    if len(isolated):
        raise MixingError(
            f"topology {topology.name!r}: worker {isolated[0]} is isolated: it has no neighbour in any round"
        )
    other = int(np.flatnonzero(label != label[0])[0])
    raise MixingError(
        f"topology {topology.name!r} is disconnected over its period of {topology.period}: the workers fall into "
        f"{count} groups without a path both ways (worker 0 and worker {other} are in different ones)"
    )


def _adapted_moments(m: Moments, gamma: float, n: int) -> Moments:
    eye = sp.eye_array(n, format="csr")
    cross = gamma * (1 - gamma)
    return Moments(
        mean=sp.csr_array((1 - gamma) * eye + gamma * m.mean),
        square=(1 - gamma) ** 2 * eye + cross * (m.mean + m.mean.T) + gamma**2 * m.square,
    )
