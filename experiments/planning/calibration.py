r"""What was measured of the machines a run is planned for: how long messages take, how long computing takes.

Every kind of communication gets a line through its rows,

$$ \text{seconds} = \text{latency} + \text{bytes} \cdot \text{seconds per byte}, $$

both not negative, by least squares on relative errors. The line is what `theory.runtime` knows; where it is further off
than `TRUSTED` at any row, times come from the rows themselves (`Calibration.seconds`), and a note says so.

| kind | what all do at the same time |
|---|---|
| `all-reduce` | one sum among all |
| `exchange` | workers i and i XOR 1 send each other so many bytes |
| `exchange-between` | with several hosts: one worker of a host and one of the next do, all other workers are idle |
| `exchange-between-all` | the same by as many workers as both hosts have, who share the cards of their hosts |

The file is JSON that can be read without this package; units are in the names of its keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import nnls

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import write_whole
from dissensus.theory.errors import nearest
from dissensus.theory.runtime import Empirical, Link

T = TypeVar("T")
SCHEMA_VERSION = 1
TRUSTED = 0.10
"""The relative error of a line at its worst row up to which it is used."""


@dataclass(frozen=True)
class Row:
    """What so many bytes took: the median over repeats of the slowest process's time."""

    kind: str
    bytes: int
    seconds: float
    spread: float
    """Between the quartiles of the repeats, as a share of the median."""


