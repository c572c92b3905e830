"""Instruments for curvature and disagreement: pure functions that leave no trace on what they look at."""

if __name__ != "dissensus.probes":
    raise ImportError(f"import dissensus.probes, not {__name__}: the repository folder is not a top-level package")

from dissensus.probes.alignment import Alignment, alignment, captured, covariance_envelope
from dissensus.probes.curvature import Curvature, fastest_block
from dissensus.probes.disagreement import Disagreement, by_parameter, consensus_distance
from dissensus.probes.dispersion import Dispersion, dispersion, norm_dispersion
from dissensus.probes.eigen import Eigenpair, top_eigenvalues
from dissensus.probes.envelope import envelope
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate
from dissensus.probes.noise import NoiseMeasure, noise_measure
from dissensus.probes.operator import Matrix, Operator
from dissensus.probes.trace import hessian_trace, layer_traces

__all__ = [
    "Alignment",
    "Curvature",
    "Disagreement",
    "Dispersion",
    "Eigenpair",
    "Estimate",
    "Matrix",
    "NoiseMeasure",
    "Operator",
    "ProbeError",
    "alignment",
    "by_parameter",
    "captured",
    "consensus_distance",
    "covariance_envelope",
    "dispersion",
    "envelope",
    "fastest_block",
    "hessian_trace",
    "layer_traces",
    "noise_measure",
    "norm_dispersion",
    "top_eigenvalues",
]
