r"""A cheap placement, found by descents over swaps and a population of them; never dearer than the identity.

The cost is a sum of maxima: it is flat nearly everywhere, since a swap seldom moves the slowest message of a group. So
descents follow a guide, in which power means take the place of the maxima of the groups g of messages,

$$ E_q(p) = \sum_g \omega_g\, \Big( \tfrac{1}{m_g} \sum_{s \to r \text{ in } g} T_{p_s p_r}^q \Big)^{1/q} , $$

from the mean (q = 1) towards the maximum. With M the pattern of a group and $G_{sr} = T_{p_s p_r}^q$, the change of its
sum by a swap of u and v is, for all pairs at once and any directions, with $K = M G^\top + M^\top G$,

$$ \Delta_{uv} = K_{uv} + K_{vu} - K_{uu} - K_{vv} + (M_{uv} + M_{vu})(G_{uv} + G_{vu}), $$

a sparse product instead of a placement per pair. Every placement on the way is judged by the true cost.

The population starts from the identity, from devices in the order of a hierarchical clustering of the links, dealt out
in a row and in strides, and from random placements. A child is a crossover of two parents, or one of them disturbed; it
descends, and takes the place of the dearer parent unless it is dearer than both (that rule is DT-FM's; the rest is
ours). A move takes O(groups n²): a search takes a second or two for 64 devices, minutes for 256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from dissensus.theory.errors import MixingError
from dissensus.theory.runtime.placement.cost import Messages, PipelinePlacement, TopologyPlacement

Problem = TopologyPlacement | PipelinePlacement
"""What can be searched: true costs of many placements at once, and groups of messages for the guide."""
ROOTS = (0, 1, 2, 3)
"""The powers of the guides are 2 to these: their roots are square roots of square roots, which are fast."""
POPULATION = 8
"""So many placements are kept; half of the descents, at most, go into founding them."""


@dataclass(frozen=True)
class RandomPlacements:
    """What placements cost that are drawn uniformly."""

    draws: int
    mean: float
    standard_deviation: float
    best: float


@dataclass(frozen=True, eq=False)
class Placed:
    """What a search found. Costs are in seconds."""

    assignment: np.ndarray
    """Worker i lives on device assignment[i]; of a pipeline, arranged as its cost is counted."""
    cost: float
    identity: float
    """What the identity costs; never less than `cost`."""
    random: RandomPlacements
    """As many random placements as the search evaluated."""
    evaluations: int
    """Placements whose true cost was computed."""
    swaps: int
    """Swaps that were weighed by the guide."""
    seed: int


def place(problem: Problem, *, descents: int = 32, draws: int | None = None, seed: int = 0) -> Placed:
    """The cheapest placement of a seeded search, and what the identity and random placements cost.

    Args:
        problem: a `TopologyPlacement` or `PipelinePlacement`.
        descents: how often a placement is improved until no swap helps: the time goes with it.
        draws: how many random placements to compare with; as many as the search evaluates unless told otherwise.
        seed: the same seed finds the same placement.
    """
    _check(descents=descents, draws=1 if draws is None else draws, seed=seed)
    search = _Search(problem, np.random.default_rng([seed, 0]))
    identity = search.judged(np.arange(problem.size))
    people = [identity]
    for founder in search.founders(max(1, min(POPULATION, descents // 2))):
        people.append(search.improved(founder))
    for _ in range(descents - len(people) + 1):
        a, b = (int(i) for i in search.rng.choice(len(people), 2, replace=False))
        child = search.improved(search.child(people[a].assignment, people[b].assignment))
        worse = max((a, b), key=lambda i: people[i].key)
        if child.key <= people[worse].key:
            people[worse] = child
    best = min([identity, *people], key=lambda one: one.key)
    return Placed(
        assignment=best.assignment,
        cost=best.cost,
        identity=identity.cost,
        random=random_placements(problem, search.evaluations if draws is None else draws, seed=seed),
        evaluations=search.evaluations,
        swaps=search.swaps,
        seed=seed,
    )


def random_placements(problem: Problem, draws: int, *, seed: int = 0) -> RandomPlacements:
    """The distribution of the costs of placements drawn uniformly."""
    _check(draws=draws, seed=seed)
    rng = np.random.default_rng([seed, 1])
    parts = []
    for start in range(0, draws, 1024):
        count = min(1024, draws - start)
        parts.append(problem.cost(rng.permuted(np.tile(np.arange(problem.size), (count, 1)), axis=1)))
    costs = np.concatenate(parts)
    return RandomPlacements(draws, float(costs.mean()), float(costs.std()), float(costs.min()))


class Guide:
    """E_q of one placement, for swaps: holds G for each kind of message, and changes with the placement."""

    def __init__(self, problem: Problem, placement: np.ndarray, roots: int) -> None:
        self.roots, self.placement = roots, placement.copy()
        self._groups: list[tuple[list[Messages], sp.csr_array, sp.csr_array, np.ndarray, np.ndarray]] = []
        self._powers: list[np.ndarray] = []
        for kind, seconds in enumerate(problem.seconds):
            groups = [g for g in problem.messages if g.seconds == kind]
            if not groups:
                continue
            top = float(seconds.max())
            there = sp.csr_array(sp.vstack([g.pattern for g in groups]))
            back = sp.csr_array(sp.vstack([g.pattern.T for g in groups]))
            either = (there + back).toarray().reshape(len(groups), problem.size, problem.size)
            weight = top * np.array([g.weight for g in groups])
            self._groups.append((groups, there, back, either, weight))
            self._powers.append((seconds / top if top > 0 else seconds)[np.ix_(placement, placement)] ** (1 << roots))

    def value(self) -> float:
        """The guide of the placement as it is."""
        return sum(float(w @ self._root(s)) for (*_, w), s in zip(self._groups, self._means(), strict=True))

    def swapped(self) -> np.ndarray:
        """The guide after a swap of u and v, for all u and v."""
        n = len(self.placement)
        total = np.zeros((n, n))
        for (groups, there, back, either, weight), means, g in zip(
            self._groups, self._means(), self._powers, strict=True
        ):
            k = (there @ g.T + back @ g).reshape(either.shape)
            own = np.einsum("gii->gi", k)
            change = k + k.transpose(0, 2, 1) - own[:, :, None] - own[:, None, :] + either * (g + g.T)
            count = np.array([one.pattern.nnz for one in groups])[:, None, None]
            after = self._root(np.maximum(means[:, None, None] + change / count, 0.0))
            total += np.tensordot(weight, after, axes=1)
        return total

    def swap(self, u: int, v: int) -> None:
        """Lets u and v change places."""
        self.placement[[u, v]] = self.placement[[v, u]]
        for g in self._powers:
            g[[u, v]] = g[[v, u]]
            g[:, [u, v]] = g[:, [v, u]]

    def _means(self) -> list[np.ndarray]:
        return [
            np.array([float(one.pattern.multiply(g).sum()) / one.pattern.nnz for one in groups])
            for (groups, *_), g in zip(self._groups, self._powers, strict=True)
        ]

    def _root(self, means: np.ndarray) -> np.ndarray:
        for _ in range(self.roots):
            means = np.sqrt(means)
        return means


@dataclass(frozen=True, eq=False)
class _One:
    """One of the population: of two that cost the same, the one with less traffic is kept."""

    assignment: np.ndarray
    cost: float
    guide: float

    @property
    def key(self) -> tuple[float, float]:
        return self.cost, self.guide


class _Search:
    """The moves of the search, its generator and its counts."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.problem, self.rng = problem, rng
        self.evaluations = self.swaps = 0

    def judged(self, *placements: np.ndarray) -> _One:
        """The cheapest of these by the true cost, arranged."""
        costs = self.problem.cost(np.array(placements))
        self.evaluations += len(placements)
        best = int(costs.argmin())
        p = self.problem.arranged(placements[best])
        return _One(p, float(costs[best]), Guide(self.problem, p, 2).value())

    def improved(self, placement: np.ndarray) -> _One:
        """Descends under guides of different powers, in random order, as long as one of them leads to less."""
        one, roots = self.judged(placement), [int(r) for r in self.rng.permutation(ROOTS)]
        tries = 0
        while tries < len(roots):
            way = self._descent(one.assignment, roots[tries])
            below = self.judged(*way) if way else one
            one, tries = (below, 0) if below.key < one.key else (one, tries + 1)
        return one

    def _descent(self, placement: np.ndarray, roots: int) -> list[np.ndarray]:
        """The placements after each swap, the best of all pairs every time, until none helps."""
        guide = Guide(self.problem, placement, roots)
        seen: list[np.ndarray] = []
        value = guide.value()
        pairs = self.problem.size * (self.problem.size - 1) // 2
        while True:
            table = guide.swapped()
            self.swaps += pairs
            u, v = divmod(int(table.argmin()), self.problem.size)
            guide.swap(u, v)
            after = guide.value()
            if not after < value * (1.0 - 1e-9):  # beyond rounding of the table
                return seen
            value = after
            seen.append(guide.placement.copy())

    def child(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Half of one parent, what fits of the other, the rest at random; or the first parent, disturbed."""
        n = len(a)
        child = a.copy()
        if self.rng.random() < 0.5:
            some = self.rng.permutation(n)[: int(self.rng.integers(2, max(3, n // 4 + 1)))]
            child[some] = a[np.roll(some, 1)]
            return child
        kept = self.rng.random(n) < 0.5
        free = ~kept & ~np.isin(b, a[kept])
        child[free] = b[free]
        rest = ~kept & ~free
        child[rest] = self.rng.permutation(np.setdiff1d(a, child[kept | free]))
        return child

    def founders(self, count: int) -> Iterator[np.ndarray]:
        """The identity, devices by cluster dealt out in blocks and strides, then random ones."""
        n = self.problem.size
        dealt = [np.arange(n), *_dealt(_by_cluster(self.problem.seconds[-1]))]
        yield from dealt[:count]
        for _ in range(count - len(dealt)):
            yield self.rng.permutation(n)


def _by_cluster(seconds: np.ndarray) -> np.ndarray:
    """Devices in an order in which those with fast links stand together."""
    if len(seconds) < 3:
        return np.arange(len(seconds))
    near = (seconds + seconds.T) / 2
    np.fill_diagonal(near, 0.0)
    return leaves_list(linkage(squareform(near, checks=False), "average"))


def _dealt(order: np.ndarray) -> list[np.ndarray]:
    """The order itself, and the order in strides: place i takes what is stride i away."""
    n = len(order)
    divisors = [d for d in range(2, n) if n % d == 0]
    return [order, *(order.reshape(d, n // d).T.ravel() for d in divisors)]


def _check(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "seed" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise MixingError(f"{name} must be a whole number of at least {least}, got {value!r}")
