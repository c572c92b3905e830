"""DSGD-AC's consensus model lies flatter than that of DSGD and of centralized SGD, also at equal training loss."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, higher, lower, together, unmeasured
from dissensus.experiments.claims.quantities import at_equal_loss, final, measured, path
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.errors import ConfigError
from dissensus.experiments.results import Results

MEASURES = {
    "hessian_trace": "Hessian trace",
    "top_eigenvalue": "largest eigenvalue",
    "average_sharpness": "average-direction sharpness",
}
ALONG = ("hessian_trace", "top_eigenvalue")
"""Those that are measured along the way, too."""


@claim(
    "dsgd-ac-flatter",
    title="DSGD-AC finds flatter consensus models than DSGD and than centralized SGD",
    statement=(
        "Adaptive consensus (γ falling with the learning rate) ends in flatter minima: at the averaged model the "
        "Hessian's trace and largest eigenvalue and the mean rise of the loss under random perturbations are smaller "
        "than after DSGD with full mixing and than after centralized SGD, and not only because it fits less."
    ),
    source=(
        "Wang and Johansson 2026, arXiv:2602.02899 (abstracts of both versions: flatter minima; that they measure the "
        "largest eigenvalue is known from their code; trace, average direction and equal training loss are ours)"
    ),
    measured=(
        "trace, largest eigenvalue and average-direction sharpness of the training loss at the consensus model at the "
        "end; trace and eigenvalue once more where both arms have the same training loss (the larger of the two "
        "final ones; the arm that fits more is followed back along its path)"
    ),
    rule=(
        "paired over seeds, p of the t test (and of the sign-flip test where there are pairs enough) corrected by Holm "
        "over all parts, level 0.05; every part has to be supported"
    ),
    budget={"tiny": "1 to 3 min", "small": "2 hours", "full": "a cluster: 30 runs of WRN-16-8, 30 of WRN-28-10"},
    studies=("dsgd-ac",),
)
def dsgd_ac_flatter(at: Evidence) -> list[Part]:
    """Asks every variant of the study."""
    return flatter(*at.found["dsgd-ac"])


def flatter(*studies: Results) -> list[Part]:
    """The parts for studies with the arms `dsgd-ac`, `dsgd` and `centralized`."""
    return together(studies, _asked)


def _asked(results: Results) -> list[Asked | Part]:
    asked: list[Asked | Part] = []
    for control in ("dsgd", "centralized"):
        other = results.label(control)
        for name, measure in MEASURES.items():
            words = f"smaller {measure} than {other}, at the end"
            if measured(results, name, "dsgd-ac", control):
                ours, theirs = (final(results, name, arm) for arm in ("dsgd-ac", control))
                asked.append(lower(words, ours, theirs))
            else:
                asked.append(unmeasured(words))
        for name in ALONG:
            words = f"smaller {MEASURES[name]} than {other}, at equal training loss"
            if all(len(path(results, name, arm)[0]) > 2 for arm in ("dsgd-ac", control)):
                ours, theirs = at_equal_loss(results, name, "dsgd-ac", control)
                asked.append(lower(words, ours, theirs, unit="log ratio"))
            else:
                asked.append(unmeasured(words))
        gap = (final(results, "train_loss", arm) for arm in ("dsgd-ac", control))
        asked.append(higher(f"fits less than {other}: training loss", *gap, unit="nats", counts=False))
    if not any(isinstance(one, Asked) and one.counts for one in asked):
        raise ConfigError(f"study {results.name!r} measured none of {', '.join(MEASURES)}")
    return asked
