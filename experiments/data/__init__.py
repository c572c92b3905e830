"""Data for the laptop: data sets by name, and how their samples come to the workers."""

from dissensus.experiments.data.augmentation import AUGMENTATIONS, augmentation
from dissensus.experiments.data.dataset import DATASETS, DataSet, dataset
from dissensus.experiments.data.order import Order
from dissensus.experiments.data.partition import PARTITIONS, heterogeneity, iid_shards, label_histogram, shards_of
from dissensus.experiments.data.task import Task

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "PARTITIONS",
    "DataSet",
    "Order",
    "Task",
    "augmentation",
    "dataset",
    "heterogeneity",
    "iid_shards",
    "label_histogram",
    "shards_of",
]
