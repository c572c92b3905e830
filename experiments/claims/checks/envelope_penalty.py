"""The revision's claim: adaptive consensus makes the envelope penalty larger, whatever becomes of the alignment."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, higher, lower, together
from dissensus.experiments.claims.quantities import final
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results


@claim(
    "envelope-penalty",
    title="Adaptive consensus raises the Hessian-weighted envelope penalty, though alignment may fall",
    statement=(
        "Keeping the disagreement alive makes the loss of the workers around the averaged model exceed that model's "
        "own loss by more than under DSGD, even where the disagreement is less aligned with sharp directions."
    ),
    source=(
        "Wang and Johansson 2026, arXiv:2602.02899, second version (abstract; its formula of the penalty "
        "was not to be had, this one is our reading)"
    ),
    measured=(
        "the envelope (1/n) Σ L(x_i) − L(x̄) at the end, measured directly, and the normalised alignment "
        "tr(HΣ) d / (tr H tr Σ), DSGD-AC against DSGD"
    ),
    rule=("paired over seeds, level 0.05, on the envelope. The alignment only informs: the claim allows either sign"),
    budget={"tiny": "1 to 3 min", "small": "2 hours", "full": "a cluster: 30 runs of WRN-16-8, 30 of WRN-28-10"},
    studies=("dsgd-ac",),
)
def envelope_penalty(at: Evidence) -> list[Part]:
    """Asks every variant of the study."""
    return penalty(*at.found["dsgd-ac"])


def penalty(*studies: Results) -> list[Part]:
    """The parts for studies with the arms `dsgd-ac` and `dsgd`."""
    return together(studies, _asked)


def _asked(results: Results) -> list[Asked]:
    envelopes = (final(results, "envelope", arm) for arm in ("dsgd-ac", "dsgd"))
    alignments = (final(results, "alignment_normalised", arm) for arm in ("dsgd-ac", "dsgd"))
    return [
        higher("larger envelope penalty than DSGD", *envelopes, unit="nats"),
        lower("weaker normalised alignment than DSGD", *alignments, counts=False),
    ]
