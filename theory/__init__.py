"""Mathematics only: topologies and mixing matrices, their spectra, and what they predict. Never imports torch."""

if __name__ != "dissensus.theory":
    raise ImportError(f"import dissensus.theory, not {__name__}: the repository folder is not a top-level package")

from dissensus.theory.errors import MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.registry import register, topology
from dissensus.theory.topology import ClosedForm, Moments, Topology, from_function, from_matrices

__all__ = [
    "ClosedForm",
    "MixingError",
    "MixingMatrix",
    "Moments",
    "Topology",
    "from_function",
    "from_matrices",
    "register",
    "topology",
]
