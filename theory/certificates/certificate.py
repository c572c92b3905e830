r"""An exact worst case with its proof: `certify` solves the dual, checks it, and says how far it is from the primal.

    certificate = certify("dsgd", contraction=1/3, steps=5, lr=1/3)
    certificate.value        # 0.234783: no run of the class exceeds it
    certificate.certified    # True: proven, and reached within 1e-5

`value` is what the checked dual proves, rounded upwards; `primal` is the criterion at the worst instance the solver
found. A certificate is *certified* if the check went through, the primal respects its constraints and the two differ by
at most 1e-5 of the value. What the solver says of itself (`status`) decides nothing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dissensus.theory.certificates.check import Checked, check
from dissensus.theory.certificates.cone import Cone, quadratic, sampled
from dissensus.theory.certificates.posing import pose
from dissensus.theory.certificates.program import Program
from dissensus.theory.certificates.setting import Setting, setting
from dissensus.theory.certificates.solver import Multipliers, Solution, nothing, solve

LARGEST_GAP = 1e-5
"""Relative to the value: above it nothing is called certified."""
LARGEST_VIOLATION = 1e-6
"""By how much the primal may miss a constraint, in the program's units."""
MARGINS = (5e-10, 5e-12, 1e-8, 2e-7)
"""How far inside the cone S is asked to be, one after the other until a certificate holds: less where the Gram matrix
is large and the margin costs too much, more where the solver stays too far outside."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """The worst case of a setting."""

    setting: Setting
    value: float
    """Proven: nothing in the class exceeds it. Infinite where the multipliers prove nothing."""
    primal: float
    """The criterion at the worst instance found by the solver."""
    certified: bool
    gap: float
    """(value - primal) / value."""
    violation: float
    """The largest violation of a constraint by the primal, in the program's units."""
    checked: Checked
    status: str
    """What the solver says of itself."""
    seconds: float
    multipliers: Multipliers | None = field(repr=False)
    program: Program = field(repr=False)
    solution: Solution = field(repr=False)

    def with_multipliers(self, multipliers: Multipliers) -> Certificate:
        """The certificate that other multipliers make: they are checked as if they came from the solver."""
        return _judged(self.setting, self.program, replace(self.solution, multipliers=multipliers), self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        mixing: Any = self.setting.mixing
        return {
            "method": self.setting.method,
            "order": self.setting.order if self.setting.method == "dsgd" else None,
            "criterion": self.setting.criterion,
            "steps": self.setting.steps,
            "lr": self.setting.lr,
            "smoothness": self.setting.smoothness,
            "convexity": self.setting.convexity,
            "distance": self.setting.distance,
            "heterogeneity": self.setting.heterogeneity,
            "eigenvalues": list(mixing) if isinstance(mixing, tuple) else None,
            "topology": None if isinstance(mixing, tuple) else mixing.name,
            "size": self.setting.size,
            "value": self.value,
            "primal": self.primal,
            "certified": self.certified,
            "gap": self.gap,
            "status": self.status,
            "seconds": self.seconds,
            "dual": {
                "reason": self.checked.reason or None,
                "value_residual": self.checked.value_residual,
                "negativity": self.checked.negativity,
                "slack": self.checked.slack,
                "primal_violation": self.violation,
                "inequalities": self.program.inequalities,
                "active": 0 if self.multipliers is None else int((self.multipliers.pairs > 1e-6).sum()),
                "limits": {}
                if self.multipliers is None
                else dict(zip((m.name for m in self.program.limits), self.multipliers.limits.tolist(), strict=True)),
                "unknowns": [len(self.program.coordinates(int(b))) for b in np.unique(self.program.blocks)],
            },
        }


def certify(method: str = "dsgd", **parameters: Any) -> Certificate:
    """The worst case of a method; parameters are those of `setting`: contraction=0.5, steps=5, lr=0.3, ..."""
    return certificate_of(setting(method, **parameters))


def certificate_of(of: Setting) -> Certificate:
    """The worst case of a setting."""
    began = time.perf_counter()
    program = pose(of)
    if program.criterion.is_nothing:  # exact consensus, say: no solver has to find that nothing is nothing
        return _judged(of, program, nothing(program), time.perf_counter() - began)
    best: Certificate | None = None
    for margin in MARGINS:
        found = _judged(of, program, solve(program, margin=margin), time.perf_counter() - began)
        if best is None or found.gap < best.gap or (found.certified and not best.certified):
            best = found
        if best.certified:
            break
        if found.checked.proves and found.primal > 0:
            program = program.measured_by(found.primal)
    assert best is not None
    return replace(best, seconds=time.perf_counter() - began)


def _judged(of: Setting, program: Program, solution: Solution, seconds: float) -> Certificate:
    if solution.multipliers is None:
        checked = Checked(
            math.inf, f"the solver found no multipliers ({solution.status})", math.nan, math.nan, math.nan
        )
        violation = math.inf
    else:
        checked, violation = check(program, solution.multipliers), violation_of(program, solution)
    gap = (checked.bound - solution.primal) / checked.bound if 0 < checked.bound < math.inf else math.inf
    if checked.bound == solution.primal == 0.0:
        gap = 0.0
    return Certificate(
        setting=of,
        value=checked.bound,
        primal=solution.primal,
        certified=bool(checked.proves and abs(gap) <= LARGEST_GAP and violation <= LARGEST_VIOLATION),
        gap=gap,
        violation=violation,
        checked=checked,
        status=solution.status,
        seconds=seconds,
        multipliers=solution.multipliers,
        program=program,
        solution=solution,
    )


def violation_of(program: Program, solution: Solution) -> float:
    """By how much the Gram matrix and the values of the solver miss a constraint at most, in the program's units."""
    gram = np.zeros((len(program.units),) * 2)
    worst = 0.0
    for b, part in zip(np.unique(program.blocks), solution.grams, strict=True):
        of = program.coordinates(int(b))
        gram[np.ix_(of, of)] = part
        worst = max(worst, -float(np.linalg.eigvalsh(part)[0]))
    x, h = sampled(program)
    f = np.concatenate([solution.values, np.zeros((1, program.rows))])
    kappa = float(program.kappa) * program.slope / program.length
    for i in range(program.rows):
        hx, hh = h[:, i] @ gram @ x[:, i].T, h[:, i] @ gram @ h[:, i].T
        apart = np.diag(hh)[:, None] + np.diag(hh)[None] - 2 * hh
        left = f[:, i][:, None] - f[:, i][None] - (hx.T - np.diag(hx)[None]) - kappa * apart
        worst = max(worst, -float(left.min()))
    for m in program.limits:
        over = float((quadratic(program, m.squares, m.unit) * gram).sum()) - float(m.most) / m.unit
        worst = max(worst, over)
    for group in program.groups:
        left, right = Cone(program).sides(group)
        t = np.einsum("kic,cd,lid->kl", left, gram, right) / program.rows
        worst = max(worst, float(np.abs(t - t.T).max()), -float(np.linalg.eigvalsh(t + t.T)[0]) / 2)
    return worst
