"""DBench: accuracy grows with the number of connections and shrinks with the dispersion of parameter norms."""

from __future__ import annotations

import numpy as np

from dissensus.experiments.claims.base import Part
from dissensus.experiments.claims.evidence import Evidence
from dissensus.experiments.claims.judging import decided, higher, lower
from dissensus.experiments.claims.quantities import final
from dissensus.experiments.claims.registry import claim
from dissensus.experiments.results import Results

NEIGHBOURS = {"n2": 2, "n4": 4, "n8": 8, "n16": 16, "n31": 31}


@claim(
    "connections",
    title="Accuracy grows with the number of connections and shrinks with the dispersion of parameter norms",
    statement=(
        "In decentralized training accuracy goes with the number of connections of the communication graph, and is "
        "sensitive to how much the norms of parameter tensors differ between the replicas."
    ),
    source=(
        "Xie, Yin, Zhou, Oral and Wang 2025, arXiv:2509.12213 (DBench, Ada; abstract and third-party summaries). They "
        "look at replicas; that the averaged model is another matter is our addition"
    ),
    measured=(
        "over 2, 4, 8, 16 and all 31 neighbours of 32 workers at a constant rate: the mean test accuracy of the single "
        "workers, its slope per doubling of the neighbours and its slope against the coefficient of variation of the "
        "workers' parameter norms (mean over tensors), fitted within each seed"
    ),
    rule=(
        "slopes per seed against zero, Holm over the two parts, level 0.05 (both parts come from one ordering of the "
        "graphs, so they are no independent evidence). The consensus model's slope only informs"
    ),
    budget={"tiny": "1 to 2 min", "small": "1 hour", "full": "a cluster: 25 runs of ResNet-20"},
    studies=("connections",),
)
def connections(at: Evidence) -> list[Part]:
    """Fits the slopes."""
    return slopes(at.results("connections"))


def slopes(results: Results) -> list[Part]:
    """The parts for one study whose arms are named after their numbers of neighbours."""
    arms = list(NEIGHBOURS)
    doublings = np.log2(list(NEIGHBOURS.values()))
    single = np.stack([100 * final(results, "test_accuracy", arm, "mean") for arm in arms], axis=1)
    average = np.stack([100 * final(results, "test_accuracy", arm) for arm in arms], axis=1)
    spread = np.stack([final(results, "norm_dispersion", arm) for arm in arms], axis=1)
    per_doubling = _slopes([doublings] * len(single), single)
    with_spread = _slopes(100 * spread, single)
    consensus = _slopes([doublings] * len(average), average)
    unit, percent = "points per doubling", "points per percent of dispersion"
    return decided(
        [
            higher("single workers: accuracy grows with the connections", per_doubling, 0.0, unit=unit),
            lower("single workers: accuracy falls with the dispersion of norms", with_spread, 0.0, unit=percent),
            higher("consensus model: accuracy grows with them", consensus, 0.0, unit=unit, counts=False),
        ]
    )


def _slopes(x: np.ndarray | list[np.ndarray], y: np.ndarray) -> np.ndarray:
    """Least-squares slopes, row by row; exactly 0 where x or y does not vary, which rounding must not turn into one."""
    slopes = []
    for a, b in zip(x, y, strict=True):
        away = a - a.mean()
        spread = float(away @ away)
        slopes.append(float(away @ b) / spread if spread > 0 and np.ptp(b) > 0 else 0.0)
    return np.array(slopes)
