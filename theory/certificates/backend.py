"""The conic solver, Clarabel, from the optional extra: the one place that imports it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError


def minimise(
    quadratic: sp.csc_matrix,
    cost: np.ndarray,
    matrix: sp.csc_matrix,
    right: np.ndarray,
    cones: Sequence[tuple[str, int]],
    *,
    tolerance: float,
) -> Any:
    """Minimises u'Pu/2 + q'u with b - Au in the product of cones, in one thread; `answer.x` is u, `answer.z` its dual.

    Cones are (name, size): `zero`, `nonnegative`, `psd` (a packed triangle).
    """
    try:
        clarabel: Any = importlib.import_module("clarabel")
    except ImportError:
        raise MixingError('certificates need a conic solver: pip install "dissensus[theory]"') from None
    kinds = {
        "zero": clarabel.ZeroConeT,
        "nonnegative": clarabel.NonnegativeConeT,
        "psd": clarabel.PSDTriangleConeT,
    }
    settings = clarabel.DefaultSettings.default()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    product = [kinds[name](size) for name, size in cones]
    return clarabel.DefaultSolver(quadratic, cost, matrix, right, product, settings).solve()
