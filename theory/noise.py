r"""Named laws of gradient noise on a spectrum, and a spectral density with a noise level as what `predict` takes.

Predictions need the variance of one worker's gradient along every curvature. It is measured
(`probes.noise_measure`), given, or assumed: *isotropic*, $S = \frac{s^2}{d} I$, or *hessian*,
$S = \frac{s^2}{\operatorname{tr}H_+} H_+$, proportional to the positive part of the Hessian, as it is for a
well-specified likelihood at its optimum (where the covariance of the gradient is the Fisher information, which is the
Hessian). $s^2 = \operatorname{tr} S$ either way.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from dissensus.theory.errors import MixingError, nearest

Law = Literal["isotropic", "hessian"]


def along(curvatures: Any, total: float, law: str = "isotropic", multiplicity: Any = 1.0) -> np.ndarray:
    """The noise variance along every curvature under a named law, `total` = tr S in all.

    `multiplicity` says how many directions a curvature stands for, where it is a node of a spectral density.
    """
    h = np.atleast_1d(np.asarray(curvatures, dtype=np.float64))
    count = np.broadcast_to(np.asarray(multiplicity, dtype=np.float64), h.shape)
    if law not in get_args(Law):
        raise MixingError(f"unknown law of noise {law!r}{nearest(law, get_args(Law))}")
    if not (np.isfinite(total) and total >= 0.0):
        raise MixingError(f"the total noise tr S must be finite and not negative, got {total}")
    share = count if law == "isotropic" else count * np.maximum(h, 0.0)
    if not share.sum() > 0.0:
        raise MixingError(
            "noise proportional to the Hessian needs a positive curvature, got none"
            if law == "hessian"
            else "noise needs at least one direction, got none"
        )
    return total * share / share.sum()


def on_density(nodes: Any, masses: Any, total: float, law: str = "isotropic") -> tuple[np.ndarray, np.ndarray, float]:
    """What `stationary.predict` takes, from a spectral density: curvatures, noise along them, and the mean curvature.

    `nodes` and `masses` are a density of the Hessian (masses of sum one, as a probe of the spectrum returns them): a
    node of mass w stands for a share w of all directions. Hand over as
    `predict(topology, nodes, noise, mean_curvature=mean, ...)`.
    """
    h, mass = (np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in (nodes, masses))
    if h.shape != mass.shape or h.ndim != 1:
        raise MixingError(f"a density needs one mass per node, got nodes {h.shape} and masses {mass.shape}")
    if not np.isfinite(mass).all() or (mass < 0).any() or abs(mass.sum() - 1.0) > 1e-6:
        raise MixingError(
            f"the masses of a density must not be negative and add up to 1, got a sum of {mass.sum():.9g}"
        )
    return h, along(h, total, law, mass), float(h @ mass / mass.sum())
