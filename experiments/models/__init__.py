"""Models that train on a laptop, by name: one file per family, found by itself."""

from dissensus.experiments.models.building import MODELS, cross_entropy, model, parameters_hash, starts

__all__ = ["MODELS", "cross_entropy", "model", "parameters_hash", "starts"]
