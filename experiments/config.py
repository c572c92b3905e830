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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.quantities import EXPECTED, Direction, check_known
from dissensus.theory.errors import DissensusError, nearest

Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*$")]
_SHARED = ("name", "seeds", "decision", "arms")
"""What no arm may change: these say which runs there are and how they are compared."""
BatchNorm = Literal["frozen", "average", "local", "recalibrate"]


class Section(BaseModel):
    """A part of a study that knows all its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """Something from a registry: the keys beside its own are the parameters of what is named."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of what is named."""
        return dict(self.model_extra or {})


class Data(Named):
    """The data set, and how its training samples come to the workers.

    Keys beside these are parameters of the partition, of the augmentation, or else of the data set.
    """

    name: str = "digits"
    partition: str = "shuffled"
    """`shuffled`: dealt anew to all workers every epoch (what a DistributedSampler does); `iid`: fixed equal shards;
    `dirichlet`, `shards`, `quantity`, `power-law`: fixed shards that are not alike."""
    augment: str | None = None
    """Random changes of the training inputs by name, such as `crop-flip`."""

    @model_validator(mode="after")
    def _settled(self) -> Data:
        if self.partition != "shuffled" or self.augment is not None or self.model_extra:
            from dissensus.experiments.data.handling import check_handling

            check_handling(self)
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the data set."""
        others = {**self.partition_parameters, **self.augment_parameters}
        return {key: value for key, value in (self.model_extra or {}).items() if key not in others}

    @property
    def partition_parameters(self) -> dict[str, Any]:
        """The parameters of the partition."""
        if not self.model_extra:
            return {}
        from dissensus.experiments.data.partition import PARTITIONS

        known = PARTITIONS.parameters(self.partition)
        return {key: value for key, value in self.model_extra.items() if key in known}

    @property
    def augment_parameters(self) -> dict[str, Any]:
        """The parameters of the augmentation."""
        if self.augment is None or not self.model_extra:
            return {}
        from dissensus.experiments.data.augmentation import AUGMENTATIONS

        known = AUGMENTATIONS.parameters(self.augment)
        return {key: value for key, value in self.model_extra.items() if key in known}


class Model(Named):
    """The model that every worker trains."""

    name: str = "mlp"


class TopologyChoice(Named):
    """Who mixes with whom."""

    name: str = "ring"


class Optimizer(Named):
    """The local move: any elementwise optimizer of `torch.optim`, by its name in lower case."""

    name: str = "sgd"


class Rate(Section):
    """The learning rate over the steps: a linear warm-up to the peak, then constant or a cosine to its last value."""

    peak: Annotated[float, Field(gt=0)] = 0.1
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = 0
    warmup_from: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The first rate as a share of the peak."""
    last: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where the cosine would arrive one step after the last, as a share of the peak."""


class Train(Section):
    """How long and how wide."""

    steps: Positive = 1000
    workers: Positive = 8
    batch: Positive = 16
    """Samples per worker and step."""
    gradients: Literal["auto", "vmap", "loop"] = "vmap"
    dtype: Literal["float32", "float64"] = "float32"
    threads: Positive = 1
    """Threads of torch in one cell; part of the configuration because the order of sums depends on it."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """The largest 2-norm of a worker's gradient."""
    accumulate: Positive | None = None
    """Into how many micro-batches the batch of a worker is cut."""
    autocast: Literal["bfloat16"] | None = None
    """Computes losses in mixed precision."""
    on_nan: Literal["stop", "isolate"] | None = None
    """What becomes of a worker whose numbers are not finite; `stop` if nothing is said."""
    start: Literal["equal", "independent"] | None = None
    """Whether all workers start at one point, which is what happens if nothing is said, or each at one of its own."""
    keep: bool | None = None
    """Keeps the state at the end beside the records (`state.pt`), to be looked at with `dissensus probe`."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints, which the run goes on from with --resume; the end is one, too."""
    checkpoint_keep: Positive | None = None
    """How many of them stay; 3 if nothing is said."""


