"""Which arms of a study are drawn in colour: all of them as long as there are colours, else those that are asked about.

Beyond that many, the treatment, the named controls, and the best and the worst arm by final test accuracy have colours;
all others are grey.
"""

from __future__ import annotations

import numpy as np

from dissensus.experiments.comparison import MANY
from dissensus.experiments.quantities import QUANTITY
from dissensus.experiments.results import Results
from dissensus.experiments.tables import finals


def in_colour(results: Results) -> list[str]:
    """The arms that have a colour, in the order of the study."""
    if len(results.order) <= MANY:
        return list(results.order)
    ranked = by_accuracy(results)
    named = results.controls if results.decision.controls else []
    first = dict.fromkeys([results.treatment, ranked[0], ranked[-1], *named])
    chosen = [arm for arm in first if arm in results.order][:MANY]
    return [arm for arm in results.order if arm in chosen]


def by_accuracy(results: Results) -> list[str]:
    """The arms from the best to the worst by final test accuracy; those that were not measured come last."""
    mean = {arm: finals(results, QUANTITY["test_accuracy"], arm).mean for arm in results.order}
    return sorted(results.order, key=lambda arm: -mean[arm] if np.isfinite(mean[arm]) else np.inf)


def chosen_words(results: Results) -> str:
    """What the colours mean, where not every arm has one."""
    if len(in_colour(results)) == len(results.order):
        return ""
    ranked = by_accuracy(results)
    best, worst = (results.label(ranked[at]) for at in (0, -1))
    named = ", the controls" if results.decision.controls else ""
    treatment = results.label(results.treatment) if results.treatment in results.order else "which finished no run"
    return (
        f"In colour are only the treatment ({treatment}){named}, and the best ({best}) and the "
        f"worst ({worst}) of all {len(results.order)} arms by final test accuracy. "
    )
