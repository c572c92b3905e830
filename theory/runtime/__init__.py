"""How long an iteration takes, by all-reduce and by decentralized schedules, and which of them is faster when."""

from dissensus.theory.runtime.closed_forms import (
    Bounds,
    all_reduce_pace,
    explicit_bound,
    pace_bounds,
    path_bound,
)
from dissensus.theory.runtime.compute import (
    Compute,
    Constant,
    Empirical,
    Gamma,
    LogNormal,
    ShiftedExponential,
    Stragglers,
    expected_longest,
)
from dissensus.theory.runtime.links import Cluster, Link, even_rounds, rounds_on
from dissensus.theory.runtime.recursion import Order, Round, all_reduce_times, finish_times
from dissensus.theory.runtime.regime import Rivals, noiseless_regime, subgaussian_regime
from dissensus.theory.runtime.simulation import Pace, pace

__all__ = [
    "Bounds",
    "Cluster",
    "Compute",
    "Constant",
    "Empirical",
    "Gamma",
    "Link",
    "LogNormal",
    "Order",
    "Pace",
    "Rivals",
    "Round",
    "ShiftedExponential",
    "Stragglers",
    "all_reduce_pace",
    "all_reduce_times",
    "even_rounds",
    "expected_longest",
    "explicit_bound",
    "finish_times",
    "noiseless_regime",
    "pace",
    "pace_bounds",
    "path_bound",
    "rounds_on",
    "subgaussian_regime",
]
