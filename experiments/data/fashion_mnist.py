"""Fashion-MNIST: 60 000 + 10 000 gray images of 28 x 28 pixels in ten classes, from the files as they are published.

Reference: Xiao, Rasul, Vollgraf, arXiv:1708.07747. Nothing is downloaded: the files are those of Debian's package, or
wherever `data.path` says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.data.idx import read_idx
from dissensus.experiments.data.images import Images, LabelNoise, Part, image_data
from dissensus.experiments.errors import DataMissingError

PLACE = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package dataset-fashion-mnist puts them."""


@DATASETS.register("fashion-mnist")
def fashion_mnist(path: str = PLACE, train: Part = None, test: Part = None, *, noise: LabelNoise = 0.0) -> DataSet:
    """Fashion-MNIST from the folder `path`; `train` and `test` take that many of the first images.

    `noise` is the share of training labels replaced by a random other one.
    """
    folder = Path(path).expanduser()
    return image_data(
        "fashion-mnist", _part(folder, "train"), _part(folder, "t10k"), classes=10, first=(train, test), noise=noise
    )


def _part(folder: Path, part: str) -> Images:
    pixels = _array(folder, f"{part}-images-idx3-ubyte", 3)
    return Images(pixels[:, None], _array(folder, f"{part}-labels-idx1-ubyte", 1))


def _array(folder: Path, name: str, rank: int) -> np.ndarray:
    for file in (folder / f"{name}.gz", folder / name):
        if file.is_file():
            return read_idx(file, rank)
    raise DataMissingError(
        f"data set 'fashion-mnist': there is no {name}.gz in {folder}; on Debian: apt-get install "
        "dataset-fashion-mnist; elsewhere get the four files from github.com/zalandoresearch/fashion-mnist and set "
        "data.path to their folder"
    )
