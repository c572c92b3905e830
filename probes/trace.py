r"""The trace of an operator from its products: Hutchinson's estimator, what makes it noisy taken out first.

For independent random signs z, $\mathbb E\, z^\top H z = \operatorname{tr} H$, with variance
$2(\lVert H\rVert_F^2 - \sum_i H_{ii}^2)$: a few outlying eigenvalues make all the noise. The methods differ in what
they take out exactly before they sample:

| method | taken out | products |
|---|---|---|
| `hutchinson` | nothing | 1 a probe |
| `deflated` | a Krylov space Q as large as pays: $\operatorname{tr} H = \operatorname{tr} QHQ^\top + \mathbb E\,(Pz)^\top H(Pz)$ | 1 a probe, 1 a direction |
| `hutch++` | the range of a random sketch (`hutchpp`) | 1 a probe, 2 a direction |
| `xtrace` | for every probe, the sketch of all others (`xtrace`) | 2 a probe |
| `split` | the Gauss-Newton matrix of a loss: $\operatorname{tr} H = \operatorname{tr} G + \mathbb E\, z^\top(H-G)z$ (`split_trace`) | 1 or 2 a probe, and tr G |
| `exact` | everything | 1 a coordinate |

Sampling stops when the half-width of the interval is at most `rtol` times the value, or at `max_matvecs`; never on the
difference of consecutive means. How intervals are made is in `sampling`.

Reference: Hutchinson (1990); for the deflation Chen and Hallman, Krylov-aware stochastic trace estimation (2023,
arXiv:2205.01736).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate, exact
from dissensus.probes.hutchpp import Lanczos, Sketch
from dissensus.probes.operator import Operator, dtype_name
from dissensus.probes.remainder import PILOT, Remainder, probes_needed
from dissensus.probes.sampling import FIRST_LOT, Drawn, Target, check_budget, check_rtol, draw_until, estimate
from dissensus.probes.split_trace import Residual, residual_of
from dissensus.probes.untouched import undisturbed
from dissensus.probes.xtrace import START, xtrace

Method = Literal["auto", "hutchinson", "deflated", "hutch++", "xtrace", "split", "exact"]
METHODS = ("auto", "hutchinson", "deflated", "hutch++", "xtrace", "split", "exact")
LEAST = {"hutchinson": FIRST_LOT, "deflated": PILOT + FIRST_LOT, "hutch++": PILOT + FIRST_LOT, "xtrace": 2 * START}
"""The least number of products a method makes an interval of."""


@undisturbed()
def hessian_trace(
    operator: Operator,
    *,
    rtol: float = 0.05,
    max_matvecs: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    confidence: float = 0.95,
    name: str = "trace",
) -> Estimate:
    """The trace to a relative accuracy `rtol`, or as good as `max_matvecs` products make it (`converged` says which).

    `auto` takes `split` for the Hessian of a loss that can be split, `deflated` for any other operator, and one product
    per coordinate where that is cheaper; the method that was used stands in `notes`. A trace near zero (an indefinite
    operator) may never reach a relative target.
    """
    _check_method(method, METHODS)
    check_rtol(rtol)
    before = operator.products
    if method == "exact" or (method == "auto" and operator.size <= PILOT + FIRST_LOT):
        check_budget(max_matvecs, operator.size, method)
        return _coordinates(operator, name, before)
    run = _Run(operator, rtol, max_matvecs, seed, confidence)
    if method in ("auto", "split"):
        residual, why = residual_of(operator, required=method == "split")
        if residual is not None:
            least = residual.charged + (0 if residual.nothing else residual.price * FIRST_LOT)
            if method == "split" or least <= max_matvecs:
                check_budget(max_matvecs, least, method)
                return run.split(residual, name)
            run.pay(residual.charged)
            why = (f"not split: that takes {least} products",)
        run.notes = why
    check_budget(max_matvecs, LEAST.get(method, LEAST["deflated"]), method)
    if method == "xtrace":
        drawn = xtrace(operator, run.target(), run.generator(0))
        return run.made(drawn, name, f"method: XTrace of {drawn.count} probes, leave-one-out")
    if method == "hutchinson":
        return run.sampled(name, "Hutchinson")
    ahead = run.deflate("hutch++" if method == "hutch++" else "deflated")
    if method == "auto" and ahead >= operator.size and run.left() >= operator.size:
        return replace(_coordinates(operator, name, before), confidence=confidence)
    if method == "hutch++":
        return run.sampled(name, f"Hutch++ with a sketch of {run.remainder.rank} directions")
    return run.sampled(name, "Hutchinson" + run.after())


@undisturbed()
def layer_traces(
    operator: Operator,
    pieces: dict[str, int],
    *,
    probes: int = 32,
    seed: int = 0,
    confidence: float = 0.95,
    method: Method = "hutchinson",
    rtol: float | None = None,
    max_matvecs: int = 1000,
) -> dict[str, Estimate]:
    r"""The trace of every diagonal block from the same products: $z_l^\top (Hz)_l$ for each named piece l of a row.

    `pieces` maps names to lengths in the order of the row, for a Curvature `{k: s.numel() for k, s in
    op.landscape.shapes.items()}`. Without `rtol` exactly `probes` probes are drawn; with it, as many as bring the trace
    of the whole there within `max_matvecs`, and `probes` is not used. Methods: `hutchinson`, `split`, and with `rtol`
    also `deflated` and `hutch++`: what these take out is known layer by layer, too.
    """
    _check_method(method, ("hutchinson", "deflated", "hutch++", "split"))
    if sum(pieces.values()) != operator.size:
        raise ProbeError(
            f"pieces cover {sum(pieces.values())} of {operator.size} parameters; name all of them in order"
        )
    if rtol is None and probes < 2:
        raise ProbeError(f"probes must be at least 2 to have a spread, got {probes}")
    if rtol is None and method in ("deflated", "hutch++"):
        raise ProbeError(f"method {method!r} decides by a target how much to take out; give rtol, say rtol=0.05")
    if rtol is not None:
        check_rtol(rtol)
    lengths = list(pieces.values())
    run = _Run(operator, 1e-300 if rtol is None else rtol, max_matvecs, seed, confidence)
    known, price, by_sample, shares = np.zeros(len(lengths)), 1, None, np.zeros((0, 0))
    if method == "split":
        residual, _ = residual_of(operator, required=True)
        assert residual is not None
        shares = residual.pieces(lengths)
        known, price, by_sample = shares @ residual.layers, residual.price, residual.by_sample
        run.charge(residual)
    if rtol is None:
        run.budget = max(run.spent() + probes * price, run.budget)
    elif method in ("deflated", "hutch++"):
        check_budget(max_matvecs, LEAST[method], method)
        run.deflate(method)
        known = known + np.array([float(p.sum()) for p in run.remainder.known_diagonal().split(lengths)])
    else:
        check_budget(max_matvecs, run.spent() + price * FIRST_LOT, method)

    def draw(count: int) -> tuple[np.ndarray, float]:
        if by_sample is not None:
            found, size = by_sample.draw(count, run.signs)
            return found @ shares.T, size
        rows = run.remainder.products(count)
        sums = [piece.sum(1) for piece in rows.split(lengths, dim=1)]
        return torch.stack(sums, dim=1).cpu().numpy(), float(rows.abs().sum(1).mean())

    drawn = Drawn(run.target(price), float(known.sum()))
    if rtol is None:
        drawn.add(*draw(probes))
    else:
        draw_until(drawn, draw)
    common = {"num_matvecs": run.spent(), "seed": seed, "dtype": dtype_name(operator.dtype)}
    made = {
        key: estimate(drawn, f"trace of {key}", column=i, known=float(known[i]), **common)
        for i, key in enumerate(pieces)
    }
    return {key: replace(e, converged=e.converged or rtol is None) for key, e in made.items()}


class _Run:
    """What one call has spent, what it took out of the operator, and what it is still allowed."""

    def __init__(self, operator: Operator, rtol: float, budget: int, seed: int, confidence: float) -> None:
        self.operator, self.rtol, self.budget, self.seed, self.confidence = operator, rtol, budget, seed, confidence
        self.notes: tuple[str, ...] = ()
        self._before, self._charged = operator.products, 0
        self._products: Callable[[], int] = lambda: operator.products
        self.signs = self.generator(0)
        self.remainder = Remainder(operator, self.signs)

    def generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + stream * 0x5EED)

    def spent(self) -> int:
        return self._products() - self._before + self._charged

    def left(self) -> int:
        return self.budget - self.spent()

    def target(self, price: int = 1) -> Target:
        return Target(self.rtol, self.confidence, self.left, price, torch.finfo(self.operator.dtype).eps)

    def pay(self, charged: int) -> None:
        """What was spent elsewhere."""
        self._charged += charged

    def charge(self, residual: Residual) -> None:
        """From here on the residual is what is sampled, and tr G was paid."""
        self._before += residual.spent - self._products()
        self._products = lambda: residual.spent
        self.pay(residual.charged)
        self.notes = residual.notes
        self.remainder = Remainder(residual.operator, self.signs)

    def deflate(self, method: str) -> float:
        """Grows the part taken out, on at most a third of the budget (two thirds for a sketch)."""
        make = Sketch if method == "hutch++" else Lanczos
        grower = make(self.remainder.operator, self.generator(1))
        most = min(self.budget // 3, (self.left() - PILOT - FIRST_LOT) // grower.price)
        return self.remainder.deflate(grower, probes_needed(self.rtol, FIRST_LOT), most)

    def after(self) -> str:
        return f" after deflating {self.remainder.rank} Lanczos vectors" if self.remainder.rank else ""

    def sampled(self, name: str, used: str, known: float = 0.0, price: int = 1) -> Estimate:
        """Draws fresh probes of the remainder until the interval is narrow enough or the budget is spent."""
        drawn = Drawn(self.target(price), known + self.remainder.known)
        return self.made(draw_until(drawn, self.remainder.forms), name, f"method: {used}")

    def split(self, residual: Residual, name: str) -> Estimate:
        """Samples H - G; where the first lot shows that it takes many probes, deflates it by what that lot tells."""
        self.charge(residual)
        if residual.nothing:
            used, dtype = (
                "method: exact Gauss-Newton trace, the rest of the Hessian has none",
                dtype_name(self.operator.dtype),
            )
            made = exact(name, residual.known, num_matvecs=self.spent(), dtype=dtype, notes=(used, *self.notes))
            return replace(made, confidence=self.confidence)
        target, rem = self.target(residual.price), self.remainder
        drawn, used = Drawn(target, residual.known), "method: exact Gauss-Newton trace, "
        if residual.by_sample is not None:
            by_sample = residual.by_sample
            drawn = draw_until(drawn, lambda count: by_sample.draw(count, self.signs))
            return self.made(drawn, name, used + "signs by sample on the rest of the Hessian")
        z, plain, size = rem.first(FIRST_LOT)
        drawn.add(plain, size)
        forecast = probes_needed(self.rtol, FIRST_LOT)
        needed = lambda pilot, known: forecast(pilot, known + residual.known)  # noqa: E731
        if not drawn.narrow() and not drawn.hopeless() and needed(plain, 0.0) > PAYS * FIRST_LOT:
            most = min(self.budget // (3 * residual.price), self.left() // residual.price - FIRST_LOT)
            rem.deflate_with(z, plain, Lanczos(residual.operator, self.generator(1)), needed, most)
            if rem.rank:
                drawn = Drawn(target, residual.known + rem.known)
        drawn = draw_until(drawn, rem.forms)
        return self.made(drawn, name, f"{used}Hutchinson on the rest of the Hessian{self.after()}")

    def made(self, drawn: Drawn, name: str, used: str) -> Estimate:
        dtype = dtype_name(self.operator.dtype)
        return estimate(drawn, name, num_matvecs=self.spent(), seed=self.seed, dtype=dtype, notes=(used, *self.notes))


PAYS = 4
"""First lots of probes from which on deflating the residual of a split is tried."""


def _check_method(method: str, known: tuple[str, ...]) -> None:
    if method not in known:
        raise ProbeError(f"unknown method {method!r}; there are {', '.join(map(repr, known))}")


def _coordinates(operator: Operator, name: str, before: int) -> Estimate:
    """The sum of the diagonal, a product per coordinate, sixteen at a time."""
    total = 0.0
    for start in range(0, operator.size, 16):
        width = min(16, operator.size - start)
        units = torch.zeros(width, operator.size, dtype=operator.dtype, device=operator.device)
        units[torch.arange(width), start + torch.arange(width)] = 1
        total += float((units.double() * operator.matvec(units).double()).sum())
    spent, dtype = operator.products - before, dtype_name(operator.dtype)
    return exact(name, total, num_matvecs=spent, dtype=dtype, notes=("method: one product per coordinate",))
