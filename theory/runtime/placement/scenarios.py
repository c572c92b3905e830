r"""Links between devices, and those of DT-FM's scenarios.

| scenario | inside a group | between groups | groups of 64 devices |
|---|---|---|---|
| 0 data centre | 100 Gbps, 0 ms | 3.125 Gbps, 0 ms | 8 instances of 8 GPUs |
| 2 two universities | 5 Gbps, 1 ms | 1.12 Gbps, 11 ms | 2 of 32 |

All train GPT-3 XL in 8 stages of 3 layers, with batches of 1e6 tokens, 2048 a sequence, split among 8 groups.
Scenarios 1 (spot instances, latency), 3 (four regions) and 4 (eight regions) are left out, because we do not hold
all of their numbers; `clusters` builds their kind from numbers of one's own.

Reference: Yuan et al. 2022, arXiv:2206.01288, constants as in the code of its scheduler.
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


def two_universities() -> Links:
    """Scenario 2: 32 devices each in two places."""
    return _alike(2, 32, latency=(1.0, 11.0), gbps=(5.0, 1.12))


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
