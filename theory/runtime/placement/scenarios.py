r"""Links between devices, and those of DT-FM's scenarios.

| scenario | inside a group | between groups | groups of 64 devices |
|---|---|---|---|
| 0 data centre | 100 Gbps, 0 ms | 3.125 Gbps, 0 ms | 8 instances of 8 GPUs |
| 1 spot instances | 100 Gbps, 0 ms | 1.25 Gbps, 0 ms | 8 instances of 4 GPUs, 32 GPUs alone |
| 2 two universities | 5 Gbps, 1 ms | 1.12 Gbps, 11 ms | 2 of 32 |
| 3 four US regions | 2 Gbps, 5 ms | `FOUR` | 4 of 16 |
| 4 eight regions of the world | 2 Gbps, 5 ms | `EIGHT` | 8 of 8 |

All train GPT-3 XL in 8 stages of 3 layers, with batches of 1e6 tokens, 2048 a sequence, split among 8 groups. (The code
of the scheduler sets other volumes scenario by scenario; these are those of the model, the same for all.)

Reference: Yuan et al. 2022, arXiv:2206.01288, constants as in the configuration of its scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dissensus.theory.errors import MixingError

STAGES, GROUPS = 8, 8
"""24 layers, 3 in a stage; a batch in 8 parts."""
GRADIENT_BYTES = 1e9 * 1.3 * 4 * 3 / 24
"""c_dp = 0.65 GB: 3 of 24 layers a device."""
ACTIVATION_BYTES = 1e9 * 2024 * 2048 * 2 * (1.25e5 / 2048) / 2**30
"""c_pp, about 0.47 GB. As published: 2024 is presumably meant to be 2048, and GB are 2^30 bytes here and 1e9 there."""


Table = dict[tuple[str, str], tuple[float, float]]

FOUR: Table = {
    ("Virginia", "Oregon"): (67, 1.15),
    ("Virginia", "California"): (59, 1.05),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Oregon", "California"): (12, 1.25),
    ("Oregon", "Ohio"): (49, 1.10),
    ("California", "Ohio"): (52, 1.02),
}
"""Milliseconds and Gbps between regions of the United States."""
EIGHT: Table = {
    ("Oregon", "Virginia"): (67, 0.79),
    ("Oregon", "Ohio"): (49, 1.10),
    ("Oregon", "Tokyo"): (96, 0.523),
    ("Oregon", "Seoul"): (124, 0.46),
    ("Oregon", "London"): (136, 0.42),
    ("Oregon", "Frankfurt"): (143, 0.404),
    ("Oregon", "Ireland"): (124, 0.482),
    ("Virginia", "Ohio"): (11, 1.12),
    ("Virginia", "Tokyo"): (143, 0.524),
    ("Virginia", "Seoul"): (172, 0.500),
    ("Virginia", "London"): (76, 1.16),
    ("Virginia", "Frankfurt"): (90, 1.02),
    ("Virginia", "Ireland"): (67, 1.05),
    ("Ohio", "Tokyo"): (130, 0.694),
    ("Ohio", "Seoul"): (159, 0.529),
    ("Ohio", "London"): (86, 1.05),
    ("Ohio", "Frankfurt"): (99, 0.799),
    ("Ohio", "Ireland"): (77, 1.14),
    ("Tokyo", "Seoul"): (34, 1.10),
    ("Tokyo", "London"): (210, 0.366),
    ("Tokyo", "Frankfurt"): (223, 0.36),
    ("Tokyo", "Ireland"): (199, 0.465),
    ("Seoul", "London"): (238, 0.342),
    ("Seoul", "Frankfurt"): (235, 0.358),
    ("Seoul", "Ireland"): (228, 0.335),
    ("London", "Frankfurt"): (14, 1.14),
    ("London", "Ireland"): (12, 1.09),
    ("Frankfurt", "Ireland"): (24, 1.08),
}
"""The same between eight regions of the world. (Oregon to Virginia is slower here than in `FOUR`, as published.)"""


@dataclass(frozen=True, eq=False)
class Links:
    """Latency in seconds and bandwidth in bytes per second, from device (row) to device (column).

    The diagonal is not looked at: what a device tells itself takes no time. An infinite bandwidth is one.
    """

    latency: np.ndarray
    bandwidth: np.ndarray

    def __post_init__(self) -> None:
        latency, bandwidth = _square("latency", self.latency, 0.0), _square("bandwidth", self.bandwidth, np.inf)
        if latency.shape != bandwidth.shape:
            raise MixingError(
                f"latency is between {len(latency)} devices, bandwidth between {len(bandwidth)}: give both for the same"
            )
        _refuse("latency", latency, ~(np.isfinite(latency) & (latency >= 0)), "seconds, finite and not negative")
        _refuse(
            "bandwidth", bandwidth, ~(bandwidth > 0), "bytes per second, more than 0 (inf where only latency counts)"
        )
        for name, values in (("latency", latency), ("bandwidth", bandwidth)):
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.latency)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link is the same in both directions."""
        return bool((self.latency == self.latency.T).all() and (self.bandwidth == self.bandwidth.T).all())

    def symmetrised(self) -> Links:
        """Both directions as slow as the slower: the longer latency, the smaller bandwidth."""
        return Links(np.maximum(self.latency, self.latency.T), np.minimum(self.bandwidth, self.bandwidth.T))

    def relabelled(self, order: np.ndarray) -> Links:
        """The same links with other labels: device i is what was device order[i]."""
        o = np.asarray(order)
        if o.shape != (self.size,) or (np.sort(o) != np.arange(self.size)).any():
            raise MixingError(f"an order names each of the devices 0 to {self.size - 1} once, got {o.tolist()}")
        at = np.ix_(o, o)
        return Links(self.latency[at], self.bandwidth[at])

    def seconds(self, size: float) -> np.ndarray:
        """How long a message of so many bytes takes from a to b; 0 on the diagonal."""
        return self.latency + size / self.bandwidth


