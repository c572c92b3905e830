"""How fast the probes are, against the peers where these are installed: parts by name, each a list of rows.

A part is a function of the scale that yields rows, each a JSON-able dictionary with the key `part`. It is imported when
it is asked for: a part that is not there yet, or whose packages are missing, is skipped with its reason.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, Literal

import torch

from dissensus.experiments.errors import ConfigError

Scale = Literal["small", "full"]

PARTS = {
    "products": "dissensus.experiments.bench.probes_products:bench_products",
    "trace": "dissensus.experiments.bench.probes_estimates:bench_trace",
    "eigenvalues": "dissensus.experiments.bench.probes_eigenvalues:bench_eigenvalues",
    "end-to-end": "dissensus.experiments.bench.probes_estimates:bench_end_to_end",
    "coverage": "dissensus.experiments.bench.probes_estimates:bench_coverage",
}
"""Where the function of a part is: `module:function`, called with the scale."""


def bench_probes(scale: Scale = "small", *, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Any]:
    """Measures the named parts; `full` takes minutes. A JSON-able dictionary."""
    if scale not in ("small", "full"):
        raise ConfigError(f"scale must be 'small' or 'full', got {scale!r}")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"parts must be among {', '.join(PARTS)}, got {part!r}")
    load, rows, skipped = _load(), [], {}
    for part, where in PARTS.items():
        if part not in parts:
            continue
        module, function = where.split(":")
        try:
            rows += list(getattr(importlib.import_module(module), function)(scale))
        except (ImportError, AttributeError) as error:
            skipped[part] = f"{type(error).__name__}: {error}"
    return {
        "scale": scale,
        "cores": os.cpu_count(),
        "load_before_and_after": [load, _load()],
        "torch": str(torch.__version__),
        "rows": rows,
        "skipped": skipped,
    }


def _load() -> float | None:
    """How many processes wanted to run, averaged over a minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
