"""Instruments for curvature and disagreement: pure functions that leave no trace on what they look at."""

if __name__ != "dissensus.probes":
    raise ImportError(f"import dissensus.probes, not {__name__}: the repository folder is not a top-level package")

from dissensus.probes.alignment import Alignment, alignment, captured, covariance_envelope
from dissensus.probes.average_sharpness import average_sharpness
from dissensus.probes.curvature import Curvature, fastest_block
from dissensus.probes.disagreement import Disagreement, by_parameter, consensus_distance
from dissensus.probes.dispersion import Dispersion, dispersion, norm_dispersion
from dissensus.probes.eigen import Eigenpair, top_eigenvalues
from dissensus.probes.envelope import envelope
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate
from dissensus.probes.heterogeneity import Heterogeneity, heterogeneity
from dissensus.probes.modes import ModeCurvature, ModeEnergy, by_mode, curvature_by_mode
from dissensus.probes.noise import NoiseMeasure, noise_measure
from dissensus.probes.operator import Matrix, Operator
from dissensus.probes.perturbation import Ball, Diagonal, Gaussian, LowRank, Sphere, Workers
from dissensus.probes.sharpness import sharpness
from dissensus.probes.slices import Slice, loss_slice, principal_directions, random_directions
from dissensus.probes.subspace import Angles, disagreement_angles, principal_angles
from dissensus.probes.trace import hessian_trace, layer_traces
from dissensus.probes.worst_case import worst_case_sharpness

__all__ = [
    "Alignment",
    "Angles",
    "Ball",
    "Curvature",
    "Diagonal",
    "Disagreement",
    "Dispersion",
    "Eigenpair",
    "Estimate",
    "Gaussian",
    "Heterogeneity",
    "LowRank",
    "Matrix",
    "ModeCurvature",
    "ModeEnergy",
    "NoiseMeasure",
    "Operator",
    "ProbeError",
    "Slice",
    "Sphere",
    "Workers",
    "alignment",
    "average_sharpness",
    "by_mode",
    "by_parameter",
    "captured",
    "consensus_distance",
    "covariance_envelope",
    "curvature_by_mode",
    "disagreement_angles",
    "dispersion",
    "envelope",
    "fastest_block",
    "hessian_trace",
    "heterogeneity",
    "layer_traces",
    "loss_slice",
    "noise_measure",
    "norm_dispersion",
    "principal_angles",
    "principal_directions",
    "random_directions",
    "sharpness",
    "top_eigenvalues",
    "worst_case_sharpness",
]
