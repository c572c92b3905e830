"""The sections of a study's configuration: what may be said of data, model, topology, training and probes.

Every key has a default. What is named (a data set, a model, a topology, an optimizer) takes its own parameters as
further keys of its section.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dissensus.theory.errors import DissensusError

Positive = Annotated[int, Field(ge=1)]
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
