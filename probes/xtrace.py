r"""XTrace: every probe serves the sketch of all others, and is judged by them.

From k probes $\omega_i$ the images $Y = H\Omega = QR$ span a sketch; the one without probe i is
$Q(I - s_i s_i^\top)Q^\top$ with $s_i \propto R^{-\top}e_i$. Each leaves an unbiased estimate

$$ X_i = \operatorname{tr} T - s_i^\top T s_i + u_i^\top H u_i , \qquad u_i = \omega_i - Q(I - s_i s_i^\top) Q^\top
\omega_i , \qquad T = Q^\top H Q , $$

all from 2k products and small matrices, since $Q^\top H\omega_i = R e_i$. Their mean is the estimate.

Error: the $X_i$ share most of their sketch, so they are exchangeable but not independent. Their spread over
$\sqrt k$, the leave-one-out error of the paper, was 1.0 to 1.6 times too small where we measured it; the jackknife of
the mean (all k - 1 other probes, k times) overrates the variance and was 1.2 to 2.5 times too large. Their geometric
mean was 1.0 to 1.4 times the true error on every spectrum tried, and is what the interval is made of (ours, measured,
not proven).

Probes are directions of length $\sqrt d$, evenly over the sphere: any d of them are independent, so that images which
bring nothing new mean that all of H's range is known (with signs they may just be the same signs again).

Reference: Epperly, Tropp and Webber, XTrace (2024, arXiv:2301.07825).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from dissensus.probes.krylov import fresh_directions, lengths
from dissensus.probes.operator import Operator
from dissensus.probes.sampling import Drawn, Target

START = 12
"""Probes in the first round; a round adds half as many as there are."""
JACKKNIFED = 32
"""At most so many probes are left out in turn for the jackknife, which costs k^3 for each."""


class XTrace:
    """The probes, their images, and the basis they span, grown round by round."""

    def __init__(self, operator: Operator, generator: torch.Generator) -> None:
        self.operator, self._generator = operator, generator
        self._omega = self._image = self._basis = self._through = torch.zeros(
            (0, operator.size), dtype=operator.dtype, device=operator.device
        )
        self.full = False
        """Whether the sketch holds all of H's range, so that the trace is exact up to rounding."""

    def add(self, count: int) -> None:
        """So many probes more, two products each."""
        shape = (count, self.operator.size)
        omega = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        omega = (omega * self.operator.size**0.5 / lengths(omega)[:, None]).to(self._basis)
        image = self.operator.matvec(omega)
        rows = fresh_directions(image, self._basis)
        through = self.operator.matvec(rows) if len(rows) else rows
        self._omega, self._image = torch.cat([self._omega, omega]), torch.cat([self._image, image])
        self._basis, self._through = torch.cat([self._basis, rows]), torch.cat([self._through, through])
        self.full = self.full or len(rows) < count or len(self._basis) == self.operator.size

    def estimates(self) -> np.ndarray:
        """The leave-one-out estimates X_i, (k,); all the same where the sketch is full."""
        t, r, w, forms = self._small()
        return np.full(len(w.T), np.trace(t)) if self.full else _left_out(t, r, w, forms)

    def samples(self) -> np.ndarray:
        """The X_i, spread about their mean so that their standard error is the geometric mean of the two errors."""
        found = self.estimates()
        mean, k = found.mean(), len(found)
        plain = float(found.std(ddof=1)) / math.sqrt(k) if k > 1 else 0.0
        return found if plain == 0 else mean + (found - mean) * math.sqrt(self._jackknife() / plain)

    def _jackknife(self) -> float:
        """The standard error of the mean by leaving every probe out of everything."""
        t, r, w, forms = self._small()
        k, means = len(forms), []
        for i in range(0, k, -(-k // JACKKNIFED)):
            rest = np.arange(k) != i
            q = np.linalg.qr(r[:, rest])[0]
            means.append(_left_out(q.T @ t @ q, q.T @ r[:, rest], q.T @ w[:, rest], forms[rest]).mean())
        return math.sqrt((k - 1) * float(np.var(means)))

    def _small(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """T, R, Q'Omega, and the quadratic forms of the probes."""
        t = (self._basis @ self._through.T).double().cpu().numpy()
        r = (self._basis @ self._image.T).double().cpu().numpy()
        w = (self._basis @ self._omega.T).double().cpu().numpy()
        forms = (self._omega.double() * self._image.double()).sum(1).cpu().numpy()
        return (t + t.T) / 2, r, w, forms


def _left_out(t: np.ndarray, r: np.ndarray, w: np.ndarray, forms: np.ndarray) -> np.ndarray:
    s = np.linalg.inv(r).T
    s = s / np.linalg.norm(s, axis=0)
    x = w - s * (s * w).sum(0)
    return np.trace(t) - (s * (t @ s)).sum(0) + forms - 2 * (x * r).sum(0) + (x * (t @ x)).sum(0)


def xtrace(operator: Operator, target: Target, generator: torch.Generator) -> Drawn:
    """Rounds of probes until the leave-one-out interval is narrow enough or the budget is spent."""
    run, drawn = XTrace(operator, generator), Drawn(target)
    while not (run.full or drawn.narrow() or drawn.hopeless()):
        taken = drawn.count
        count = min(max(taken // 2, START), target.left() // 2, operator.size - taken)
        if count <= 0:
            break
        run.add(count)
        samples, drawn = run.samples(), Drawn(target)
        # the last directions of a full sketch are what rounding left of them: only half of the digits are sure
        lost = torch.finfo(operator.dtype).eps ** -0.5 if run.full else 1.0
        drawn.add(samples, lost * float(np.abs(samples).mean()))
    return drawn
