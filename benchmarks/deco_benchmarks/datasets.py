"""Data sets of the experiments, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from deco_export.data import Images, digits, pick
from deco_runtime import folder
from deco_runtime.errors import DataError
from deco_runtime.preprocess import resize

from deco_benchmarks import archives

TEST_SHARE = 0.1
"""Share of every class taken for testing where a folder has no test part (and as much again for validation)."""


@dataclass(frozen=True)
class Dataset:
    """Training and test images, resized; labels index `classes`. validation: None where the data has no such part."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    validation: Images | None = None


def name(source: str) -> str:
    """What results call the data: "digits", the archive's own name, or the folder's. Reads nothing.

    Raises DataError for an archive of which files are missing.
    """
    if source == "digits":
        return source
    archive = archives.find(Path(source))
    return archive.name if archive is not None else Path(source).name


def load(source: str, size: int, seed: int) -> Dataset:
    """scikit-learn's "digits", an unpacked official archive of CIFAR-10, CIFAR-100 or SVHN, or an image folder.

    A folder without train/ and test/ is split 80/10/10 by the seed.

    size: side of the images in pixels. Raises DataError for a folder that cannot be used, or with unreadable images,
    since a result must not depend on which these are.
    """
    rng = np.random.default_rng(seed)
    if source == "digits":
        everything = digits(size)
        return Dataset(name(source), tuple(map(str, range(10))), *_three_parts(everything, rng))
    root = Path(source)
    if not root.is_dir():
        known = "; or ".join(f"{', '.join(a.files)} ({a.name})" for a in archives.ARCHIVES)
        raise DataError(
            f"expected a folder at {root} with <class>/<image>, or with the unpacked files {known}, but found none; "
            "check the path"
        )
    archive = archives.find(root)
    if archive is not None:
        return Dataset(name(source), *archive.read(root, size))
    train_dir, test_dir = folder.split_folder(root)
    train, classes = _read(train_dir, None, size)
    if test_dir is not None:
        return Dataset(name(source), classes, train, _read(test_dir, classes, size)[0])
    count = np.bincount(train.labels)
    if count.min() < 2:
        raise DataError(
            f"expected at least 2 images of every class in {train_dir} to split off a test part, but "
            f"{classes[int(count.argmin())]!r} has 1; add images, or make train/ and test/"
        )
    return Dataset(name(source), classes, *_three_parts(train, rng))


def _three_parts(images: Images, rng: np.random.Generator) -> tuple[Images, Images, Images]:
    """Training, test and validation images; at least one training and one test image of every class."""
    held, rest = pick(images.labels, 2 * TEST_SHARE, rng)
    test, validation = pick(images.labels[held], 0.5, rng)
    return images[rest], images[held[test]], images[held[validation]]


def _read(root: Path, classes: tuple[str, ...] | None, size: int) -> tuple[Images, tuple[str, ...]]:
    listed = folder.list_folder(root, classes)
    pixels = np.empty((len(listed.files), size, size, 3), np.uint8)
    for number, file in enumerate(listed.files):
        image = folder.read_image(file)
        if image is None:
            raise DataError(f"expected an image that OpenCV can read, but {file} is not; replace or remove it")
        pixels[number] = resize(image, size)
    return Images(pixels, np.asarray(listed.labels, np.int64)), listed.classes
