r"""What a placement costs in seconds: of a topology, and of pipeline stages x data-parallel groups as DT-FM has it.

A message of v bytes from device a to device b takes $T_{ab}(v) = A_{ab} + v / B_{ab}$ seconds, with A the latency and B
the bandwidth. A placement p says where things live: worker i on device $p_i$.

*A topology.* Worker i hears worker j where $W_{ij} \ne 0$. All messages of a round travel at the same time, none slows
another, the round ends with its slowest, and the cost is the mean over the period,

$$ \frac1P \sum_{t<P} \max_{j \to i \text{ in } W_t} T_{p_j p_i}(v) . $$

The direction of a message counts here, so that links may differ by direction. This cost is ours.

*DT-FM.* A stage of the pipeline is served by D devices that hold the same layers, $C_1, …, C_S$:

$$ \text{data parallel} = \max_j \max_{a \in C_j} \sum_{b \in C_j, b \ne a} 2\,T_{ab}(c_{dp}/D), \qquad
   w_{jk} = \min_{\text{matchings of } C_j, C_k}\ \max_{(a,b)} T_{ab}(c_{pp}), $$

the pipeline costs the shortest path through all stages with weights w, and the whole is data parallel + 2 pipeline:
activations go forward, gradients back. It counts a link once for both directions, so that links which differ by
direction are refused. It knows nothing of computing, nor of communication hidden behind it, and counts the latency of
every peer. Reference: Yuan et al. 2022, arXiv:2206.01288, as its scheduler computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import maximum_bipartite_matching

from dissensus.theory.errors import MixingError
from dissensus.theory.runtime.placement.scenarios import Links
from dissensus.theory.topology import Topology

MOST_STAGES = 12
"""Up to so many stages the shortest path is found exactly, over all subsets of them."""
SUBSETS = 10
"""Up to so many devices a stage matchings go over subsets, for many at once; beyond, one by one."""
CHUNK = 64
"""So many placements are looked at together: their tables stay in the cache."""


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages that end together, as a search sees them: worker s tells worker r something wherever `pattern[s, r]`."""

    seconds: int
    """Which of the matrices of the problem says how long they take."""
    weight: float
    """What the slowest of them counts in the cost."""
    pattern: sp.csr_array


@dataclass(frozen=True, eq=False)
class TopologyPlacement:
    """Workers of a topology on devices: seconds a round, messages of so many bytes."""

    topology: Topology
    links: Links
    message_bytes: float

    def __post_init__(self) -> None:
        _check_bytes("message_bytes", self.message_bytes)
        name = self.topology.name
        if self.topology.period is None:
            raise MixingError(
                f"topology {name!r} is drawn at every step: it has no period to average over; "
                "place from_matrices([topology[t] for t in range(steps)])"
            )
        if self.topology.size != self.links.size:
            raise MixingError(
                f"topology {name!r} has {self.topology.size} workers, the links are between {self.links.size} devices: "
                "give each worker one device"
            )

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.links.size

    @cached_property
    def seconds(self) -> tuple[np.ndarray, ...]:
        """All rounds send messages of one size."""
        return (self.links.seconds(self.message_bytes),)

    @cached_property
    def messages(self) -> tuple[Messages, ...]:
        """One group a round; rounds without messages take no time."""
        rounds = [_pattern(w.weights.T, self.size) for w in self.topology]
        return tuple(Messages(0, 1.0 / len(rounds), r) for r in rounds if r.nnz)

    def round_seconds(self, placements: np.ndarray) -> np.ndarray:
        """How long each round with messages takes, one column a round."""
        p = _placements(placements, self.size)
        out = np.empty((len(p), len(self.messages)))
        for g, group in enumerate(self.messages):
            sender, receiver = group.pattern.tocoo().coords
            for c in range(0, len(p), CHUNK):
                q = p[c : c + CHUNK]
                out[c : c + CHUNK, g] = self.seconds[0][q[:, sender], q[:, receiver]].max(axis=1)
        return out

    def cost(self, placements: np.ndarray) -> np.ndarray:
        """Seconds a round, the mean over the period."""
        return self.round_seconds(placements).sum(axis=1) / len(self.topology.rounds)

    def arranged(self, placement: np.ndarray) -> np.ndarray:
        """The placement itself."""
        return placement


