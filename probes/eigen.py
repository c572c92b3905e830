r"""The outermost eigenvalues, by Lanczos, each with the residual that bounds its error.

For any unit vector v and number $\theta$ some eigenvalue lies within $\lVert Hv-\theta v\rVert$ of $\theta$. Growing
stops when that bound is at most `tol` times the eigenvalue, for all k. One Krylov space sees a repeated eigenvalue
once; so what it did not reach is searched afterwards, with a few products, for anything that belongs among the k.
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
from dissensus.probes.untouched import undisturbed

End = Literal["largest", "smallest", "magnitude"]
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
    seed: int = 0,
) -> list[Eigenpair]:
    """The k outermost eigenpairs, the outermost first.

    `which`: the algebraically "largest" or "smallest", or the largest in "magnitude". `max_matvecs` defaults to
    20 k + 100; what has not met `tol` by then comes back with `converged=False`.
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
    generator = torch.Generator().manual_seed(seed)
    before = operator.products
    pairs = _outermost(operator, k, tol, which, budget, generator, None)
    search = _order(which)
    while operator.products - before + SEARCH <= budget and len(pairs) < operator.size:
        found = _missed(operator, pairs, tol, which, generator, budget - (operator.products - before))
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


def _outermost(
    operator: Operator,
    k: int,
    tol: float,
    which: End,
    budget: int,
    generator: torch.Generator,
    against: Tensor | None,
) -> list[Pair]:
    """The k outermost Ritz pairs outside `against`, grown until their residuals are small or the budget is spent."""
    space = Krylov(operator, gaussian(generator, operator), against)
    room = operator.size - (0 if against is None else len(against))
    start = operator.products
    while True:
        space.extend()
        alpha, beta = space.tridiagonal()
        found = ritz(alpha[0], beta[0])
        chosen = np.argsort(_order(which)(found.values), kind="stable")[:k]
        rounding = 10 * torch.finfo(operator.dtype).eps * float(np.abs(found.values).max())
        done = found.residuals[chosen] <= np.maximum(tol * np.abs(found.values[chosen]), rounding)
        if (len(chosen) == min(k, room) and done.all()) or operator.products - start >= budget:
            break
        if space.closed and not space.restart(gaussian(generator, operator)):
            break
    vectors = torch.as_tensor(found.vectors[:, chosen].T.copy(), dtype=operator.dtype, device=operator.device)
    vectors = vectors @ space.basis[0]
    vectors = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    rows = zip(found.values[chosen], found.residuals[chosen], vectors, done, strict=True)
    return [(float(v), max(float(r), rounding), vector, bool(ok)) for v, r, vector, ok in rows]


def _missed(
    operator: Operator, pairs: list[Pair], tol: float, which: End, generator: torch.Generator, budget: int
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
    (found,) = _outermost(operator, 1, tol, which, budget - SEARCH, generator, against)
    return found if float(order(np.float64(found[0]))) < last - margin / 2 else None
