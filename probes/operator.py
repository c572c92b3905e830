"""What the estimators ask of an operator, and the plainest one: a symmetric matrix that is known."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from dissensus.probes.errors import ProbeError


class Operator(Protocol):
    """A symmetric linear map on vectors of length `size`, seen only through its products."""

    @property
    def size(self) -> int:
        """The length d of the vectors."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the products are."""
        ...

    @property
    def products(self) -> int:
        """How many vectors were multiplied so far."""
        ...

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        ...


class Matrix:
    """A known symmetric matrix as an operator: for closed forms, and for checking the estimators themselves."""

    def __init__(self, matrix: Any) -> None:
        entries = torch.as_tensor(matrix)
        entries = entries if entries.is_floating_point() else entries.double()
        if entries.dim() != 2 or entries.shape[0] != entries.shape[1]:
            raise ProbeError(f"Matrix: needs a square matrix, got shape {tuple(entries.shape)}")
        asymmetry = float((entries - entries.T).abs().max()) if entries.numel() else 0.0
        if asymmetry > 1e-6 * max(float(entries.abs().max()), 1e-300):
            raise ProbeError(
                f"Matrix: not symmetric, an entry differs from its mirror by {asymmetry:.3g}; use (A+A.T)/2"
            )
        self._entries = entries
        self._products = 0

    @property
    def size(self) -> int:
        """The length d of the vectors."""
        return self._entries.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self._entries.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are."""
        return self._entries.device

    @property
    def products(self) -> int:
        """How many vectors were multiplied so far."""
        return self._products

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        check_vectors("Matrix", self, v)
        self._products += 1 if v.dim() == 1 else v.shape[0]
        return v @ self._entries


def check_vectors(who: str, operator: Operator, v: Tensor) -> None:
    """Refuses what is not a vector (d,) or a block (k, d) of the operator's dtype."""
    if not isinstance(v, Tensor) or v.dim() not in (1, 2) or v.shape[-1] != operator.size:
        shape = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
        raise ProbeError(f"{who}: wants a vector ({operator.size},) or a block (k, {operator.size}), got {shape}")
    if v.dtype != operator.dtype:
        raise ProbeError(
            f"{who}: wants vectors of {operator.dtype}, got {v.dtype}; convert them with v.to(operator.dtype)"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


class Difference:
    """A - B as an operator, such as the Hessian without its Gauss-Newton part; a product is one with each."""

    def __init__(self, a: Operator, b: Operator) -> None:
        if (a.size, a.dtype, a.device) != (b.size, b.dtype, b.device):
            raise ProbeError(
                f"Difference: the first operator is {a.size} wide, {a.dtype} on {a.device}, the second {b.size}, "
                f"{b.dtype} on {b.device}; build both from the same model and parameters"
            )
        self._a, self._b, self._products = a, b, 0

    @property
    def size(self) -> int:
        """The length d of the vectors."""
        return self._a.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""
        return self._a.dtype

    @property
    def device(self) -> torch.device:
        """Where the products are."""
        return self._a.device

    @property
    def products(self) -> int:
        """How many vectors were multiplied so far: by both, counted once."""
        return self._products

    def matvec(self, v: Tensor) -> Tensor:
        """The product with one vector (d,) or with every row of a block (k, d)."""
        check_vectors("Difference", self, v)
        self._products += 1 if v.dim() == 1 else v.shape[0]
        return self._a.matvec(v) - self._b.matvec(v)
