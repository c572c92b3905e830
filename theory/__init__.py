"""Mathematics only: topologies and mixing matrices, their spectra, and what they predict. Never imports torch."""

if __name__ != "dissensus.theory":
    raise ImportError(f"import dissensus.theory, not {__name__}: the repository folder is not a top-level package")

from dissensus.theory.analysis import Report, bytes_per_step, report
from dissensus.theory.decomposition import birkhoff, matchings, one_peer_schedule
from dissensus.theory.effective import effective_neighbours
from dissensus.theory.errors import DissensusError, MixingError
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.outside import from_edges, from_file, from_graph
from dissensus.theory.registry import catalogue, register, topology
from dissensus.theory.spectrum import contraction, eigenvalues, spectral_gap
from dissensus.theory.stationary import Stationary, predict
from dissensus.theory.topology import ClosedForm, Moments, Topology, from_function, from_matrices
from dissensus.theory.weights import weigh

__all__ = [
    "ClosedForm",
    "DissensusError",
    "MixingError",
    "MixingMatrix",
    "Moments",
    "Report",
    "Stationary",
    "Topology",
    "birkhoff",
    "bytes_per_step",
    "catalogue",
    "contraction",
    "effective_neighbours",
    "eigenvalues",
    "from_edges",
    "from_file",
    "from_function",
    "from_graph",
    "from_matrices",
    "matchings",
    "one_peer_schedule",
    "predict",
    "register",
    "report",
    "spectral_gap",
    "topology",
    "weigh",
]
