r"""dissensus: what happens when the workers that train one model are allowed to disagree.

Four rooms, one import name:

- `dissensus.theory`: mathematics only (numpy, scipy): topologies, mixing matrices, spectra, predictions.
- `dissensus.algorithms`: each algorithm once, as a recursion on stacked workers, and the engines that run it.
- `dissensus.probes`: instruments for curvature and disagreement that leave no trace on what they look at.
- `dissensus.experiments`: data, configuration, runner, statistics, figures, reports, the command line.

and `dissensus.testing`, the laws and strategies that check all of it, for your own algorithms and topologies too.

Importing this package imports none of them: a room (and torch with it) is loaded when it is first touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dissensus import algorithms, experiments, probes, testing, theory
    from dissensus.algorithms import decentralize, init_process_group, simulate
    from dissensus.theory import topology

__version__ = "0.1.0"

_ROOMS = ("algorithms", "experiments", "probes", "testing", "theory")
_DOORS = {
    "decentralize": "algorithms",
    "init_process_group": "algorithms",
    "simulate": "algorithms",
    "topology": "theory",
}

__all__ = [
    "__version__",
    "algorithms",
    "decentralize",
    "experiments",
    "init_process_group",
    "probes",
    "simulate",
    "testing",
    "theory",
    "topology",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"dissensus.{name}")
    if name in _DOORS:
        return getattr(importlib.import_module(f"dissensus.{_DOORS[name]}"), name)
    raise AttributeError(f"module 'dissensus' has no attribute {name!r}; it offers {', '.join(__all__[1:])}")


def __dir__() -> list[str]:
    return sorted(__all__)