@dataclass(frozen=True, eq=False)
class PipelinePlacement:
    """Stages x data-parallel groups on devices: entry j * groups + d of a placement serves stage j.

    The cost takes the stages in their best order and joins their devices to pipelines as well as can be. `arranged`
    shows that order: its rows follow the path, its columns are the pipelines.
    """

    links: Links
    stages: int
    groups: int
    gradient_bytes: float
    """What a device synchronises with its stage, c_dp."""
    activation_bytes: float
    """What a device hands to the next stage, c_pp."""

    def __post_init__(self) -> None:
        _check_bytes("gradient_bytes", self.gradient_bytes)
        _check_bytes("activation_bytes", self.activation_bytes)
        for name, value in (("stages", self.stages), ("groups", self.groups)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise MixingError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.stages > MOST_STAGES:
            raise MixingError(
                f"the order of stages is exact up to {MOST_STAGES} of them, got {self.stages}: join neighbouring stages"
            )
        if self.stages * self.groups != self.links.size:
            raise MixingError(
                f"{self.stages} stages x {self.groups} groups need {self.stages * self.groups} devices, "
                f"the links are between {self.links.size}"
            )
        if not self.links.is_symmetric:
            a, b = np.argwhere(
                (self.links.latency != self.links.latency.T) | (self.links.bandwidth != self.links.bandwidth.T)
            )[0]
            raise MixingError(
                f"the link between devices {a} and {b} differs by direction, which this cost does not count: "
                "pass links.symmetrised(), the slower of both"
            )

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.links.size

    @cached_property
    def seconds(self) -> tuple[np.ndarray, ...]:
        """Of a share of the gradient, there and back, and of activations."""
        return 2.0 * self.links.seconds(self.gradient_bytes / self.groups), self.links.seconds(self.activation_bytes)

    @cached_property
    def messages(self) -> tuple[Messages, ...]:
        """All pairs within the stages, and one group for each step down the pipelines."""
        d, cell = self.groups, np.arange(self.size).reshape(self.stages, self.groups)
        within = _pattern(np.kron(np.eye(self.stages), np.ones((d, d))), self.size)
        groups = [Messages(0, float(d - 1), within)] if d > 1 else []
        for above, below in pairwise(cell):
            step = sp.csr_array((np.ones(d), (above, below)), shape=within.shape)
            groups.append(Messages(1, 2.0, step))
        return tuple(groups)

    def data_parallel(self, placements: np.ndarray) -> np.ndarray:
        """The slowest device's exchange with its stage, for each placement."""
        grid = _placements(placements, self.size).reshape(-1, self.stages, self.groups)
        return self.seconds[0][grid[..., :, None], grid[..., None, :]].sum(axis=-1).max(axis=(1, 2))

    def pipeline(self, placements: np.ndarray) -> np.ndarray:
        """The shortest path through all stages, for each placement."""
        weights = self.between_stages(placements)
        lengths = [_paths(weights[c : c + CHUNK])[-1].min(axis=0) for c in range(0, len(weights), CHUNK)]
        return np.concatenate(lengths)

    def between_stages(self, placements: np.ndarray) -> np.ndarray:
        """The bottleneck matchings w_jk, stages x stages for each placement."""
        grid = _placements(placements, self.size).reshape(-1, self.stages, self.groups)
        j, k = np.triu_indices(self.stages, 1)
        w = np.zeros((len(grid), self.stages, self.stages))
        for c in range(0, len(grid), CHUNK):
            part = grid[c : c + CHUNK]
            links = self.seconds[1][part[:, j, :, None], part[:, k, None, :]]
            w[c : c + CHUNK, j, k] = w[c : c + CHUNK, k, j] = bottleneck(links)
        return w

    def cost(self, placements: np.ndarray) -> np.ndarray:
        """Data parallel + 2 pipeline, in seconds."""
        return self.data_parallel(placements) + 2.0 * self.pipeline(placements)

    def arranged(self, placement: np.ndarray) -> np.ndarray:
        """The same stages in the order of the shortest path, their devices in the order of the best matchings."""
        grid = _placements(placement, self.size)[0].reshape(self.stages, self.groups)
        rows = grid[_shortest(self.between_stages(placement)[0])]
        for j in range(1, self.stages):
            links = self.seconds[1][np.ix_(rows[j - 1], rows[j])]
            worst = float(bottleneck(links))
            far = 1.0 + self.groups * worst  # one link beyond the bottleneck costs more than all within it
            rows[j] = rows[j][linear_sum_assignment(np.where(links <= worst, links, far))[1]]
        return rows.ravel()


def bottleneck(links: np.ndarray) -> np.ndarray:
    """The smallest possible worst link of a perfect matching of rows with columns, for each d x d matrix."""
    d = links.shape[-1]
    several = links.reshape(-1, d, d)
    if d > SUBSETS:
        return np.array([_threshold(one) for one in several]).reshape(links.shape[:-2])
    by_link = np.ascontiguousarray(several.transpose(1, 2, 0))
    best = np.zeros((1 << d, len(several)))  # best[mask]: the first rows matched with the columns of mask
    for mask in range(1, 1 << d):
        columns = [c for c in range(d) if mask >> c & 1]
        before = best[[mask ^ (1 << c) for c in columns]]
        best[mask] = np.maximum(before, by_link[len(columns) - 1, columns]).min(axis=0)
    return best[-1].reshape(links.shape[:-2])


def _threshold(links: np.ndarray) -> float:
    """The same for one matrix, by bisection over its entries."""
    values = np.unique(links)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        matched = maximum_bipartite_matching(sp.csr_array(links <= values[middle]), perm_type="column")
        low, high = (low, middle) if (matched >= 0).all() else (middle + 1, high)
    return float(values[low])


def _paths(weights: np.ndarray) -> np.ndarray:
    """The shortest paths through a subset of stages (first axis) that end in a stage (second), for each instance."""
    count, s = len(weights), weights.shape[1]
    step = weights.transpose(1, 2, 0)
    best = np.full((1 << s, s, count), np.inf)
    for mask in range(1, 1 << s):
        last = [j for j in range(s) if mask >> j & 1]
        if len(last) == 1:
            best[mask, last[0]] = 0.0
        else:
            best[mask, last] = (best[[mask ^ (1 << j) for j in last]] + step[last]).min(axis=1)
    return best


def _shortest(weights: np.ndarray) -> list[int]:
    """The stages in the order of the shortest path, the end with the lower number first."""
    best = _paths(weights[None])[..., 0]
    mask, path = len(best) - 1, [int(best[-1].argmin())]
    while mask ^ (1 << path[-1]):
        mask ^= 1 << path[-1]
        path.append(int((best[mask] + weights[path[-1]]).argmin()))
    return path if path[0] < path[-1] else path[::-1]


def _pattern(weights: np.ndarray | sp.sparray, n: int) -> sp.csr_array:
    """Ones where somebody tells somebody else something."""
    w = sp.coo_array(weights)
    sender, receiver = w.coords
    other = (sender != receiver) & (w.data != 0)
    return sp.csr_array((np.ones(other.sum()), (sender[other], receiver[other])), shape=(n, n))


def _placements(placements: np.ndarray, n: int) -> np.ndarray:
    """One placement a row; refuses what is not each device once."""
    p = np.atleast_2d(np.asarray(placements))
    if p.ndim != 2 or p.shape[1] != n or not np.issubdtype(p.dtype, np.integer):
        raise MixingError(f"a placement names {n} devices by whole numbers, got {p.dtype} of shape {p.shape}")
    wrong = (np.sort(p, axis=1) != np.arange(n)).any(axis=1)
    if wrong.any():
        raise MixingError(f"a placement names each of the devices 0 to {n - 1} once, got {p[wrong.argmax()].tolist()}")
    return p


def _check_bytes(name: str, value: float) -> None:
    if not (np.isfinite(value) and value >= 0):
        raise MixingError(f"{name} must be finite and not negative, got {value}")
