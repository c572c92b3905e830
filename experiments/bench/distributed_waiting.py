"""What waiting costs by itself: where computing takes longer for one worker now, for another then, no exchange is free.

Whoever waits for everybody takes as long as the slowest, whoever waits for one other as long as the slower of both. How
long that is follows from the draws of the very steps that were timed, by the recursions of `theory.runtime` with
exchanges that take no time. The ratio of the two is what decentralization may gain there; what is measured beyond it is
what an all-reduce costs more than a message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.experiments.bench.distributed_contenders import SCHEDULES
from dissensus.experiments.bench.distributed_models import factor
from dissensus.experiments.bench.distributed_settings import Setting
from dissensus.experiments.bench.distributed_worker import AHEAD
from dissensus.theory.registry import topology
from dissensus.theory.runtime import all_reduce_times, even_rounds, finish_times


def waiting_allows(setting: Setting, ours: Sequence[int], ddp: Sequence[int], steps: int) -> float:
    """How many times as fast as with everybody a step is with the neighbours of a schedule: medians of blocks.

    Args:
        setting: with noise; computing is pauses alone.
        ours: with which of its steps each measured block began, of who waits for neighbours.
        ddp: the same of who waits for all.
        steps: of a block.
    """
    rounds = even_rounds(topology(SCHEDULES[setting.schedule], setting.size), 0.0)
    turned = [[rounds[(first + k) % len(rounds)] for k in range(len(rounds))] for first in ours]
    ended = [finish_times(own, _drawn(setting, at, steps)).mean(axis=1) for own, at in zip(turned, ours, strict=True)]
    all_ended = [all_reduce_times(0.0, _drawn(setting, at, steps)) for at in ddp]
    return _of_blocks(all_ended) / _of_blocks(ended)


def _drawn(setting: Setting, first: int, steps: int) -> np.ndarray:
    """How long each worker pauses in the steps of a block, and in those ahead of it."""
    span = range(first, first + AHEAD + steps)
    return np.array([[factor(setting.sigma, t, i) for i in range(setting.size)] for t in span])


def _of_blocks(ended: Sequence[np.ndarray]) -> float:
    return float(np.median([times[-1] - times[AHEAD] for times in ended]))
