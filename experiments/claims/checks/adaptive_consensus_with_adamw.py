"""The counter-evidence: adaptive consensus does not help a language model that is trained with AdamW."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import decided, higher, lower
from dissensus.experiments.claims.quantities import final
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results

WORTH = 0.002
"""Nats of validation loss below which an improvement is none."""


@claim(
    "adaptive-consensus-with-adamw",
    title="Adaptive consensus does not help AdamW on a language model",
    statement=(
        "Trained with AdamW, a language model's averaged validation loss is no lower with adaptive consensus than with "
        "plain mixing; in the author's runs it was slightly higher."
    ),
    source=(
        "Wang 2026, the public investigation in the repository tiny-llm (20M parameters, C4, four workers, one seed "
        "each: 3.6062 against 3.5959 on one-peer-exponential)"
    ),
    measured="validation loss of the consensus model at the end, adaptive consensus (p = 2 from 25 % on) against γ = 1",
    rule=(
        f"paired over seeds, level 0.05: supported if the gain is significantly below {WORTH} nats, not supported if "
        "significantly above it. That the loss is higher only informs"
    ),
    budget={"tiny": "2 min", "small": "3 hours", "full": "a cluster: 6 runs of a GPT-2-like model"},
    studies=("language",),
)
def adaptive_consensus_with_adamw(at: Evidence) -> list[Part]:
    """Compares the two."""
    return no_gain(at.results("language"))


def no_gain(results: Results) -> list[Part]:
    """The parts for one study with the arms `adaptive` and `plain`."""
    plain, adaptive = (final(results, "test_loss", arm) for arm in ("plain", "adaptive"))
    fits = (final(results, "train_loss", arm) for arm in ("adaptive", "plain"))
    words = f"gains less than {WORTH} nats of validation loss"
    return decided(
        [
            lower(words, plain - adaptive, 0.0, minimum=-WORTH, unit="nats"),
            higher("has a higher validation loss", adaptive, plain, unit="nats", counts=False),
            higher("has a higher training loss", *fits, unit="nats", counts=False),
        ]
    )
