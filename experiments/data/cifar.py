"""CIFAR-10 and CIFAR-100: 50 000 + 10 000 colour images of 32 x 32 pixels, from the files as they are published.

Both published versions are read, from their folder or from the archive itself, nothing being unpacked:

| version | folder | archive | of an image |
|---|---|---|---|
| binary | `cifar-10-batches-bin`, `cifar-100-binary` | `cifar-10-binary.tar.gz`, ... | label byte(s), 3 x 1024 bytes |
| python | `cifar-10-batches-py`, `cifar-100-python` | `cifar-10-python.tar.gz`, ... | a row of an array in a pickle |

Pickles are read without running them (see `unpickling`).
Reference: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dissensus.experiments.data.dataset import DATASETS, DataSet
from dissensus.experiments.data.images import Images, LabelNoise, Part, image_data
from dissensus.experiments.data.unpickling import read_pickle
from dissensus.experiments.errors import ConfigError, DataMissingError

PIXELS = 3 * 32 * 32
LARGEST = 1 << 28
"""Bytes that a published file stays below (the largest has 160 million); what is longer is not read."""
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Version:
    """One published version of a data set."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    binary: bool


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
VERSIONS: dict[int, tuple[Version, Version]] = {
    10: (
        Version(
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            tuple(f"{name}.bin" for name in _FIVE),
            ("test_batch.bin",),
            binary=True,
        ),
        Version("cifar-10-batches-py", "cifar-10-python.tar.gz", _FIVE, ("test_batch",), binary=False),
    ),
    100: (
        Version("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), ("test.bin",), binary=True),
        Version("cifar-100-python", "cifar-100-python.tar.gz", ("train",), ("test",), binary=False),
    ),
}


@DATASETS.register("cifar-10")
def cifar_10(path: str = "data", train: Part = None, test: Part = None, *, noise: LabelNoise = 0.0) -> DataSet:
    """CIFAR-10 from the folder `path`; `train` and `test` take that many of the first images.

    `noise` is the share of training labels replaced by a random other one.
    """
    parts = _load("cifar-10", 10, path, "labels", labels=1, column=0)
    return image_data("cifar-10", *parts, classes=10, first=(train, test), noise=noise)


@DATASETS.register("cifar-100")
def cifar_100(
    path: str = "data",
    train: Part = None,
    test: Part = None,
    *,
    labels: Literal["fine", "coarse"] = "fine",
    noise: LabelNoise = 0.0,
) -> DataSet:
    """CIFAR-100 from the folder `path`, with its 100 fine or its 20 coarse labels; otherwise as CIFAR-10."""
    parts = _load("cifar-100", 100, path, f"{labels}_labels", labels=2, column=int(labels == "fine"))
    return image_data("cifar-100", *parts, classes=100 if labels == "fine" else 20, first=(train, test), noise=noise)


def _load(name: str, kind: int, path: str, key: str, *, labels: int, column: int) -> tuple[Images, Images]:
    """Training and test images of the first version that is there."""
    place = Path(path).expanduser()
    for version in VERSIONS[kind]:
        with _opened(place, version) as read:
            if read is None:
                continue

            def images(file: str, version: Version = version, read: Read = read) -> Images:
                raw, where = read(file), f"data set {name!r}: {version.folder}/{file} in {place}"
                return _binary(raw, where, labels, column) if version.binary else _pickled(raw, where, key)

            return _joined([images(f) for f in version.train]), _joined([images(f) for f in version.test])
    looked = ", ".join(f"{v.folder}/ and {v.archive}" for v in VERSIONS[kind])
    raise DataMissingError(
        f"data set {name!r} is not in {place.absolute()}: looked for {looked}; get one of the archives from "
        "www.cs.toronto.edu/~kriz/cifar.html and set data.path to the folder it is in, or to the archive itself"
    )


@contextmanager
def _opened(place: Path, version: Version) -> Iterator[Read | None]:
    """How to read a file of this version by its name, or `None` if the version is not there."""
    folders = [f for f in (place / version.folder, place) if (f / version.train[0]).is_file()]
    archives = [a for a in (place / version.archive, place) if a.is_file() and a.name == version.archive]
    if folders:
        yield lambda file: _whole(folders[0] / file)
    elif archives:
        try:
            with tarfile.open(archives[0], "r:*") as tar:
                members = {m.name.removeprefix("./"): m for m in tar.getmembers() if m.isfile()}
                yield lambda file: _member(tar, members.get(f"{version.folder}/{file}"), archives[0], file)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise ConfigError(f"{archives[0]} is damaged: {error}; get it again") from None
        except OSError as error:
            raise ConfigError(f"cannot read {archives[0]}: {error.strerror or error}") from None
    else:
        yield None


def _whole(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(f"{file} is longer than any published file; it is not read")
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{file} is missing beside {', '.join(sorted(f.name for f in file.parent.iterdir()))}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo | None, archive: Path, file: str) -> bytes:
    if member is None:
        raise ConfigError(f"{archive} holds no {file}; get it again")
    if member.size > LARGEST:
        raise ConfigError(f"{archive}: {file} is longer than any published file; it is not read")
    stream = tar.extractfile(member)
    return b"" if stream is None else stream.read()


def _binary(raw: bytes, where: str, labels: int, column: int) -> Images:
    row = labels + PIXELS
    if not raw or len(raw) % row:
        raise ConfigError(f"{where} is cut off: {len(raw)} bytes are no multiple of {row}, one image; get it again")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, row)
    return Images(rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, column])


def _pickled(raw: bytes, where: str, key: str) -> Images:
    try:
        tree = read_pickle(raw)
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{where} is damaged, or not what it says: {error}; get it again") from None
    pixels, labels = tree.get("data"), tree.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise ConfigError(f"{where} has no 'data' of {PIXELS} bytes per image")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(_is_label(v) for v in labels):
        raise ConfigError(f"{where} has no list {key!r} with a label for each of its {len(pixels)} images")
    return Images(pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.uint8))


def _is_label(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 256


def _joined(parts: list[Images]) -> Images:
    return Images(np.concatenate([p.pixels for p in parts]), np.concatenate([p.labels for p in parts]))
