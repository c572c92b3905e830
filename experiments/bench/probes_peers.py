"""Other libraries' products with the Hessian of one batch, behind one face: rows in, rows out. All are optional."""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dissensus.experiments.bench.probes_cases import Batch, Case, criterion

Rows = Callable[[Tensor], Tensor]


def pyhessian(case: Case, batch: Batch) -> Rows:
    """PyHessian with its graph of one batch, which it keeps between vectors."""
    library, utils = imported("pyhessian"), imported("pyhessian.utils")
    model = copy.deepcopy(case.model())
    made = library.hessian(model, criterion, data=batch, cuda=False)

    def rows(block: Tensor) -> Tensor:
        return torch.stack(
            [_flat(utils.hessian_vector_product(made.gradsH, made.params, _split(v, model))) for v in block]
        )

    return rows


def curvlinops(case: Case, batch: Batch) -> Rows:
    """Curvlinops' operator, which takes the block as a matrix."""
    library = imported("curvlinops")
    model = copy.deepcopy(case.model())
    flat = _Flattened(model)
    batches = [(batch[0], batch[1].flatten())]
    made = library.HessianLinearOperator(
        flat, nn.CrossEntropyLoss(), list(flat.parameters()), batches, check_deterministic=False
    )
    return lambda block: (made @ block.T.contiguous()).T


def hessian_eigenthings(case: Case, batch: Batch) -> Rows:
    """The operator of hessian-eigenthings."""
    operators = imported("hessian_eigenthings.operators.hessian")
    made = operators.HessianOperator(copy.deepcopy(case.model()), [batch], case.loss)
    return lambda block: torch.stack([made.matvec(v) for v in block])


def opened_pyhessian(case: Case) -> tuple[Any, Any]:
    """PyHessian's own object for a case, and the module its products are in."""
    library, utils = imported("pyhessian"), imported("pyhessian.utils")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return library.hessian(copy.deepcopy(case.model()), criterion, data=case.batch(), cuda=False), utils


PEERS: dict[str, Callable[[Case, Batch], Rows]] = {
    "PyHessian": pyhessian,
    "curvlinops": curvlinops,
    "hessian-eigenthings": hessian_eigenthings,
}


def available(case: Case, batch: Batch) -> tuple[dict[str, Rows], dict[str, str]]:
    """The peers' products, and why a peer is missing. They want the mathematical attention kernel set around them."""
    found: dict[str, Rows] = {}
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            with mathematical():
                found[name] = make(case, batch)
        except ImportError as error:
            missing[name] = f"not installed: {error}; pip install 'dissensus[bench-probes]'"
    return found, missing


@contextlib.contextmanager
def mathematical() -> Iterator[None]:
    """Attention that can be differentiated twice, which the peers leave to their user; their warnings are their own."""
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Flattened(nn.Module):
    """Positions of a sequence as rows, since the peer's loss is torch's own module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).flatten(0, -2)


def imported(name: str) -> Any:
    """A package that may be missing."""
    return importlib.import_module(name)


def _split(v: Tensor, model: nn.Module) -> list[Tensor]:
    parameters = list(model.parameters())
    pieces = v.split([p.numel() for p in parameters])
    return [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]


def _flat(pieces: Any) -> Tensor:
    return torch.cat([piece.detach().reshape(-1) for piece in pieces])