class Faults(Section):
    """What goes wrong, and when, as a function of the seed: links that fail and workers that are away."""

    drop: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of steps at which a link is down, both ways."""
    burst: Annotated[float, Field(ge=1)] | None = None
    """How many steps an outage of a link takes on average; independent steps unless given."""
    away: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of steps at which a worker is away: it neither computes nor moves nor exchanges anything."""
    stay: Annotated[float, Field(ge=1)] | None = None
    """How many steps a worker stays away on average; independent steps unless given."""
    straggler: Annotated[int, Field(ge=0)] | None = None
    """A worker that is slow for good."""
    every: Positive = 4
    """The straggler takes part in every so-manyth step."""


class Probes(Section):
    """What is measured and how often. Everything is also measured at the end."""

    every: Positive = 25
    """Steps between loss, accuracy and consensus distance."""
    curvature_every: Annotated[int, Field(ge=0)] = 250
    """Steps between Hessian trace, envelope, alignment and gradient noise; 0: only at the end, and no prediction."""
    curvature_at: str | None = None
    """The same as a schedule, in place of `curvature_every`: `epoch`, `epoch 5`, `log 12` (evenly spaced in log t)."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The part of the time that curvature may take during training; what would exceed it is left out, and recorded."""
    curvature_of: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Single workers whose Hessian trace is measured at the same times, beside the consensus model's."""
    samples: Positive | None = None
    """Training samples under the Hessian and the envelope; all if not said."""
    trace_error: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The relative half-width of the final trace's 95 % interval at which its estimation stops; before the end, 0.1."""
    noise_batches: Annotated[int, Field(ge=0)] = 64
    """Batches of one worker whose gradient noise is measured at each of these times; 0: no noise, and no prediction."""
    eigenvalue: bool | None = None
    """Measures the largest eigenvalue whenever curvature is looked at, not only at the end."""
    bn: BatchNorm = "average"
    """What is done about BatchNorm in the consensus model, if there is any."""
    at_end: tuple[Literal["average", "captured", "dispersion"], ...] | None = None
    """What is measured besides, once, at the end: the names are those of `at_end`."""
    radius: Annotated[float, Field(gt=0)] | None = None
    """The length of the perturbations of `average`; 0.05 if nothing is said."""

    @field_validator("noise_batches")
    @classmethod
    def _spread(cls, count: int) -> int:
        if count == 1:
            raise ValueError("one batch has no spread: take 2 or more, or 0 to leave gradient noise out")
        return count

    @field_validator("curvature_at")
    @classmethod
    def _known_schedule(cls, text: str | None) -> str | None:
        if text is not None:
            from dissensus.probes.schedule import schedule

            try:
                schedule(text, steps=1, steps_per_epoch=1.0)
            except DissensusError as error:
                raise ValueError(str(error)) from None
        return text


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
            if path.split(".")[0] in _SHARED:
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
        plain = resolved(self)
        for path, value in flatten(chosen.changes).items():
            place(plain, path, value)
        plain["arms"] = {arm: resolved(chosen.model_copy(update={"changes": {}}))}
        plain["seeds"] = [seed]
        del plain["decision"]
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

    def label(self, arm: str) -> str:
        """What a figure calls an arm."""
        return self.arms[arm].label or arm


def resolved(value: BaseModel) -> dict[str, Any]:
    """Everything as plain data with the defaults filled in, ready for TOML (which has no null) and JSON."""
    return value.model_dump(mode="json", exclude_none=True)


def place(tree: dict[str, Any], path: str, value: Any) -> None:
    """Writes the value at a dotted path, making the tables on its way."""
    *tables, key = path.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"cannot set {path!r}: {table!r} is a value, not a section")
    tree[key] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested tables by dotted path."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, f"{path}."))
        elif not isinstance(value, Mapping):
            leaves[path] = value
    return leaves


def difference(a: Study, b: Study) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two studies differ, with both values (`None`: not set)."""
    left, right = flatten(resolved(a)), flatten(resolved(b))
    keys = dict.fromkeys([*left, *right])
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}
