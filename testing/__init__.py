"""Strategies and laws that check topologies, algorithms and engines: ours, and yours.

Needs hypothesis: `pip install 'dissensus[testing]'`.
"""

if __name__ != "dissensus.testing":
    raise ImportError(f"import dissensus.testing, not {__name__}: the repository folder is not a top-level package")

try:
    import hypothesis as _hypothesis  # noqa: F401
except ImportError:
    raise ImportError("dissensus.testing needs hypothesis: pip install 'dissensus[testing]'") from None

from dissensus.algorithms.engines.distributed.injection import Injection
from dissensus.testing.algorithm_laws import ALGORITHM_LAWS, check_algorithm, variants
from dissensus.testing.dense_report import dense_report
from dissensus.testing.dense_topologies import dense_rounds
from dissensus.testing.engine_laws import ENGINE_LAWS, check_engine
from dissensus.testing.event_driven import simulated_all_reduce_times, simulated_finish_times
from dissensus.testing.laws.verdict import Verdict
from dissensus.testing.mutants import MUTANTS, Mutant, mutant_table
from dissensus.testing.strategies import (
    digraphs,
    gammas,
    graphs,
    mixing_matrices,
    push_sum_matrices,
    schedules,
    seeds,
    topologies,
)
from dissensus.testing.topology_laws import check_mixing_matrix, check_report, check_rounds, check_topology

__all__ = [
    "ALGORITHM_LAWS",
    "ENGINE_LAWS",
    "MUTANTS",
    "Injection",
    "Mutant",
    "Verdict",
    "check_algorithm",
    "check_engine",
    "check_mixing_matrix",
    "check_report",
    "check_rounds",
    "check_topology",
    "dense_report",
    "dense_rounds",
    "digraphs",
    "gammas",
    "graphs",
    "mixing_matrices",
    "mutant_table",
    "push_sum_matrices",
    "schedules",
    "seeds",
    "simulated_all_reduce_times",
    "simulated_finish_times",
    "topologies",
    "variants",
]
