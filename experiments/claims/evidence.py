"""What a check may ask for: the scale, and the results of the studies that it named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TypeVar

from dissensus.experiments.claims.base import Scale
from dissensus.experiments.config import Study
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.results import Results
from dissensus.theory.errors import nearest

Sized = TypeVar("Sized")


@dataclass(frozen=True)
class Evidence:
    """What a check is given."""

    scale: Scale = "tiny"
    seed: int = 0
    """Where computed checks start their random numbers; studies say their seeds themselves."""
    processes: int = 1
    """How many processes a check may start at a time."""
    found: Mapping[str, Sequence[Results]] = field(default_factory=dict)
    """The results of the claim's studies by name; several where a scale has variants of it."""

    def results(self, study: str) -> Results:
        """The results of a study of which there is one."""
        found = self.found.get(study, ())
        if len(found) != 1:
            raise ConfigError(f"expected the results of one study {study!r}, got {len(found)}")
        return found[0]

    def sized(self, sizes: Mapping[str, Sized]) -> Sized:
        """What belongs to this scale; the nearest smaller one where a scale has none of its own."""
        for scale in ("full", "small", "tiny")[("full", "small", "tiny").index(self.scale) :]:
            if scale in sizes:
                return sizes[scale]
        raise ConfigError(f"nothing is said for scale {self.scale!r}; there are {', '.join(sizes)}")


def studies(scale: Scale) -> dict[str, Path]:
    """The files of the studies of a scale, by name; a variant's name is `study_variant`."""
    folder = Path(str(resources.files("dissensus.experiments.claims").joinpath("studies", scale)))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def study_files(name: str, scale: Scale) -> list[Path]:
    """The file of a study at a scale, and those of its variants behind it."""
    known = studies(scale)
    chosen = [file for stem, file in known.items() if stem == name or stem.startswith(f"{name}_")]
    if not chosen:
        raise ConfigError(f"no study {name!r} at scale {scale!r}{nearest(name, known)}")
    return chosen


def load_studies(name: str, scale: Scale, places: Mapping[str, str] | None = None) -> list[Study]:
    """The study of that name at a scale, and its variants; `places` says where data sets are, by name."""
    found = [(file, load(file)) for file in study_files(name, scale)]
    return [
        load(file, [f"data.path={places[study.data.name]}"]) if places and study.data.name in places else study
        for file, study in found
    ]
