"""The first version's claim: what adaptive consensus keeps of the disagreement lies along the dominant subspace."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, higher, together, unmeasured
from dissensus.experiments.claims.quantities import final, measured
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results


@claim(
    "dominant-alignment",
    title="The disagreement that adaptive consensus keeps aligns with the dominant Hessian subspace",
    statement=(
        "Consensus errors under DSGD-AC systematically align with the dominant subspace of the Hessian, which is what "
        "makes them a useful perturbation. In our reading that asks for two things: more of the disagreement lies "
        "along sharp directions than chance would put there, and more than under DSGD, whose errors vanish."
    ),
    source=(
        "Wang and Johansson 2026, arXiv:2602.02899, first version (abstract; the second version reworked it). That it "
        "has to be stronger than DSGD's is our reading, not theirs"
    ),
    measured=(
        "at the end of training: the share of tr Σ in the space of the ten top eigenvectors against 10/d, the "
        "normalised alignment tr(HΣ) d / (tr H tr Σ) against 1 and against DSGD's"
    ),
    rule="paired over seeds, Holm over the three parts, level 0.05; every part has to be supported",
    budget={"tiny": "1 to 3 min", "small": "2 hours", "full": "a cluster: 30 runs of WRN-16-8, 30 of WRN-28-10"},
    studies=("dsgd-ac",),
)
def dominant_alignment(at: Evidence) -> list[Part]:
    """Asks every variant of the study."""
    return aligned(*at.found["dsgd-ac"])


def aligned(*studies: Results) -> list[Part]:
    """The parts for studies with the arms `dsgd-ac` and `dsgd`."""
    return together(studies, _asked)


def _asked(results: Results) -> list[Asked | Part]:
    asked: list[Asked | Part] = []
    ours, theirs = (final(results, "alignment_normalised", arm) for arm in ("dsgd-ac", "dsgd"))
    asked.append(higher("normalised alignment above 1, which is no preference", ours, 1.0))
    asked.append(higher("normalised alignment stronger than DSGD's", ours, theirs))
    if not measured(results, "captured", "dsgd-ac"):
        asked.append(unmeasured("share in the top-10 space above chance"))
    else:
        share, chance = final(results, "captured", "dsgd-ac"), final(results, "captured_chance", "dsgd-ac")
        asked.append(higher("share in the top-10 space above chance", share, chance))
        asked.append(higher("more than half of it lies in the top-10 space", share, 0.5, counts=False))
    return asked
