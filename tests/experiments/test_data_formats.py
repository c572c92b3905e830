"""Readers of published formats, on tiny files that are written here byte by byte."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.experiments.data import DataSet, dataset
from dissensus.experiments.data.fashion_mnist import PLACE
from dissensus.experiments.data.unpickling import read_pickle
from dissensus.experiments.errors import ConfigError

RNG = np.random.default_rng(7)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def fashion(folder: Path, *, zipped: bool = True) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (7, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(7),
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (3, 28, 28)),
        "t10k-labels-idx1-ubyte": np.array([9, 0, 4]),
    }
    for name, array in arrays.items():
        raw = idx(array)
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(raw) if zipped else raw)
    return arrays


def normalised(data: DataSet, train: np.ndarray, test: np.ndarray) -> None:
    """The constants are the training pixels' own, per channel."""
    mean, deviation = (of(train.astype(float), axis=(0, 2, 3), keepdims=True) for of in (np.mean, np.std))
    assert np.allclose(data.train_x.numpy(), (train - mean) / deviation, atol=1e-5)
    assert np.allclose(data.test_x.numpy(), (test - mean) / deviation, atol=1e-5)
    assert np.allclose(data.black, (-mean / deviation).ravel(), atol=1e-5)
    assert data.train_x.dtype == torch.float32


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist_is_read_as_published(tmp_path: Path, zipped: bool) -> None:
    arrays = list(fashion(tmp_path, zipped=zipped).values())
    data = dataset("fashion-mnist", {"path": str(tmp_path)})
    assert (data.size, data.shape, data.classes) == (7, (1, 28, 28), 10)
    assert data.train_y.tolist() == list(range(7))
    assert data.test_y.tolist() == [9, 0, 4]
    normalised(data, arrays[0][:, None], arrays[2][:, None])
    few = dataset("fashion-mnist", {"path": str(tmp_path), "train": 4, "test": 2, "noise": 0.5})
    assert (few.size, few.test_y.tolist()) == (4, [9, 0])
    assert int((few.train_y != data.train_y[:4]).sum()) == 2
    normalised(few, arrays[0][:4, None], arrays[2][:2, None])


def test_fashion_mnist_that_is_not_there_says_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no train-images-idx3-ubyte\.gz in .*apt-get install dataset-fashion-mnist"):
        dataset("fashion-mnist", {"path": str(tmp_path)})
    fashion(tmp_path)
    with pytest.raises(ConfigError, match=r"has 7 train images, train = 8 asks for more"):
        dataset("fashion-mnist", {"path": str(tmp_path), "train": 8})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda raw: raw[:-1], "cut off: 5503 bytes for sizes .7, 28, 28., expected 5504"),
        ("train-images-idx3-ubyte", lambda raw: raw[:9], "cut off: 9 bytes"),
        ("train-images-idx3-ubyte", lambda raw: raw + b"x", "too long: 5505 bytes"),
        ("train-images-idx3-ubyte", lambda raw: b"\x50\x4b" + raw[2:], "is no IDX file: it begins with 50 4b 08 03"),
        ("train-images-idx3-ubyte", lambda raw: b"", "is no IDX file: it begins with nothing"),
        ("train-images-idx3-ubyte", lambda raw: b"\0\0\x0d\x03" + raw[4:], "numbers of type 0x0d"),
        ("train-images-idx3-ubyte", lambda raw: idx(np.zeros(5)), "has 1 axes, expected 3: images are wanted"),
        ("train-labels-idx1-ubyte", lambda raw: idx(np.arange(6)), "7 train images, but 6 labels"),
        ("train-labels-idx1-ubyte", lambda raw: idx(np.arange(7) + 4), "has 10 classes, but its files hold label 10"),
        ("t10k-images-idx3-ubyte", lambda raw: gzip.compress(raw)[:-9], "is damaged: .*; get it again"),
        ("t10k-images-idx3-ubyte", lambda raw: gzip.compress(raw)[:30] + b"\0" * 40, "is damaged: .*; get it again"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, name: str, change: Any, message: str) -> None:
    arrays = fashion(tmp_path, zipped=False)
    (tmp_path / name).write_bytes(change(idx(arrays[name])))
    with pytest.raises(ConfigError, match=message):
        dataset("fashion-mnist", {"path": str(tmp_path)})


