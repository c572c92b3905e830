"""What a run remembers of its way, beside the engine: for its last records, and for going on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dissensus.algorithms.engines.stepping import StepRecord
from dissensus.experiments.prediction import Measure
from dissensus.probes.noise import NoiseMeasure


@dataclass
class History:
    """Learning rates and gammas of all steps so far, and the gradient noise where it was measured."""

    lrs: list[float] = field(default_factory=list)
    gammas: list[float] = field(default_factory=list)
    measures: dict[int, Measure] = field(default_factory=dict)
    probe_s: float = 0.0
    """Seconds that looking has taken."""

    def add(self, record: StepRecord) -> None:
        """One step more."""
        self.lrs.append(record.lr)
        self.gammas.append(1.0 if record.gamma is None else record.gamma)

    def measured(self, t: int, found: NoiseMeasure | None) -> None:
        """The noise at step t, if it was looked at."""
        if found is not None:
            self.measures[t] = (found.nodes, found.weights)

    @property
    def gamma(self) -> float | None:
        """That of the last step."""
        return self.gammas[-1] if self.gammas else None

    def saved(self) -> dict[str, Any]:
        """All of it as tensors and plain values."""
        return {
            "lrs": torch.tensor(self.lrs, dtype=torch.float64),
            "gammas": torch.tensor(self.gammas, dtype=torch.float64),
            "measures": {t: [torch.from_numpy(part.copy()) for part in pair] for t, pair in self.measures.items()},
            "probe_s": self.probe_s,
        }

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> History:
        """The opposite of `saved`."""
        measures = {t: (nodes.numpy(), weights.numpy()) for t, (nodes, weights) in saved["measures"].items()}
        return cls(saved["lrs"].tolist(), saved["gammas"].tolist(), measures, saved["probe_s"])
