r"""What is left of the disagreement at the end of a cosine, in closed form: the modes freeze before the rate is zero.

Near the end of $\alpha_t = \frac{\alpha_{\max}}2(1+\cos\pi t/T)$ with $\gamma = (\alpha/\alpha_{\max})^p$, at a
distance $\tau = 1-t/T$, $\alpha \approx \alpha_{\max}\frac{\pi^2}4\tau^2$. With $a = \alpha_{\max}/(1-\beta)$,
$\delta=1-\lambda$ and $c = \pi^2/4$ a mode is fed $a^2c^2\tau^4 s^2$ per step and forgets at the rate
$\delta c^p\tau^{2p} + a h c\,\tau^2$, so that at the end

$$ S = a^2c^2 s^2\,T\int_0^\infty \tau^4
   \exp\Big[-2T\Big(\frac{\delta c^p\,\tau^{2p+1}}{2p+1} + \frac{a h c\,\tau^3}{3}\Big)\Big]\,d\tau . $$

For p = 1 both damp alike:
$S = \frac13a^2c^2s^2T\,\Gamma(\frac53)\,\big[\frac23Tc(\delta+ah)\big]^{-5/3} \sim T^{-2/3}$.
For h = 0, with $q = 2p+1$: $S = \frac1q a^2c^2s^2T\,\Gamma(\frac5q)\,[2T\delta c^p/q]^{-5/q} \sim T^{-2(2-p)/(2p+1)}$:
DSGD (p = 0) leaves $T^{-4}$, p = 2 the same whatever T, p > 2 more the longer the run. The exact recursion is
`annealed.trajectory`; these are its limit for long runs (with p = 0, where mixing does not slow down, for small
$\delta$ only). Ours.
"""

from __future__ import annotations

from math import gamma as gamma_function
from math import pi
from typing import Any

import numpy as np
from scipy.integrate import quad_vec

from dissensus.theory.errors import MixingError
from dissensus.theory.modes import disagreement_eigenvalues
from dissensus.theory.stationary import spectrum
from dissensus.theory.topology import Topology

_C = pi**2 / 4


def frozen_variance(
    p: float, delta: Any, curvature: Any, lr_max: float, steps: float, momentum: float = 0.0, noise: Any = 1.0
) -> np.ndarray:
    """The variance of modes at the end of a cosine to zero over `steps`; `delta` = 1 - lambda, all broadcasts.

    Long runs are meant: many relaxation times at the start. The order of mixing does not matter in this limit.
    """
    delta, h, s2 = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (delta, curvature, noise)))
    for name, value in (("p", p), ("lr_max", lr_max), ("steps", steps)):
        if not (np.isfinite(value) and (value >= 0.0 if name == "p" else value > 0.0)):
            raise MixingError(f"{name} must be finite and {'not negative' if name == 'p' else 'positive'}, got {value}")
    if (delta < 0).any() or (h < 0).any() or ((delta == 0) & (h == 0)).any():
        raise MixingError("a mode freezes only if it is damped before: delta and curvature >= 0, one of them positive")
    a, q = lr_max / (1.0 - momentum), 2.0 * p + 1.0
    fed = a**2 * _C**2 * s2 * steps
    graph, curved = 2.0 * steps * delta * _C**p / q, 2.0 * steps * a * h * _C / 3.0
    if p == 1.0 or not curved.any() or not graph.any():
        power = 3.0 if not graph.any() else q
        k = graph + curved if p == 1.0 else curved if not graph.any() else graph
        return fed / power * gamma_function(5.0 / power) * k ** (-5.0 / power)
    # one scale per mode, so that the integrand lives where the quadrature looks
    with np.errstate(divide="ignore"):
        scale = np.minimum(graph ** (-1.0 / q), curved ** (-1.0 / 3.0))

    def integrand(u: float) -> np.ndarray:
        tau = u * scale
        return tau**4 * np.exp(-graph * tau**q - curved * tau**3) * scale

    end = 60.0 ** (1.0 / min(q, 3.0))  # what lies beyond is below exp(-60)
    return fed * quad_vec(integrand, 0.0, end, epsrel=1e-11, epsabs=0.0)[0]


def frozen_disagreement(
    topology: Topology | Any,
    curvatures: Any,
    noise: Any,
    *,
    p: float,
    lr_max: float,
    steps: float,
    momentum: float = 0.0,
) -> tuple[float, float]:
    """Consensus distance and envelope at the end of a cosine to zero, for a static symmetric W (or its eigenvalues)."""
    if isinstance(topology, Topology) and not (topology.is_static and topology.is_symmetric):
        raise MixingError(
            f"{topology!r} is not one symmetric matrix: the frozen disagreement has no closed form; "
            "annealed.trajectory follows it exactly"
        )
    lam, n = disagreement_eigenvalues(topology)
    h, s2 = spectrum(curvatures, noise)
    left = frozen_variance(p, 1.0 - lam[:, None], h, lr_max, steps, momentum, s2).sum(axis=0) / n
    return float(left.sum()), 0.5 * float(h @ left)
