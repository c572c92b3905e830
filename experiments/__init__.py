"""What people run: data, configuration, runner, statistics, figures, reports, and the command line.

The names are loaded when they are first touched, so that the command line answers at once.
"""

if __name__ != "dissensus.experiments":
    raise ImportError(f"import dissensus.experiments, not {__name__}: the repository folder is not a top-level package")

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dissensus.experiments.config import Study
    from dissensus.experiments.demo import run_demo
    from dissensus.experiments.errors import ConfigError
    from dissensus.experiments.loading import load
    from dissensus.experiments.progress import Bar
    from dissensus.experiments.records import Run
    from dissensus.experiments.report import write_report
    from dissensus.experiments.results import Results
    from dissensus.experiments.runner import run_cell
    from dissensus.experiments.study import run_study

_HOMES = {
    "Bar": "progress",
    "ConfigError": "errors",
    "Results": "results",
    "Run": "records",
    "Study": "config",
    "load": "loading",
    "run_cell": "runner",
    "run_demo": "demo",
    "run_study": "study",
    "write_report": "report",
}

__all__ = [
    "Bar",
    "ConfigError",
    "Results",
    "Run",
    "Study",
    "load",
    "run_cell",
    "run_demo",
    "run_study",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"dissensus.experiments.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dissensus.experiments' has no attribute {name!r}; it offers {', '.join(__all__)}")
