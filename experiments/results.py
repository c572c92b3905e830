"""What the run directories of one study say together: curves, final numbers and predictions per arm, seeds as rows.

Only runs that ended `ok` enter the numbers; all others are listed beside them. Arms are compared on the seeds that
every one of them finished, so that pairs stay pairs. Where that would be none, the arms that finished the fewest are
left out: one that diverges on every seed may not take a whole sweep with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dissensus.experiments.config import Decision, Study, resolved
from dissensus.experiments.curves import Curve
from dissensus.experiments.dotted import flatten
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.loading import load
from dissensus.experiments.records import STUDY_FILE, Run, read_runs


@dataclass(frozen=True)
class Results:
    """The runs of one study."""

    name: str
    runs: tuple[Run, ...]
    order: tuple[str, ...]
    """The arms in the order in which they are shown."""

    decision: Decision = field(default_factory=Decision)
    rule: str = ""
    """What the study decides by now (`Study.rule`)."""

    @classmethod
    def of(cls, runs: Iterable[Run], order: Iterable[str] = ()) -> Results:
        """From runs; the arms in the given order, others behind in the order of their names."""
        runs = tuple(runs)
        if not runs:
            raise ConfigError("there are no runs to report")
        names = {run.study.name for run in runs}
        if len(names) > 1:
            raise ConfigError(
                f"these runs belong to different studies: {', '.join(sorted(names))}; report one at a time"
            )
        arms = _comparable(runs)
        listed = [arm for arm in order if arm in arms]
        return cls(names.pop(), runs, (*listed, *sorted(arms - set(listed))))

    @classmethod
    def read(cls, folder: Path | str) -> Results:
        """Reads the runs of the study in a folder; runs of earlier versions of the study beside them are left out."""
        folder = Path(folder)
        runs = read_runs(folder)
        if not runs:
            raise ConfigError(f"{folder} holds no run directory (a folder with a config.toml)")
        if not (folder / STUDY_FILE).exists():
            return cls.of(runs)
        study = load(folder / STUDY_FILE)
        digests = {cell.digest for cell in study.cells()}
        own = [run for run in runs if run.study.digest in digests]
        if not own:
            raise ConfigError(
                f"none of the {len(runs)} runs in {folder} belongs to the study of its {STUDY_FILE}: run that study, "
                "or remove the file to report the runs as they are"
            )
        found = cls.of(own, study.arms)
        # said by name: with runs missing, the last arm that is there need not be the last one of the study
        return replace(
            found, decision=study.decision.model_copy(update={"treatment": study.treatment}), rule=study.rule
        )

    @property
    def treatment(self) -> str:
        """The arm that the statements are about."""
        return self.decision.treatment or self.order[-1]

    @property
    def controls(self) -> list[str]:
        """The arms that the treatment is held against."""
        named = self.decision.controls
        return [arm for arm in self.order if arm != self.treatment and (named is None or arm in named)]

    @cached_property
    def before_the_rule(self) -> list[Run]:
        """Runs that were begun when the study had other arms, seeds or rules; a run of its own has none."""
        return [run for run in self.runs if self.rule and run.meta.get("rule", self.rule) != self.rule]

    @cached_property
    def unfinished(self) -> list[Run]:
        """Runs that failed or were interrupted."""
        return [run for run in self.runs if run.status != "ok"]

    @property
    def left_out(self) -> list[str]:
        """The arms that have runs but no number."""
        return sorted({run.arm for run in self.runs} - set(self.order))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that every arm finished."""
        return sorted(set.intersection(*({r.seed for r in self.runs if self._counts(r, arm)} for arm in self.order)))

    @cached_property
    def by_arm(self) -> dict[str, list[Run]]:
        """The runs that enter the numbers, per arm, in the order of the seeds."""
        return {
            arm: sorted((r for r in self.runs if self._counts(r, arm) and r.seed in self.seeds), key=lambda r: r.seed)
            for arm in self.order
        }

    @property
    def first(self) -> Run:
        """A run that enters the numbers."""
        if not self.seeds:
            raise ConfigError(f"study {self.name!r} has no seed that all of its arms finished: {self._listed()}")
        return self.by_arm[self.order[0]][0]

    def label(self, arm: str) -> str:
        """What an arm is called in tables and figures."""
        return self.labels[arm]

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of every arm; where two share one, the names of the arms tell them apart."""
        said = {arm: self.by_arm[arm][0].study.label(arm) for arm in self.order}
        count = Counter(said.values())
        return {arm: label if count[label] == 1 else f"{label} ({arm})" for arm, label in said.items()}

    def final(self, name: str, *, which: str | None = None, arm: str) -> np.ndarray:
        """The last value of a quantity, one per seed; nan where it was not measured."""
        return np.array([_last(run, name, which) for run in self.by_arm[arm]])

    def errors(self, name: str, arm: str) -> np.ndarray:
        """The half-widths of the estimator's own 95 % interval at the end, one per seed."""
        halves = []
        for run in self.by_arm[arm]:
            row = run.last(name) or {}
            low, high = row.get("interval") or (None, None)
            halves.append((high - low) / 2 if low is not None and high is not None else 0.0)
        return np.array(halves)

    def curve(self, name: str, arm: str, *, which: str | None = None, scale: float = 1.0) -> Curve:
        """A quantity over the steps: nan where it was not measured at all."""
        read = [dict(zip(*run.series(name, which=which), strict=True)) for run in self.by_arm[arm]]
        steps = sorted(set().union(*read)) or [0]
        return Curve(np.array(steps), scale * np.array([[one.get(t, np.nan) for t in steps] for one in read]))

    def curves(
        self, name: str, *, which: str | None = None, scale: float = 1.0, arms: Iterable[str] | None = None
    ) -> dict[str, Curve]:
        """The curves of some arms, or of all, by label."""
        chosen = self.order if arms is None else arms
        return {self.label(arm): self.curve(name, arm, which=which, scale=scale) for arm in chosen}

    def differences(self) -> dict[str, dict[str, object]]:
        """The dotted keys in which arms differ: key -> label -> value, arm names themselves left out."""
        leaves = {arm: flatten(resolved(_unnamed(self.by_arm[arm][0].study))) for arm in self.order}
        base = leaves[self.order[0]]
        keys = dict.fromkeys(key for of in leaves.values() for key in of)
        return {
            key: {self.label(arm): of.get(key) for arm, of in leaves.items()}
            for key in keys
            if any(of.get(key) != base.get(key) for of in leaves.values())
        }

    def _counts(self, run: Run, arm: str) -> bool:
        return run.arm == arm and run.status == "ok"

    def _listed(self) -> str:
        return "; ".join(
            f"{r.arm} seed {r.seed} {r.status} {r.summary.get('error', '')}".strip() for r in self.unfinished
        )


def _comparable(runs: Iterable[Run]) -> set[str]:
    """The arms, without those that finished the fewest seeds until the others have one in common."""
    finished: dict[str, set[int]] = {}
    for run in runs:
        finished.setdefault(run.arm, set()).update([run.seed] if run.status == "ok" else [])
    while len(finished) > 1 and not set.intersection(*finished.values()):
        del finished[min(finished, key=lambda arm: len(finished[arm]))]
    return set(finished)


def _last(run: Run, name: str, which: str | None) -> float:
    steps, values = run.series(name, which=which)
    return values[int(np.argmax(steps))] if steps else float("nan")


def _unnamed(study: Study) -> Study:
    """The study with its only arm called `arm`, so that two arms can be compared key by key."""
    _, arm, _ = study.only
    return study.model_copy(update={"arms": {"arm": arm.model_copy(update={"label": None})}, "seeds": (0,)})
