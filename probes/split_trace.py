r"""The Hessian of a loss as its Gauss-Newton matrix, whose trace is exact, and a residual that is small.

$$ \operatorname{tr} H = \operatorname{tr} G + \mathbb E\, z^\top (H - G) z . $$

G takes with it the outlying eigenvalues that make Hutchinson's estimator noisy; what is left, the curvature of the
model weighted by the slopes of the loss, vanishes as the loss is fitted. For networks that are piecewise linear in each
layer (ReLU) the residual even has zero trace. It is sampled in the best of three ways that goes:

- signs that differ from sample to sample (`sample_signs`), where all layers are understood: the least noise by far, and
  no sampling at all where the network is found to be piecewise linear;
- signs of the parameters, through the curvature of the model (`model_curvature`);
- as H - G, a product with each, where a part of the loss is no function of the outputs (a penalty on weights).

A probe counts as one product in the first two ways and as two in the last; the exact trace of G is charged as one
product for each backward pass it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dissensus.probes.curvature import Curvature
from dissensus.probes.errors import ProbeError
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.gauss_newton_trace import Apart, gauss_newton_layer_traces
from dissensus.probes.model_curvature import ModelCurvature
from dissensus.probes.operator import Operator
from dissensus.probes.sample_signs import SampleSigns


class Rest:
    """H - G as an operator: a product with it is one with each."""

    def __init__(self, hessian: Operator, gauss_newton: Operator) -> None:
        self._hessian, self._gauss_newton = hessian, gauss_newton

    @property
    def size(self) -> int:
        """The length d of the vectors."""
        return self._hessian.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self._hessian.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are."""
        return self._hessian.device

    @property
    def products(self) -> int:
        """How many vectors were multiplied by either, both counted."""
        return self._hessian.products + self._gauss_newton.products

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        return self._hessian.matvec(v) - self._gauss_newton.matvec(v)


class Residual:
    """H - G for sampling, with what is known of G's trace."""

    def __init__(self, hessian: Curvature) -> None:
        matrix = GaussNewton.of(hessian)
        signs, apart = SampleSigns(matrix, look=False), list[str]()

        def look(index: int, batch: Apart) -> None:
            if not apart:
                try:
                    signs.take(index, batch)
                except ProbeError as why:
                    apart.append(str(why))

        traces = gauss_newton_layer_traces(matrix, look=look)
        self.names = list(traces)
        self._sizes = [hessian.landscape.shapes[name].numel() for name in traces]
        self.layers = np.array([made.value for made in traces.values()])
        """The trace of G, parameter by parameter."""
        self.charged = max(made.num_matvecs for made in traces.values())
        """Products that the exact trace of G is counted as: one for each backward pass."""
        self.by_sample: SampleSigns | None = None if apart else signs
        """The residual with signs for every sample, where that goes."""
        self.price = 1
        """Products that a product with `operator` counts as."""
        self.operator: Operator = ModelCurvature(hessian)
        """The residual as an operator."""
        self.notes: tuple[str, ...] = ()
        self._before = 0
        if apart:
            self.notes = (f"signs alike for all samples: {apart[0]}",)
            try:
                self.operator.matvec(torch.zeros(hessian.size, dtype=hessian.dtype, device=hessian.device))
            except ProbeError:
                self.operator, self.price = Rest(hessian, matrix), 2
                self._before = self.operator.products
        elif signs.nothing:
            self.charged += 1  # the vector that told so

    @property
    def spent(self) -> int:
        """Products so far, with the exact trace of G."""
        drawn = 0 if self.by_sample is None else self.by_sample.products
        return self.charged + drawn + self.operator.products - self._before

    @property
    def known(self) -> float:
        """The trace of G."""
        return float(self.layers.sum())

    @property
    def nothing(self) -> bool:
        """Whether H - G is known to have no trace."""
        return self.by_sample is not None and self.by_sample.nothing

    def pieces(self, lengths: Sequence[int]) -> np.ndarray:
        """Which parameters (columns) the consecutive pieces of a row (rows) are made of, as zeros and ones."""
        ends, cuts = np.cumsum([0, *self._sizes]), np.cumsum([0, *lengths])
        at = np.searchsorted(ends, cuts)
        for cut, index in zip(cuts, at, strict=True):
            if ends[index] != cut:
                raise ProbeError(
                    f"a piece ends inside parameter {self.names[index - 1]!r}: the exact trace of the Gauss-Newton "
                    "matrix is known for whole parameters; use method='hutchinson'"
                )
        inside = np.arange(len(self._sizes))
        return ((inside >= at[:-1, None]) & (inside < at[1:, None])).astype(float)


def residual_of(operator: Operator, *, required: bool) -> tuple[Residual | None, tuple[str, ...]]:
    """The residual of a Hessian; where there is none, an error if it is required, and otherwise None and why."""
    if not isinstance(operator, Curvature):
        if required:
            what = type(operator).__name__
            raise ProbeError(f"method 'split' needs the Hessian of a loss (a Curvature), got {what}; use 'deflated'")
        return None, ()
    try:
        return Residual(operator), ()
    except ProbeError as failure:
        if required:
            raise
        return None, (f"not split: {failure}",)
