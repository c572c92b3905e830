r"""The outermost eigenvalues, by Lanczos, each with the residual that bounds its error.

For any unit vector v and number $\theta$ some eigenvalue lies within $\lVert Hv-\theta v\rVert$ of $\theta$. Growing
stops when that bound is at most `tol` times the eigenvalue, for all k. One Krylov space sees a repeated eigenvalue
once; so what it did not reach is searched afterwards, with a few products, for anything that belongs among the k.

The basis is orthogonalised fully and held in bounded memory (`thick_restart`). Any symmetric operator will do: the
Hessian, or the Gauss-Newton matrix, whose eigenvalues are not negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError
from dissensus.probes.krylov import Krylov, gaussian, ritz
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.thick_restart import ThickRestart
from dissensus.probes.untouched import undisturbed

End = Literal["largest", "smallest", "magnitude"]
MEMORY = 1 << 30
"""Bytes that the basis may take."""
SEARCH = 4
"""Lanczos steps in the complement when searching for a repeated eigenvalue."""


@dataclass(frozen=True, eq=False)
class Eigenpair:
    """An eigenvalue, its unit vector, and the bound on its error."""

    name: str
    value: float
    residual: float
    """‖Hv - value·v‖: an eigenvalue lies this close."""
    vector: Tensor
    num_matvecs: int
    """Products spent on all pairs that were asked for together."""
    seed: int
    dtype: str
    converged: bool

    @property
    def interval(self) -> tuple[float, float]:
        """Contains an eigenvalue."""
        return self.value - self.residual, self.value + self.residual

    @property
    def interval_method(self) -> str:
        """How the interval was made."""
        return "residual bound"

    @property
    def stderr(self) -> float:
        """The bound on the error (nothing was sampled)."""
        return self.residual

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        open_end = "" if self.converged else ", not converged"
        return f"{self.value:.6g} ± {self.residual:.2g} (residual bound, {self.num_matvecs} products{open_end})"

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the vector."""
        keys = ("name", "value", "residual", "stderr", "interval_method", "num_matvecs", "seed", "dtype", "converged")
        return {**{key: getattr(self, key) for key in keys}, "interval": list(self.interval)}


@undisturbed()
def top_eigenvalues(
    operator: Operator,
    k: int = 1,
    *,
    tol: float = 1e-3,
    which: End = "largest",
    max_matvecs: int | None = None,
    max_basis: int | None = None,
    memory: int = MEMORY,
    seed: int = 0,
) -> list[Eigenpair]:
    """The k outermost eigenpairs, the outermost first.

    `which`: the algebraically "largest" or "smallest", or the largest in "magnitude". `max_matvecs` defaults to
    20 k + 100; what has not met `tol` by then comes back with `converged=False`. The basis holds at most `max_basis`
    vectors, and no more than fit in `memory` bytes; fewer vectors take more products.
    """
    if not 1 <= k <= operator.size:
        raise ProbeError(f"k must lie between 1 and the {operator.size} parameters, got {k}")
    if which not in ("largest", "smallest", "magnitude"):
        raise ProbeError(f"which must be 'largest', 'smallest' or 'magnitude', got {which!r}")
    if not tol > 0:
        raise ProbeError(f"tol must be positive, got {tol!r}; 1e-3 means a thousandth of the eigenvalue")
    budget = 20 * k + 100 if max_matvecs is None else max_matvecs
    if budget < k:
        raise ProbeError(f"max_matvecs={budget} cannot give {k} eigenvalues; allow at least {k} products")
    room = _room(operator, k, max_basis, memory)
    generator = torch.Generator().manual_seed(seed)
    before = operator.products
    pairs = _outermost(operator, k, tol, which, budget, generator, None, room)
    search = _order(which)
    while operator.products - before + SEARCH <= budget and len(pairs) < operator.size:
        found = _missed(operator, pairs, tol, which, generator, budget - (operator.products - before), room)
        if found is None:
            break
        pairs = sorted([*pairs, found], key=lambda pair: search(pair[0]))[:k]
    spent = operator.products - before
    return [
        Eigenpair(f"eigenvalue {i + 1} ({which})", value, residual, vector, spent, seed, dtype_name(operator.dtype), ok)
        for i, (value, residual, vector, ok) in enumerate(pairs[:k])
    ]


Pair = tuple[float, float, Tensor, bool]


def _order(which: End) -> Any:
    return {"largest": lambda v: -v, "smallest": lambda v: v, "magnitude": lambda v: -np.abs(v)}[which]


def _room(operator: Operator, k: int, max_basis: int | None, memory: int) -> int:
    """How many basis vectors may be held."""
    least = min(k + 3, operator.size)
    if max_basis is not None and max_basis < least:
        raise ProbeError(f"max_basis={max_basis} is too small for {k} eigenpairs; allow at least {least} vectors")
    fit = memory // (torch.finfo(operator.dtype).bits // 8 * operator.size)
    if fit < least:
        need = least * operator.size * torch.finfo(operator.dtype).bits // 8
        raise ProbeError(f"memory={memory} bytes hold {fit} vectors, {k} eigenpairs need {least}: allow {need} bytes")
    return fit if max_basis is None else min(max_basis, fit)


def _outermost(
    operator: Operator,
    k: int,
    tol: float,
    which: End,
    budget: int,
    generator: torch.Generator,
    against: Tensor | None,
    room: int,
) -> list[Pair]:
    """The k outermost Ritz pairs outside `against`, grown until their residuals are small or the budget is spent."""
    space = ThickRestart(operator, gaussian(generator, operator), room, against)
    start, order = operator.products, _order(which)
    while True:
        space.extend()
        found = space.ritz()
        chosen = np.argsort(order(found.values), kind="stable")[:k]
        rounding = 10 * torch.finfo(operator.dtype).eps * float(np.abs(found.values).max())
        done = found.residuals[chosen] <= np.maximum(tol * np.abs(found.values[chosen]), rounding)
        if (len(chosen) == min(k, space.reach) and done.all()) or operator.products - start >= budget:
            break
        space.make_room(order, k)
        if space.closed and not space.go_on(gaussian(generator, operator)):
            break
    rows = zip(found.values[chosen], found.residuals[chosen], space.vectors(found, chosen), done, strict=True)
    return [(float(v), max(float(r), rounding), vector, bool(ok)) for v, r, vector, ok in rows]


def _missed(
    operator: Operator, pairs: list[Pair], tol: float, which: End, generator: torch.Generator, budget: int, room: int
) -> Pair | None:
    """An eigenpair outside the ones found that belongs among them; None if a short search shows none."""
    against = torch.linalg.qr(torch.stack([vector for _, _, vector, _ in pairs]).T).Q.T
    space = Krylov(operator, gaussian(generator, operator), against).run(SEARCH)
    alpha, beta = space.tridiagonal()
    values = ritz(alpha[0], beta[0]).values
    order = _order(which)
    last = max(float(order(np.float64(value))) for value, *_ in pairs)
    margin = 2 * tol * max(abs(value) for value, *_ in pairs)
    if float(np.min(order(values))) >= last - margin or budget <= SEARCH:
        return None
    (found,) = _outermost(operator, 1, tol, which, budget - SEARCH, generator, against, room)
    return found if float(order(np.float64(found[0]))) < last - margin / 2 else None
