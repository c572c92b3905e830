"""The machine a plan is made for: stated in a file, known by name, or measured (`calibration`).

A cluster file, every number in the unit of its name:

    name = "four nodes of four"
    nodes = 4
    workers_per_node = 4
    cards = 1                  # network cards of a node, shared by its workers

    [inside]                   # links between workers of one node
    gbit_per_second = 200
    latency_microseconds = 10

    [between]                  # links between nodes
    gbit_per_second = 25
    latency_microseconds = 30

    [compute]                  # may be left out, and given as --compute and --sigma
    seconds = 0.12
    deviation = 0.1
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.planning.calibration import Calibration
from dissensus.theory.errors import nearest
from dissensus.theory.runtime import Cluster, Compute, Link, LogNormal, Round, even_rounds, rounds_on
from dissensus.theory.topology import Topology

GIGABIT = 1e9 / 8

PRESETS: dict[str, tuple[Cluster, str]] = {
    "a40-25g": (
        Cluster(4, 4, Link(1e-5, 160 * GIGABIT), Link(3e-5, 25 * GIGABIT), name="a40-25g"),
        "4 nodes of 4 A40, 25 Gbit/s Ethernet (published setting; inside: PCIe at 160 Gbit/s, our assumption)",
    ),
    "a100-ib": (
        Cluster(4, 4, Link(5e-6, 2000 * GIGABIT), Link(5e-6, 100 * GIGABIT), name="a100-ib"),
        "4 nodes of 4 A100, 100 Gbit/s InfiniBand (published setting; inside: NVLink at 2000 Gbit/s, our assumption)",
    ),
    "t4-ib": (
        Cluster(4, 8, Link(1e-5, 100 * GIGABIT), Link(5e-6, 100 * GIGABIT), name="t4-ib"),
        "4 nodes of 8 T4, 100 Gbit/s InfiniBand (published setting; inside: PCIe at 100 Gbit/s, our assumption)",
    ),
    "dt-fm-data-centre": (
        Cluster(8, 8, Link(0.0, 100 * GIGABIT), Link(0.0, 3.125 * GIGABIT), name="dt-fm-data-centre"),
        "DT-FM's scenario 0: 8 instances of 8 GPUs, 100 Gbit/s inside, 3.125 across",
    ),
    "dt-fm-two-universities": (
        Cluster(2, 32, Link(1e-3, 5 * GIGABIT), Link(1.1e-2, 1.12 * GIGABIT), 32, name="dt-fm-two-universities"),
        "DT-FM's scenario 2: two places of 32 devices, 5 Gbit/s and 1 ms inside, 1.12 and 11 ms across",
    ),
}
"""Clusters by name, and what is published of them."""


class Machine(Protocol):
    """What a plan needs to know. Times in seconds."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def size(self) -> int:
        """How many workers."""
        ...

    @property
    def per_node(self) -> int:
        """How many workers share a node."""
        ...

    @property
    def seconds(self) -> float:
        """The mean computing time of a step."""
        ...

    @property
    def compute(self) -> Compute:
        """Computing times in units of their mean."""
        ...

    @property
    def speeds(self) -> np.ndarray | None:
        """How many times as long each worker computes; None if all are alike."""
        ...

    def all_reduce(self, size: float) -> float:
        """Seconds of an all-reduce of so many bytes among all."""
        ...

    def rounds(self, topology: Topology, size: float) -> list[Round]:
        """The rounds of a topology for models of so many bytes, delays in seconds."""
        ...


@dataclass(frozen=True)
class Stated:
    """A cluster whose figures somebody has stated."""

    cluster: Cluster
    seconds: float
    compute: Compute
    speeds: np.ndarray | None = None

    @property
    def name(self) -> str:
        """As in `Machine`."""
        return self.cluster.name

    @property
    def size(self) -> int:
        """As in `Machine`."""
        return self.cluster.size

    @property
    def per_node(self) -> int:
        """As in `Machine`."""
        return self.cluster.per_node

    def all_reduce(self, size: float) -> float:
        """As in `Machine`."""
        return self.cluster.all_reduce(size)

    def rounds(self, topology: Topology, size: float) -> list[Round]:
        """As in `Machine`."""
        return rounds_on(topology, self.cluster, size)


