"""What differs between two configurations, key by key, and between two runs of them.

The configuration says what was asked for; the facts of a run (versions, hashes of data, order, start and topology)
say what it was given, and the hash of the final parameters what came out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dissensus.experiments.config import Study, resolved
from dissensus.experiments.dotted import flatten
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import STUDY_FILE, Run
from dissensus.theory.errors import nearest

Pairs = dict[str, tuple[Any, Any]]
"""Dotted keys with both values (`None`: not set)."""
FACTS = (
    "versions", "python", "processes", "backend", "parameters", "train_samples", "test_samples",
    "start_hash", "data_hash", "order_hash", "topology_hash",
)  # fmt: skip
"""What `meta.json` says of a run that can change its numbers."""
OUTCOME = ("status", "steps", "route", "parameters_hash", "error")
"""What `summary.json` says of how it ended."""


def difference(a: Study, b: Study) -> Pairs:
    """The dotted keys in which two studies differ, with both values, in the order of the configuration."""
    return _differing(resolved(a), resolved(b))


@dataclass(frozen=True)
class Subject:
    """One side of a comparison: a file, a study, or a run."""

    name: str
    study: Study
    run: Run | None = None
    """Where it is a run directory."""

    @classmethod
    def read(cls, path: Path | str) -> Subject:
        """A TOML file, a run directory or the folder of a study."""
        path = Path(path)
        if not path.exists():
            beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            raise ConfigError(f"there is no file or folder {str(path)!r}{nearest(path.name, beside)}")
        if not path.is_dir():
            return cls(str(path), load(path))
        if (path / "config.toml").exists():
            run = Run.read(path)
            return cls(str(path), run.study, run)
        if (path / STUDY_FILE).exists():
            return cls(str(path), load(path / STUDY_FILE))
        inside = sorted(p.name for p in path.iterdir() if (p / "config.toml").exists() or (p / STUDY_FILE).exists())
        more = f"; in it are {', '.join(inside[:5])}{', ...' if len(inside) > 5 else ''}" if inside else ""
        raise ConfigError(
            f"{path} is neither a run directory (config.toml) nor the folder of a study (study.toml){more}"
        )


@dataclass(frozen=True)
class Comparison:
    """What differs between two subjects."""

    configuration: Pairs
    facts: Pairs | None
    """Of two runs: what they were given and what came out; `None` where one of them is none."""

    @classmethod
    def of(cls, a: Subject, b: Subject) -> Comparison:
        """Compares two subjects; the arms of two single runs with each other, whatever they are called."""
        facts = None if a.run is None or b.run is None else _differing(_facts(a.run), _facts(b.run))
        return cls(_differing(_plain(a.study, b.study), _plain(b.study, a.study)), facts)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.configuration and not self.facts


def _plain(study: Study, other: Study) -> dict[str, Any]:
    """The configuration as tables; the only arm of two single runs is called `arm` if their names differ."""
    tree = resolved(study)
    if len(study.arms) == len(other.arms) == 1 and list(study.arms) != list(other.arms):
        [(name, arm)] = tree.pop("arms").items()
        return {**tree, "arm": {"name": name, **arm}}
    return tree


def _facts(run: Run) -> dict[str, Any]:
    told = {key: run.meta[key] for key in FACTS if key in run.meta}
    return told | {"status": run.status} | {key: run.summary[key] for key in OUTCOME[1:] if run.summary.get(key)}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Pairs:
    left, right = flatten(a), flatten(b)
    return {key: (left.get(key), right.get(key)) for key in _paths(a, b) if left.get(key) != right.get(key)}


def _paths(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of the leaves of both, those of one table together; the order of top-level tables is a study's."""
    keys = list(dict.fromkeys([*a, *b]))
    if not prefix:
        known = [*Study.model_fields, "arm"]
        keys.sort(key=lambda key: known.index(key) if key in known else len(known))
    for key in keys:
        below = [tree[key] if isinstance(tree.get(key), Mapping) else {} for tree in (a, b)]
        if not all(isinstance(tree.get(key, {}), Mapping) for tree in (a, b)):
            yield f"{prefix}{key}"
        yield from _paths(*below, prefix=f"{prefix}{key}.")
