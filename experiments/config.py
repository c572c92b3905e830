"""What a study is: the sections of its TOML file as checked values.

    name = "first"            # runs/<name>/...
    seeds = [0, 1, 2]         # the paired axis: all arms of a seed share start, data and order

    [data]
    name = "digits"           # further keys of [data], [model], [topology], [optimizer] and [arms.*] are the
    [model]                   # parameters of what is named, checked against its signature
    name = "mlp"
    width = 64
    [topology]
    name = "ring"
    [arms.dsgd-ac]
    algorithm = "dsgd-ac"
    p = 3.0

How files, overrides and errors with their places come together is in `loading`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dissensus.experiments.dotted import flatten, place
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.quantities import EXPECTED, Direction, check_known
from dissensus.experiments.sections import (
    Data,
    Faults,
    Model,
    Optimizer,
    Probes,
    Rate,
    Section,
    TopologyChoice,
    Train,
)
from dissensus.theory.errors import nearest

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*$")]
SHARED = ("name", "seeds", "decision", "arms")
"""What no arm may change: these say which runs there are and how they are compared."""


class Arm(BaseModel):
    """One line of the comparison: an algorithm with its parameters, and what else differs from the study."""

    model_config = ConfigDict(extra="allow", frozen=True)
    algorithm: str
    label: str | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the study that are different in this arm, such as `"topology.name" = "complete"`."""

    @field_validator("changes")
    @classmethod
    def _of_the_run(cls, changes: dict[str, Any]) -> dict[str, Any]:
        for path in flatten(changes):
            if path.split(".")[0] in SHARED:
                raise ValueError(f"{path!r} belongs to the whole study and cannot be different in one arm")
        return changes

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the algorithm."""
        return dict(self.model_extra or {})


class Decision(Section):
    """How the arms are compared; fixed in the file, before anything runs."""

    treatment: Name | None = None
    """The arm that the statements are about, against each of the controls; the last one if not said."""
    controls: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    """The arms that the treatment is held against; all others if not said."""
    expect: Annotated[dict[str, Direction], Field(min_length=1)] | None = None
    """What is stated of the treatment: a quantity, and whether it is `higher` or `lower` than the control's."""
    minimum_effect: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """By how much at least, in the unit of the records; 0 where nothing is said."""
    level: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    note: str = ""
    """How the setting came about, for the page to say beside the verdicts."""

    @model_validator(mode="after")
    def _known(self) -> Decision:
        check_known([*self.expected, *self.least])
        for name in self.least:
            if name not in self.expected:
                raise ValueError(f"minimum_effect speaks of {name!r}, of which nothing is expected: add it to expect")
        return self

    @property
    def expected(self) -> Mapping[str, Direction]:
        """What is stated; what the papers claim if nothing is said."""
        return self.expect or EXPECTED

    @property
    def least(self) -> Mapping[str, float]:
        """The smallest differences that count, where they are not 0."""
        return self.minimum_effect or {}

    def check_arms(self, arms: Iterable[str]) -> None:
        """Refuses a treatment or a control that is no arm, and a treatment that is its own control."""
        arms = list(arms)
        for key, chosen in [("treatment", self.treatment), *(("controls", name) for name in self.controls or ())]:
            if chosen is not None and chosen not in arms:
                raise ValueError(f"decision.{key} = {chosen!r} is no arm{nearest(chosen, arms)}")
        if (treatment := self.treatment or arms[-1]) in (self.controls or ()):
            raise ValueError(f"decision.controls names {treatment!r}, which is the treatment itself")


class Study(Section):
    """Arms times seeds, all else equal."""

    name: Name = "study"
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    data: Data = Data()
    model: Model = Model()
    topology: TopologyChoice = TopologyChoice()
    optimizer: Optimizer = Optimizer()
    lr: Rate = Rate()
    train: Train = Train()
    faults: Faults | None = None
    probes: Probes = Probes()
    decision: Decision = Decision()
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"a seed is listed twice in {list(seeds)}: every seed is one pair of runs")
        return seeds

    @model_validator(mode="after")
    def _warm(self) -> Study:
        if self.lr.warmup >= self.train.steps:
            raise ValueError(f"lr.warmup = {self.lr.warmup} must be shorter than train.steps = {self.train.steps}")
        self.decision.check_arms(self.arms)
        for worker in self.probes.curvature_of or ():
            if worker >= self.train.workers:
                last = self.train.workers - 1
                raise ValueError(f"probes.curvature_of names worker {worker}, but workers are counted from 0 to {last}")
        return self

    @property
    def treatment(self) -> str:
        """The arm that the statements are about."""
        return self.decision.treatment or list(self.arms)[-1]

    def cells(self) -> list[Study]:
        """One study per (seed, arm), each of which reproduces its run alone."""
        return [self.cell(arm, seed) for seed in self.seeds for arm in self.arms]

    def cell(self, arm: str, seed: int) -> Study:
        """The study of one run: one arm with its changes applied, one seed."""
        if arm not in self.arms:
            raise ConfigError(f"no arm {arm!r} in study {self.name!r}{nearest(arm, self.arms)}")
        chosen = self.arms[arm]
        plain = self.model_dump(mode="json", exclude_none=True, exclude={"arms", "decision"})
        for path, value in flatten(chosen.changes).items():
            place(plain, path, value)
        plain["arms"] = {arm: resolved(chosen.model_copy(update={"changes": {}}))}
        plain["seeds"] = [seed]
        return Study.model_validate(plain)

    @property
    def only(self) -> tuple[str, Arm, int]:
        """The arm and the seed of a single cell."""
        if len(self.arms) != 1 or len(self.seeds) != 1:
            raise ConfigError(f"study {self.name!r} is not one cell: {len(self.arms)} arms, {len(self.seeds)} seeds")
        name, arm = next(iter(self.arms.items()))
        return name, arm, self.seeds[0]

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that change with any key."""
        return hashlib.sha256(json.dumps(resolved(self), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def rule(self) -> str:
        """Eight hexadecimal digits that change with anything verdicts depend on beside the runs: a note is none."""
        decision = resolved(self.decision.model_copy(update={"note": "", "treatment": self.treatment}))
        told = json.dumps([decision, list(self.arms), list(self.seeds)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:8]

    def label(self, arm: str) -> str:
        """What a figure calls an arm."""
        return self.arms[arm].label or arm


def resolved(value: BaseModel) -> dict[str, Any]:
    """Everything as plain data with the defaults filled in, ready for TOML (which has no null) and JSON."""
    return value.model_dump(mode="json", exclude_none=True)