@dataclass(frozen=True)
class Measured:
    """Machines that were measured."""

    calibration: Calibration
    name: str
    seconds: float
    compute: Compute
    speeds: np.ndarray | None

    @property
    def size(self) -> int:
        """As in `Machine`."""
        return self.calibration.workers

    @property
    def per_node(self) -> int:
        """As in `Machine`: 1 where hosts have different numbers of workers."""
        counts = set(self.calibration.hosts.values())
        return counts.pop() if len(counts) == 1 else 1

    def all_reduce(self, size: float) -> float:
        """As in `Machine`."""
        return self.calibration.seconds("all-reduce", size)

    def rounds(self, topology: Topology, size: float) -> list[Round]:
        """As in `Machine`: who tells or hears several is busy as long as with one message of all their bytes."""
        return [self._round(one, size) for one in even_rounds(topology, 0.0)]

    def _round(self, one: Round, size: float) -> Round:
        n, own = one.size, np.arange(one.size)[:, None]
        receiver, sender = (np.broadcast_to(own, one.senders.shape), one.senders)
        receiver, sender = receiver[sender != own], sender[sender != own]
        hosts = np.repeat(np.arange(len(self.calibration.hosts)), list(self.calibration.hosts.values()))
        far = hosts[receiver] != hosts[sender]
        delay = np.zeros(n)
        for there, seconds in ((far, self._between), (~far, self._inside)):
            heard, told = (np.bincount(x[there], minlength=n) for x in (receiver, sender))
            crossing = np.maximum(*(np.bincount(hosts[x[far]], minlength=n) for x in (receiver, sender)))
            for i in np.flatnonzero(heard):
                delay[i] = max(delay[i], seconds(size * max(heard[i], told[i]), int(crossing[hosts[i]])))
        return Round(one.senders, delay)

    def _inside(self, size: float, crossing: int) -> float:
        del crossing
        return self.calibration.seconds("exchange", size)

    def _between(self, size: float, crossing: int) -> float:
        """Measured for one pair of two hosts, and for all their workers at once; in proportion in between."""
        alone = self.calibration.seconds("exchange-between", size)
        most = min(self.calibration.hosts.values())
        if crossing <= 1 or most == 1:
            return alone
        together = self.calibration.seconds("exchange-between-all", size)
        return alone + (together - alone) * (crossing - 1) / (most - 1)


class _Way(BaseModel):
    model_config = ConfigDict(extra="forbid")
    gbit_per_second: float = Field(gt=0)
    latency_microseconds: float = Field(default=0.0, ge=0)


class _Computing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seconds: float = Field(gt=0)
    deviation: float = Field(default=0.0, ge=0)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = ""
    nodes: int = Field(ge=1)
    workers_per_node: int = Field(ge=1)
    cards: int = Field(default=1, ge=1)
    inside: _Way | None = None
    between: _Way
    compute: _Computing | None = None


def machine(named: str, *, seconds: float | None = None, deviation: float | None = None) -> Machine:
    """The machine of a preset, a cluster file or a calibration; what is given replaces what they say of computing."""
    path = Path(named)
    if named in PRESETS:
        return _stated(PRESETS[named][0], None, seconds, deviation)
    if not path.exists():
        raise ConfigError(f"no cluster {named!r}: it is neither a file nor one of the presets{nearest(named, PRESETS)}")
    if path.suffix == ".json":
        found = Calibration.from_file(path)
        compute = found.compute if deviation is None else LogNormal(deviation)
        return Measured(found, path.stem, seconds or found.mean_seconds, compute, found.speeds)
    if path.suffix != ".toml":
        raise ConfigError(
            f"{path}: a cluster is a .toml file, or the .json file that `dissensus plan --calibrate` writes"
        )
    return _stated(*_read(path), seconds, deviation)


def _stated(cluster: Cluster, computing: _Computing | None, seconds: float | None, deviation: float | None) -> Stated:
    if seconds is None and computing is None:
        raise ConfigError(
            f"nothing says how long a step computes on {cluster.name}: give --compute SECONDS, measured without "
            "communication"
        )
    stated = computing or _Computing(seconds=seconds or 0.0)
    sigma = stated.deviation if deviation is None else deviation
    return Stated(cluster, seconds or stated.seconds, LogNormal(sigma))


def _read(path: Path) -> tuple[Cluster, _Computing | None]:
    try:
        found = _File.model_validate(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: no valid TOML: {error}") from None
    except ValidationError as error:
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")  # what lacks may be misspelt
        key = ".".join(str(part) for part in first["loc"])
        near = nearest(str(first["loc"][-1]), _keys(first["loc"])) if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{path}: {key}: {first['msg'].lower()}{near}") from None
    between = _link(found.between)
    inside = between if found.inside is None else _link(found.inside)
    name = found.name or path.stem
    return Cluster(found.nodes, found.workers_per_node, inside, between, found.cards, name), found.compute


def _keys(place: tuple[int | str, ...]) -> list[str]:
    known = {"inside": _Way, "between": _Way, "compute": _Computing}
    return list((known.get(str(place[0]), _File) if len(place) > 1 else _File).model_fields)


def _link(way: _Way) -> Link:
    return Link(way.latency_microseconds / 1e6, way.gbit_per_second * GIGABIT)
