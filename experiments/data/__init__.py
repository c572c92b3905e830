"""Data for the laptop: data sets by name, and how their samples come to the workers."""

from dissensus.experiments.data.dataset import DATASETS, DataSet, dataset
from dissensus.experiments.data.partition import Order, iid_shards

__all__ = ["DATASETS", "DataSet", "Order", "dataset", "iid_shards"]