def clusters(
    sizes: Sequence[int], latency: np.ndarray | Sequence[Sequence[float]], gbps: np.ndarray | Sequence[Sequence[float]]
) -> Links:
    """Links of devices in clusters: entry (c, d) of both tables is from a device of cluster c to another of cluster d.

    Args:
        sizes: how many devices each cluster has; they are numbered cluster by cluster.
        latency: in milliseconds.
        gbps: the bandwidth in gigabits per second.
    """
    a, b = np.array(latency, dtype=np.float64), np.array(gbps, dtype=np.float64)
    if a.shape != b.shape or a.shape != (len(sizes), len(sizes)):
        raise MixingError(
            f"{len(sizes)} clusters need tables of {len(sizes)} x {len(sizes)}, "
            f"got latency of shape {a.shape} and gbps of shape {b.shape}"
        )
    if any(s < 1 for s in sizes):
        raise MixingError(f"each cluster needs at least one device, got sizes {list(sizes)}")
    of = np.repeat(np.arange(len(sizes)), sizes)
    at = np.ix_(of, of)
    return Links(a[at] / 1e3, b[at] * 1e9 / 8)


def data_centre() -> Links:
    """Scenario 0: 8 instances of 8 GPUs in one data centre."""
    return _alike(8, 8, latency=(0.0, 0.0), gbps=(100.0, 3.125))


def spot_instances() -> Links:
    """Scenario 1: what is cheap in one data centre."""
    latency, gbps = np.zeros((40, 40)), np.full((40, 40), 1.25)
    np.fill_diagonal(gbps, np.where(np.arange(40) < 8, 100.0, 1.25))
    return clusters([4] * 8 + [1] * 32, latency, gbps)


def four_regions() -> Links:
    """Scenario 3: 16 devices each in Virginia, Oregon, California and Ohio."""
    return _regions(("Virginia", "Oregon", "California", "Ohio"), 16, FOUR)


def eight_regions() -> Links:
    """Scenario 4: 8 devices each in eight regions of the world."""
    return _regions(("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"), 8, EIGHT)


def two_universities() -> Links:
    """Scenario 2: 32 devices each in two places."""
    return _alike(2, 32, latency=(1.0, 11.0), gbps=(5.0, 1.12))


def _regions(names: Sequence[str], size: int, table: Table) -> Links:
    inside = (5.0, 2.0)
    found = [[table.get((a, b)) or table.get((b, a)) or inside for b in names] for a in names]
    latency, gbps = np.moveaxis(np.array(found), 2, 0)
    return clusters([size] * len(names), latency, gbps)


def _alike(count: int, size: int, *, latency: tuple[float, float], gbps: tuple[float, float]) -> Links:
    """So many clusters of one size; latency and bandwidth inside and across."""
    inside = np.eye(count, dtype=bool)
    return clusters([size] * count, np.where(inside, *latency), np.where(inside, *gbps))


def _square(name: str, values: np.ndarray, diagonal: float) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise MixingError(f"{name} must be a square array of numbers, a row for each device") from None
    if array.ndim != 2 or array.shape[0] != array.shape[1] or len(array) == 0:
        raise MixingError(f"{name} must be square, a row and a column for each device, got shape {array.shape}")
    np.fill_diagonal(array, diagonal)
    return array


def _refuse(name: str, values: np.ndarray, bad: np.ndarray, wanted: str) -> None:
    if bad.any():
        a, b = np.argwhere(bad)[0]
        raise MixingError(f"{name} from device {a} to device {b} is {values[a, b]}, expected {wanted}")
