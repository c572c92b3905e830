"""Placement: which worker, or which stage of which pipeline, goes on which device when links differ.

found = place(TopologyPlacement(topology("one-peer-exponential", 64), two_universities(), message_bytes=1e8))
found.assignment, found.cost, found.identity, found.random.mean
found = place(PipelinePlacement(data_centre(), STAGES, GROUPS, GRADIENT_BYTES, ACTIVATION_BYTES))
found.assignment.reshape(STAGES, GROUPS)      # a row is a stage, a column a pipeline
"""

from dissensus.theory.runtime.placement.cost import Messages, PipelinePlacement, TopologyPlacement, bottleneck
from dissensus.theory.runtime.placement.scenarios import (
    ACTIVATION_BYTES,
    GRADIENT_BYTES,
    GROUPS,
    STAGES,
    Links,
    clusters,
    data_centre,
    eight_regions,
    four_regions,
    spot_instances,
    two_universities,
)
from dissensus.theory.runtime.placement.search import Placed, Problem, RandomPlacements, place, random_placements

__all__ = [
    "ACTIVATION_BYTES",
    "GRADIENT_BYTES",
    "GROUPS",
    "STAGES",
    "Links",
    "Messages",
    "PipelinePlacement",
    "Placed",
    "Problem",
    "RandomPlacements",
    "TopologyPlacement",
    "bottleneck",
    "clusters",
    "data_centre",
    "eight_regions",
    "four_regions",
    "place",
    "random_placements",
    "spot_instances",
    "two_universities",
]