@pytest.mark.skipif(not Path(PLACE).is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_the_installed_fashion_mnist_is_the_published_one() -> None:
    data = dataset("fashion-mnist", {"train": 6000, "test": 1000})
    assert (data.size, len(data.test_y), data.shape) == (6000, 1000, (1, 28, 28))
    assert len(data.train_y.unique()) == 10
    assert float(data.train_x.double().mean()) == pytest.approx(0, abs=1e-5)


def rows(count: int, labels: int) -> np.ndarray:
    raw = RNG.integers(0, 256, (count, labels + 3072)).astype(np.uint8)
    raw[:, :labels] %= 20
    raw[:, 0] %= 10
    return raw


def array_pickle(array: np.ndarray, more: dict[bytes, Any]) -> bytes:
    """As Python 2 wrote it: protocol 2, byte strings for keys and for the raw numbers."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = array.astype(np.uint8).tobytes()
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\0K\1\x87R(K\3"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    shape = struct.pack("<cIcI", b"J", array.shape[0], b"J", array.shape[1]) + b"\x86"
    body = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
    body += b"(K\1" + shape + dtype + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    out = b"\x80\x02}(" + text(b"data") + body
    for key, value in more.items():
        out += text(key) + b"](" + b"".join(b"K" + bytes([v]) for v in value) + b"e"
    return out + b"u."


def binary_10(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: rows(4, 1) for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")}
    for name, raw in files.items():
        (folder / name).write_bytes(raw.tobytes())
    return files


def test_cifar_10_binary_is_read_as_published(tmp_path: Path) -> None:
    files = list(binary_10(tmp_path / "cifar-10-batches-bin").values())
    data = dataset("cifar-10", {"path": str(tmp_path)})
    assert (data.size, len(data.test_y), data.shape, data.classes) == (20, 4, (3, 32, 32), 10)
    train = np.concatenate(files[:5])
    assert data.train_y.tolist() == train[:, 0].tolist()
    normalised(data, train[:, 1:].reshape(-1, 3, 32, 32), files[5][:, 1:].reshape(-1, 3, 32, 32))
    assert dataset("cifar-10", {"path": str(tmp_path / "cifar-10-batches-bin")}).fingerprint == data.fingerprint


def test_all_versions_of_cifar_10_are_the_same_data(tmp_path: Path) -> None:
    files = binary_10(tmp_path / "bin" / "cifar-10-batches-bin")
    wanted = dataset("cifar-10", {"path": str(tmp_path / "bin")}).fingerprint
    old, new = tmp_path / "old" / "cifar-10-batches-py", tmp_path / "new" / "cifar-10-batches-py"
    for folder in (old, new):
        folder.mkdir(parents=True)
    for name, raw in files.items():
        name, labels = name.removesuffix(".bin"), raw[:, 0].tolist()
        (old / name).write_bytes(array_pickle(raw[:, 1:], {b"labels": labels, b"filenames": []}))
        (new / name).write_bytes(pickle.dumps({b"data": raw[:, 1:].copy(), b"labels": labels}, protocol=2))
    for folder, archive in (
        (old, "cifar-10-python.tar.gz"),
        (tmp_path / "bin/cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    ):
        with tarfile.open(tmp_path / archive, "w:gz") as tar:
            tar.add(folder, folder.name)
    places = [
        old.parent,
        new.parent,
        tmp_path / "cifar-10-python.tar.gz",
        tmp_path / "cifar-10-binary.tar.gz",
        tmp_path,
    ]
    for place in places:
        assert dataset("cifar-10", {"path": str(place)}).fingerprint == wanted, place


def test_cifar_100_has_fine_and_coarse_labels_in_both_versions(tmp_path: Path) -> None:
    parts = {name: rows(6, 2) for name in ("train", "test")}
    parts["train"][:, 1] = [99, 3, 50, 1, 2, 3]
    (tmp_path / "b" / "cifar-100-binary").mkdir(parents=True)
    (tmp_path / "p" / "cifar-100-python").mkdir(parents=True)
    for name, raw in parts.items():
        (tmp_path / "b" / "cifar-100-binary" / f"{name}.bin").write_bytes(raw.tobytes())
        labels = {b"coarse_labels": raw[:, 0].tolist(), b"fine_labels": raw[:, 1].tolist()}
        (tmp_path / "p" / "cifar-100-python" / name).write_bytes(array_pickle(raw[:, 2:], labels))
    for place in ("b", "p"):
        fine = dataset("cifar-100", {"path": str(tmp_path / place)})
        coarse = dataset("cifar-100", {"path": str(tmp_path / place), "labels": "coarse"})
        assert (fine.classes, coarse.classes) == (100, 20)
        assert fine.train_y.tolist() == [99, 3, 50, 1, 2, 3]
        assert coarse.train_y.tolist() == parts["train"][:, 0].tolist()
        normalised(fine, parts["train"][:, 2:].reshape(-1, 3, 32, 32), parts["test"][:, 2:].reshape(-1, 3, 32, 32))


def test_cifar_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"not in .*: looked for cifar-10-batches-bin/ and cifar-10-binary\.tar\.gz, cif"
    ):
        dataset("cifar-10", {"path": str(tmp_path)})
    binary_10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigError, match=r"data_batch_3\.bin is missing beside data_batch_1\.bin"):
        dataset("cifar-10", {"path": str(tmp_path)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-5], "is cut off: 12287 bytes are no multiple of 3073, one image"),
        (lambda raw: b"", "is cut off: 0 bytes"),
        (lambda raw: b"\x0c" + raw[1:], "has 10 classes, but its files hold label 12"),
    ],
)
def test_damaged_binary_batches_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    raw = binary_10(tmp_path)["data_batch_2.bin"].tobytes()
    (tmp_path / "data_batch_2.bin").write_bytes(change(raw))
    with pytest.raises(ConfigError, match=message):
        dataset("cifar-10", {"path": str(tmp_path)})


@pytest.mark.parametrize("cut", [10, 200, 2000])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int) -> None:
    binary_10(tmp_path / "cifar-10-batches-bin")
    archive = tmp_path / "elsewhere" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(ConfigError, match=r"cifar-10-binary\.tar\.gz.*get it again"):
        dataset("cifar-10", {"path": str(archive)})


class Trap:
    sprung = False

    def __reduce__(self) -> tuple:
        return (setattr, (Trap, "sprung", True))


def test_a_pickle_runs_nothing() -> None:
    for tree in ({b"data": Trap()}, Trap(), {b"data": np.array([Trap()], dtype=object)}):
        with pytest.raises(pickle.UnpicklingError, match=r"asks for __builtin__\.setattr|arrays of .*O8"):
            read_pickle(pickle.dumps(tree, protocol=2))
    assert not Trap.sprung
    with pytest.raises(pickle.UnpicklingError, match=r"asks for os\.system"):
        read_pickle(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(pickle.UnpicklingError, match=r"asks for (posix|nt)\.system"):
        read_pickle(pickle.dumps(os.system, protocol=2))
    with pytest.raises(pickle.UnpicklingError, match="outside of itself"):
        read_pickle(b"Pthere\n.")


@pytest.mark.parametrize(
    "tree",
    [[1, 2], {b"data": np.zeros(3)}, {b"data": np.zeros((2, 2), dtype=np.uint8, order="F")}],
    ids=["list", "floats", "columns first"],
)
def test_a_pickle_of_something_else_is_refused(tree: Any) -> None:
    with pytest.raises(pickle.UnpicklingError):
        read_pickle(pickle.dumps(tree, protocol=2))


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_pickle_with_a_wrong_byte_or_cut_anywhere_fails_in_one_way(at: int) -> None:
    raw = array_pickle(np.arange(6).reshape(2, 3), {b"labels": [1, 2]})
    assert np.array_equal(read_pickle(raw)["data"], np.arange(6).reshape(2, 3))
    assert read_pickle(raw)["labels"] == [1, 2]
    at %= len(raw)
    for damaged in (raw[:at], raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :]):
        try:
            assert isinstance(read_pickle(damaged), dict)
        except pickle.UnpicklingError:
            continue


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({b"labels": [1]}, "has no 'data' of 3072 bytes per image"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "has no list 'labels' with a label for each of its 2 images"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "has no list 'labels'"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, "has no list 'labels'"),
        ({b"data": np.zeros((2, 3072), np.float32)}, "damaged, or not what it says: arrays of"),
    ],
)
def test_pickled_batches_without_their_parts_are_refused(tmp_path: Path, tree: dict, message: str) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(tree, protocol=2))
    with pytest.raises(ConfigError, match=message):
        dataset("cifar-10", {"path": str(tmp_path)})


def test_an_archive_without_a_file_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("cifar-100-binary/test.bin")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(ConfigError, match=r"holds no train\.bin; get it again"):
        dataset("cifar-100", {"path": str(tmp_path)})
