"""Assumptions that many bounds share, made for a field of the problem.

All are positive statements, so that a number that is not one (NaN) fails them.
"""

from __future__ import annotations

import math
from typing import Any

from dissensus.theory.bounds.base import Assumption


def nonnegative(field: str, symbol: str) -> Assumption[Any]:
    """The fact is a finite number from zero."""
    return Assumption(field.replace("_", " "), rf"{symbol} \ge 0", lambda p: 0.0 <= getattr(p, field) < math.inf)


def positive(field: str, symbol: str) -> Assumption[Any]:
    """The fact is a finite number above zero."""
    return Assumption(field.replace("_", " "), rf"{symbol} > 0", lambda p: 0.0 < getattr(p, field) < math.inf)


def share(field: str, symbol: str) -> Assumption[Any]:
    """The fact lies in (0, 1]."""
    return Assumption(field.replace("_", " "), rf"0 < {symbol} \le 1", lambda p: 0.0 < getattr(p, field) <= 1.0)


def whole(field: str, symbol: str, least: int) -> Assumption[Any]:
    """The fact is a whole number, at least so large."""
    return Assumption(
        field.replace("_", " "),
        rf"{symbol} \ge {least}",
        lambda p: getattr(p, field) >= least and float(getattr(p, field)).is_integer(),
    )


ROUNDING = 1e-12
"""What a norm computed in double precision may lie above one."""
WORKERS = whole("size", "n", 2)
"""There is somebody to disagree with."""
SINGLE = whole("size", "n", 1)
"""There are workers."""
MIXES = Assumption[Any](
    "contraction", r"W \text{ doubly stochastic}, 0 \le \lambda < 1", lambda p: 0.0 <= p.contraction < 1.0
)
"""Disagreement shrinks in every round."""
EXPANDS_NOT = Assumption[Any](
    "contraction", r"W \text{ doubly stochastic}, 0 \le \lambda \le 1", lambda p: 0.0 <= p.contraction <= 1.0 + ROUNDING
)
"""Disagreement does not grow in any round: true of every doubly stochastic W."""
ORDER = Assumption[Any]("order", r"\text{order} \in \{\text{awc}, \text{atc}\}", lambda p: p.order in ("awc", "atc"))
"""A known order of mixing and moving."""
