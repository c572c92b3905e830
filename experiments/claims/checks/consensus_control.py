"""Consensus control: tight consensus matters early in training, disagreement does no harm, or helps, later."""

from __future__ import annotations

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import Asked, decided, higher, lower
from dissensus.experiments.claims.quantities import final
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results

HARM = 0.5
"""Points of accuracy below which a loss counts as no harm."""


@claim(
    "consensus-control",
    title="Tight consensus matters early, disagreement may help later",
    statement=(
        "Letting the workers drift apart in the first phase of training costs accuracy that tight consensus later does "
        "not bring back; in the later phases it costs little, and may help."
    ),
    source=(
        "Kong, Lin, Koloskova, Jaggi and Stich 2021, Consensus Control for Decentralized Deep Learning (read through a "
        "third party's summary: uncontrolled distance costs 2.4 points in the first phase, gains 0.4 in the second, "
        "costs 0.3 in the last, on CIFAR-10 with 64 workers)"
    ),
    measured=(
        "test accuracy of the consensus model when the workers hardly mix (γ = 0.01 on the complete graph) during one "
        "third of training and average exactly otherwise"
    ),
    rule=(
        "paired over seeds, Holm over the parts, level 0.05: loose at first is worse than tight throughout and than "
        f"loose in a later third; loose in a later third is not worse than tight by {HARM} points. That it is better, "
        "and what happens with wrong labels, only informs"
    ),
    budget={"tiny": "1 to 2 min", "small": "1 hour", "full": "a cluster: 40 runs of ResNet-20"},
    studies=("phases", "phases-wrong-labels"),
)
def consensus_control(at: Evidence) -> list[Part]:
    """The phases with right labels decide; those with wrong ones inform."""
    return phases(at.results("phases")) + wrong_labels(at.results("phases-wrong-labels"))


def phases(results: Results) -> list[Part]:
    """The parts for one study with the arms `tight`, `early`, `middle`, `late`."""
    points = {arm: 100 * final(results, "test_accuracy", arm) for arm in ("tight", "early", "middle", "late")}
    asked: list[Asked] = [
        lower("loose at first is worse than tight throughout", points["early"], points["tight"], unit="points")
    ]
    for arm, when in (("middle", "in the middle"), ("late", "at the end")):
        words = f"loose at first is worse than loose {when}"
        asked.append(lower(words, points["early"], points[arm], unit="points"))
        words = f"loose {when} is not worse than tight throughout by {HARM} points"
        asked.append(higher(words, points[arm], points["tight"], minimum=-HARM, unit="points"))
        words = f"loose {when} is better than tight throughout"
        asked.append(higher(words, points[arm], points["tight"], unit="points", counts=False))
    return decided(asked)


def wrong_labels(results: Results) -> list[Part]:
    """What informs: the same where a fifth of the training labels is wrong."""
    points = {arm: 100 * final(results, "test_accuracy", arm) for arm in ("tight", "early", "middle", "late")}
    when = {"early": "at first", "middle": "in the middle", "late": "at the end"}
    asked = [
        higher(
            f"with wrong labels, loose {words} is better than tight throughout",
            points[arm], points["tight"], unit="points", counts=False,
        )
        for arm, words in when.items()
    ]  # fmt: skip
    return decided(asked)
