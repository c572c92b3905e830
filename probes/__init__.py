"""Instruments for curvature and disagreement: pure functions that leave no trace on what they look at."""

if __name__ != "dissensus.probes":
    raise ImportError(f"import dissensus.probes, not {__name__}: the repository folder is not a top-level package")

from dissensus.probes.across_ranks import AcrossRanks
from dissensus.probes.alignment import Alignment, alignment, captured, covariance_envelope
from dissensus.probes.attached import Attached
from dissensus.probes.average_sharpness import average_sharpness
from dissensus.probes.curvature import Curvature, fastest_block
from dissensus.probes.density import Density, spectral_density
from dissensus.probes.diagonal import DiagonalEstimate, hessian_diagonal
from dissensus.probes.disagreement import Disagreement, by_parameter, consensus_distance
from dissensus.probes.dispersion import Dispersion, dispersion, norm_dispersion
from dissensus.probes.eigen import Eigenpair, top_eigenvalues
from dissensus.probes.envelope import envelope
from dissensus.probes.errors import ProbeError
from dissensus.probes.estimate import Estimate
from dissensus.probes.fisher import Fisher
from dissensus.probes.frobenius import frobenius_norm
from dissensus.probes.gauss_newton import GaussNewton
from dissensus.probes.gauss_newton_trace import gauss_newton_layer_traces, gauss_newton_trace
from dissensus.probes.heterogeneity import Heterogeneity, heterogeneity
from dissensus.probes.modes import ModeCurvature, ModeEnergy, by_mode, curvature_by_mode
from dissensus.probes.noise import NoiseMeasure, noise_measure
from dissensus.probes.operator import Difference, Matrix, Operator
from dissensus.probes.perturbation import Ball, Diagonal, Gaussian, LowRank, Sphere, Workers
from dissensus.probes.schedule import Epochs, Every, LogSpaced, Never, schedule
from dissensus.probes.sharpness import sharpness
from dissensus.probes.slices import Slice, loss_slice, principal_directions, random_directions
from dissensus.probes.subspace import Angles, disagreement_angles, principal_angles
from dissensus.probes.trace import hessian_trace, layer_traces
from dissensus.probes.worst_case import worst_case_sharpness

__all__ = [
    "AcrossRanks",
    "Alignment",
    "Angles",
    "Attached",
    "Ball",
    "Curvature",
    "Density",
    "Diagonal",
    "DiagonalEstimate",
    "Difference",
    "Disagreement",
    "Dispersion",
    "Eigenpair",
    "Epochs",
    "Estimate",
    "Every",
    "Fisher",
    "GaussNewton",
    "Gaussian",
    "Heterogeneity",
    "LogSpaced",
    "LowRank",
    "Matrix",
    "ModeCurvature",
    "ModeEnergy",
    "Never",
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
    "frobenius_norm",
    "gauss_newton_layer_traces",
    "gauss_newton_trace",
    "hessian_diagonal",
    "hessian_trace",
    "heterogeneity",
    "layer_traces",
    "loss_slice",
    "noise_measure",
    "norm_dispersion",
    "principal_angles",
    "principal_directions",
    "random_directions",
    "schedule",
    "sharpness",
    "spectral_density",
    "top_eigenvalues",
    "worst_case_sharpness",
]
