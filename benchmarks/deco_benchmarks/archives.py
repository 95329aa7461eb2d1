"""Data sets as their official sites ship them, unpacked: CIFAR-10, CIFAR-100 (Python version) and SVHN (cropped)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from deco_export.images import Images
from deco_runtime.errors import DataError
from deco_runtime.preprocess import resize
from deco_runtime.types import Ints, Pixels
from scipy.io import loadmat

SIDE = 32
"""Side in pixels of every image in these archives."""


@dataclass(frozen=True)
class Archive:
    """A data set in files of fixed names.

    files: names of the files that must lie side by side in one folder.
    read: (folder, size) → class names, training and test images of size × size pixels.
    """

    name: str
    files: tuple[str, ...]
    read: Callable[[Path, int], tuple[tuple[str, ...], Images, Images]]


def find(root: Path) -> Archive | None:
    """The archive whose files lie in the folder `root`; None if there are none of any.

    Raises DataError, naming the missing ones, if only some of an archive's files are there.
    """
    for archive in ARCHIVES:
        missing = [name for name in archive.files if not (root / name).is_file()]
        if not missing:
            return archive
        if len(missing) < len(archive.files):
            raise DataError(
                f"expected the files of {archive.name}, {', '.join(archive.files)}, directly in {root}, "
                f"found {', '.join(missing)} missing: unpack the whole archive there"
            )
    return None


def _cifar10(root: Path, size: int) -> tuple[tuple[str, ...], Images, Images]:
    classes = _names(root / "batches.meta", b"label_names")
    parts = [_cifar(root / f"data_batch_{n}", b"labels", len(classes), size) for n in range(1, 6)]
    train = Images(np.concatenate([p.pixels for p in parts]), np.concatenate([p.labels for p in parts]))
    return classes, train, _cifar(root / "test_batch", b"labels", len(classes), size)


def _cifar100(root: Path, size: int) -> tuple[tuple[str, ...], Images, Images]:
    classes = _names(root / "meta", b"fine_label_names")
    train, test = (_cifar(root / part, b"fine_labels", len(classes), size) for part in ("train", "test"))
    return classes, train, test


def _svhn(root: Path, size: int) -> tuple[tuple[str, ...], Images, Images]:
    train, test = (_mat(root / f"{part}_32x32.mat", size) for part in ("train", "test"))
    return tuple(str(digit) for digit in range(10)), train, test


ARCHIVES = (
    Archive("CIFAR-10", (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"), _cifar10),
    Archive("CIFAR-100", ("train", "test", "meta"), _cifar100),
    Archive("SVHN", ("train_32x32.mat", "test_32x32.mat"), _svhn),
)


def _cifar(path: Path, key: bytes, classes: int, size: int) -> Images:
    """One file: b"data" (n, 3072) uint8, each row an image's R plane, then G, then B; labels a list under `key`."""
    found = unpickle(path)
    data = found.get(b"data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * SIDE**2:
        raise _unlike(path, f"b'data' as uint8 of shape (n, {3 * SIDE**2})")
    planes = data.reshape(-1, 3, SIDE, SIDE)
    return Images(_scale(planes.transpose(0, 2, 3, 1), size), _labels(path, found.get(key), len(data), classes))


def _names(path: Path, key: bytes) -> tuple[str, ...]:
    names = unpickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names) or not names:
        raise _unlike(path, f"a list of class names under {key!r}")
    return tuple(name.decode("utf-8", "replace") for name in names)


def _mat(path: Path, size: int) -> Images:
    """One file: X (32, 32, 3, n) uint8 in R, G, B; y (n, 1) with labels 1 … 10, where 10 is the digit 0."""
    try:
        found = loadmat(path)
    except Exception as error:  # scipy raises whatever a damaged file leads to
        raise _unlike(path, "a MATLAB 5 file") from error
    x, y = found.get("X"), found.get("y")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (SIDE, SIDE, 3):
        raise _unlike(path, f"X as uint8 of shape ({SIDE}, {SIDE}, 3, n)")
    if not isinstance(y, np.ndarray) or not np.isin(y, range(1, 11)).all():
        raise _unlike(path, "labels y of 1 … 10")
    return Images(_scale(x.transpose(3, 0, 1, 2), size), _labels(path, y.ravel() % 10, x.shape[3], 10))


def _scale(rgb: Pixels, size: int) -> Pixels:
    """(n, 32, 32, 3) R, G, B → (n, size, size, 3) B, G, R, scaled as the device does it."""
    scaled = np.empty((len(rgb), size, size, 3), np.uint8)
    for number, image in enumerate(rgb):
        scaled[number] = resize(np.ascontiguousarray(image[..., ::-1]), size)
    return scaled


def _labels(path: Path, labels: object, count: int, classes: int) -> Ints:
    found = np.asarray(labels)
    if found.shape != (count,) or not np.isin(found, range(classes)).all():
        raise _unlike(path, f"{count} labels of 0 … {classes - 1}")
    return found.astype(np.int64)


def _unlike(path: Path, expected: str) -> DataError:
    return DataError(f"expected {expected} in {path}, found something else: unpack the official archive again")


def unpickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a CIFAR file, with bytes as keys.

    These files are pickles, and a pickle may call any function: this reads only what they contain, numpy arrays and
    bytes. Raises DataError for a file that names anything else, without calling it, or that is no such pickle.
    """
    try:
        with path.open("rb") as file:
            found = _ArraysOnly(file, encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise _unlike(path, "a pickle of arrays that can be read") from error
    if not isinstance(found, dict):
        raise _unlike(path, "a dictionary")
    return found


def _encode(text: str, encoding: str) -> bytes:
    """`_codecs.encode` as pickle uses it for bytes; other codecs import modules, which a data file must not do."""
    if encoding != "latin1":
        raise ValueError(encoding)
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    # numpy's own function for this; its module has another name in numpy 2, as it has in newly written files.
    _RECONSTRUCT = np.empty(0).__reduce__()[0]
    _ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise DataError(
                f"expected only arrays in a CIFAR file, found one that wants to call {module}.{name}: "
                "do not use it, and download the official archive again"
            )
        return self._ALLOWED[module, name]