@dataclass(frozen=True)
class Fit:
    """A line through the rows of a kind."""

    kind: str
    latency_seconds: float
    seconds_per_byte: float
    worst_residual: float
    """The largest relative error at any row."""

    @property
    def trusted(self) -> bool:
        """Whether it may stand for the rows."""
        return self.worst_residual <= TRUSTED

    @property
    def bandwidth(self) -> float:
        """Bytes per second; infinite where more bytes took no longer."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else math.inf

    @property
    def link(self) -> Link:
        """As the runtime model knows it."""
        return Link(self.latency_seconds, self.bandwidth)

    def seconds(self, size: float) -> float:
        """What it says of so many bytes."""
        return self.latency_seconds + self.seconds_per_byte * size


@dataclass(frozen=True)
class Calibration:
    """Measured communication and computing of so many workers, one process each."""

    date: str
    """When, by ISO 8601, UTC."""
    torch: str
    """Its version."""
    backend: str
    """Empty where one process was alone."""
    workers: int
    hosts: dict[str, int]
    """How many workers each has."""
    parameters: int | None
    """Of the perceptron that was computed with; `None` if it was somebody's own model."""
    compute_seconds: tuple[tuple[float, ...], ...]
    """Steps of computing, worker by worker, in the order in which they were taken."""
    rows: tuple[Row, ...]
    fits: tuple[Fit, ...]
    notes: tuple[str, ...] = ()

    @property
    def compute(self) -> Empirical:
        """The distribution of computing times, each relative to the mean of its own worker."""
        return Empirical(np.concatenate([np.array(own) / np.mean(own) for own in self.compute_seconds]))

    @property
    def speeds(self) -> np.ndarray:
        """(workers,), how many times as long as on average each worker computes."""
        return np.array([np.mean(own) for own in self.compute_seconds]) / self.mean_seconds

    @property
    def mean_seconds(self) -> float:
        """The mean computing time of a step, over workers."""
        return float(np.mean([np.mean(own) for own in self.compute_seconds]))

    def fit(self, kind: str) -> Fit:
        """The line of a kind."""
        if not self.fits:
            raise ConfigError(
                f"one process was measured, which says nothing of {kind}: calibrate with as many as will train"
            )
        found = {one.kind: one for one in self.fits}
        if kind not in found:
            raise ConfigError(f"kind {kind!r} was not measured{nearest(kind, found)}")
        return found[kind]

    def seconds(self, kind: str, size: float) -> float:
        """How long so many bytes take: by the line or, where it is not trusted, between rows on logarithmic scales.

        Below the smallest row they take as long as it, beyond the largest one in proportion to it.
        """
        if not (math.isfinite(size) and size >= 0):
            raise ConfigError(f"a message has a finite number of bytes, at least 0, got {size}")
        line = self.fit(kind)
        if line.trusted:
            return line.seconds(size)
        rows = sorted((one.bytes, one.seconds) for one in self.rows if one.kind == kind)
        at, took = np.log(np.array(rows)).T
        most = rows[-1][0]
        return float(np.exp(np.interp(np.log(min(max(size, 1), most)), at, took))) * max(1.0, size / most)

    def to_file(self, path: Path) -> None:
        """Writes a whole file or nothing."""
        tree = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        try:
            write_whole(path, "{\n" + ",\n".join(f"  {json.dumps(k)}: {_lines(v)}" for k, v in tree.items()) + "\n}\n")
        except OSError as error:
            raise ConfigError(f"cannot write the calibration {str(path)!r}: {error.strerror or error}") from None

    @classmethod
    def from_file(cls, path: Path) -> Calibration:
        """What `to_file` wrote, to the bit; refused with the place where it is anything else."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            beside = sorted(p.name for p in path.parent.glob("*.json")) if path.parent.is_dir() else []
            raise ConfigError(f"no calibration {str(path)!r}{nearest(path.name, beside)}") from None
        except OSError as error:
            raise ConfigError(f"cannot read the calibration {str(path)!r}: {error.strerror or error}") from None
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}; `dissensus plan --calibrate` writes a calibration") from None
        try:
            return _calibration(tree)
        except _WrongError as wrong:
            raise ConfigError(f"{path}: {wrong}") from None


def fitted(kind: str, rows: Sequence[Row]) -> Fit:
    """The line of a kind through its rows: relative errors, least squares, nothing negative."""
    own = [one for one in rows if one.kind == kind]
    if len({one.bytes for one in own}) < 2:
        raise ConfigError(f"a line needs rows of at least two sizes, {kind} has {len(own)}")
    size, took = np.array([(one.bytes, one.seconds) for one in own], dtype=np.float64).T
    design = np.stack([1 / took, size / took], axis=1)
    scale = np.linalg.norm(design, axis=0)  # columns of one length: bytes and seconds are far apart
    found = nnls(design / scale, np.ones(len(own)))[0] / scale
    return Fit(kind, float(found[0]), float(found[1]), float(abs(design @ found - 1).max()))


def remarks(lines: Sequence[Fit], rows: Sequence[Row]) -> list[str]:
    """What must be said of times that vary, and of lines that are far from their rows."""
    said = []
    if rows and (spread := float(np.median([one.spread for one in rows]))) > TRUSTED:
        said.append(
            f"half of all sizes vary by more than {spread:.0%} between repeats: measure again while nothing else runs"
        )
    for line in lines:
        off = {abs(line.seconds(one.bytes) / one.seconds - 1): one.bytes for one in rows if one.kind == line.kind}
        if not line.trusted:
            said.append(
                f"{line.kind}: latency + bytes / bandwidth is off by {max(off):.0%} at {off[max(off)]} bytes, more "
                f"than {TRUSTED:.0%}; times are interpolated between the measured sizes instead"
            )
    return said


class _WrongError(Exception):
    """A key and what is wrong with it."""


Check = Callable[[Any, str], Any]


def _calibration(tree: Any) -> Calibration:
    if isinstance(tree, dict) and tree.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise _WrongError(
            f"schema_version is {tree['schema_version']!r}, this version reads {SCHEMA_VERSION}: calibrate again"
        )
    checks: dict[str, Check] = {"schema_version": _whole(1), "date": _text, "torch": _text, "backend": _text}
    checks |= {"workers": _whole(1), "hosts": _hosts, "parameters": _perhaps(_whole(1)), "notes": _several(_text)}
    checks["compute_seconds"] = _several(_several(_number(above=True), 2))
    row = {"kind": _text, "bytes": _whole(1), "seconds": _number(above=True), "spread": _number()}
    line = dict.fromkeys((f.name for f in fields(Fit)), _number()) | {"kind": _text}
    found = _keys(tree, "", checks | {"rows": _several(_each(row, Row)), "fits": _several(_each(line, Fit))})
    del found["schema_version"]
    workers = found["workers"]
    if len(found["compute_seconds"]) != workers:
        raise _WrongError(f"compute_seconds needs one list per worker, {workers}, got {len(found['compute_seconds'])}")
    if sum(found["hosts"].values()) != workers:
        raise _WrongError(f"hosts have {sum(found['hosts'].values())} workers together, and workers is {workers}")
    for kind in sorted({one.kind for one in found["fits"]} ^ {one.kind for one in found["rows"]}):
        raise _WrongError(f"rows and fits must have the same kinds, and one of them has no {kind!r}")
    return Calibration(**found)


def _keys(tree: Any, where: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise _WrongError(f"{where or 'the whole'} must be an object with {', '.join(checks)}, got {_short(tree)}")
    inside = f"{where}." if where else ""
    missing = [key for key in checks if key not in tree]
    for key in tree:
        if key not in checks:
            raise _WrongError(f"unknown key {inside + key!r}{nearest(key, missing or checks)}")
    if missing:
        raise _WrongError(f"there is no key {inside + missing[0]!r}: calibrate again, or add it")
    return {key: check(tree[key], inside + key) for key, check in checks.items()}


def _each(checks: Mapping[str, Check], kind: Callable[..., T]) -> Callable[[Any, str], T]:
    return lambda value, where: kind(**_keys(value, where, checks))


def _several(check: Check, least: int = 0) -> Check:
    def several(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise _WrongError(f"{where} must be a list{f' of at least {least}' if least else ''}, got {_short(value)}")
        return tuple(check(one, f"{where}[{i}]") for i, one in enumerate(value))

    return several


def _perhaps(check: Check) -> Check:
    return lambda value, where: None if value is None else check(value, where)


def _hosts(value: Any, where: str) -> dict[str, int]:
    return _keys(value, where, dict.fromkeys(value, _whole(1)) if isinstance(value, dict) else {"HOST": _whole(1)})


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{where} must be a string, got {_short(value)}")
    return value


def _whole(least: int) -> Check:
    def whole(value: Any, where: str) -> int:
        if type(value) is not int or value < least:
            raise _WrongError(f"{where} must be a whole number of at least {least}, got {_short(value)}")
        return value

    return whole


def _number(*, above: bool = False) -> Check:
    def number(value: Any, where: str) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0 or (above and value == 0):
            raise _WrongError(f"{where} must be a number {'above' if above else 'of at least'} 0, got {_short(value)}")
        return float(value)

    return number


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _lines(value: Any) -> str:
    if not isinstance(value, list | tuple) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(f"    {json.dumps(one, allow_nan=False)}" for one in value) + "\n  ]"
