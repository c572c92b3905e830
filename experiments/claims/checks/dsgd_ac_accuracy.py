"""DSGD-AC's consensus model is better on the test set than that of DSGD and of centralized SGD."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, higher, lower, power_note, together
from dissensus.experiments.claims.quantities import final
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results


@claim(
    "dsgd-ac-accuracy",
    title="DSGD-AC reaches a higher test accuracy than DSGD and than centralized SGD",
    statement=(
        "On image classification the averaged model after DSGD-AC classifies the test set better than after DSGD with "
        "full mixing and than after centralized SGD with the same global batch."
    ),
    source="Wang and Johansson 2026, arXiv:2602.02899 (abstracts; the tables of accuracies were not at hand)",
    measured="test accuracy of the consensus model at the end, in points; its test loss beside it",
    rule=(
        "paired over seeds, p of the t test (and of the sign-flip test where there are pairs enough) corrected by Holm "
        "over the two comparisons of accuracy, level 0.05; both have to be supported. Test loss only informs"
    ),
    budget={"tiny": "1 to 3 min", "small": "2 hours", "full": "a cluster: 30 runs of WRN-16-8, 30 of WRN-28-10"},
    studies=("dsgd-ac",),
)
def dsgd_ac_accuracy(at: Evidence) -> list[Part]:
    """Asks every variant of the study."""
    return better(*at.found["dsgd-ac"])


def better(*studies: Results) -> list[Part]:
    """The parts for studies with the arms `dsgd-ac`, `dsgd` and `centralized`."""
    return together(studies, _asked)


def _asked(results: Results) -> list[Asked]:
    asked: list[Asked] = []
    note = power_note(len(results.seeds), 2) if len(results.seeds) > 1 else ""
    for control in ("dsgd", "centralized"):
        other = results.label(control)
        ours, theirs = (100 * final(results, "test_accuracy", arm) for arm in ("dsgd-ac", control))
        asked.append(higher(f"higher test accuracy than {other}", ours, theirs, unit="points", note=note))
        ours, theirs = (final(results, "test_loss", arm) for arm in ("dsgd-ac", control))
        asked.append(lower(f"lower test loss than {other}", ours, theirs, unit="nats", counts=False))
    return asked
