"""Data sets of the experiments, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np
from deco_export.data import digits, pick
from deco_export.images import Images
from deco_export.takes import describe, find_takes
from deco_runtime.errors import DataError, UsageError
from deco_runtime.pictures import folder
from deco_runtime.preprocess import fitted, resize
from deco_runtime.sources.orders import no_recording
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Ints, Pixels

from deco_benchmarks import archives

TEST_SHARE = 0.1
"""Share of every class taken for testing where a folder has no test part (and as much again for validation)."""


@dataclass(frozen=True)
class Photos(Images):
    """Images of a folder. files: the names of those they were read from, <class>/<image>."""

    files: tuple[PurePath, ...] = ()

    def __getitem__(self, index: Ints | slice) -> Photos:
        files = tuple(self.files[i] for i in np.arange(len(self))[index])
        return Photos(self.pixels[index], self.labels[index], self.takes[index], files)

    def with_takes(self) -> Photos:
        """The same images with their takes found, as deco-export finds them."""
        names = [file.name for file in self.files]
        return replace(self, takes=find_takes(names, self.labels, describe(self.pixels)))


@dataclass(frozen=True)
class Dataset:
    """Training and test images, resized; labels index `classes`. Those of folders are `Photos`.

    validation: None where the data has no such part. labelled: the labelled images, where these are not a share of
    `train`.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    validation: Images | None = None
    labelled: Images | None = None


@dataclass(frozen=True)
class Folders:
    """Image folders of a data set, listed; labels index the classes of `labelled`, or of `train` where that is None.
    test: None where it has to be split off."""

    labelled: folder.ImageFolder | None
    train: folder.ImageFolder
    test: folder.ImageFolder | None


def name(source: str) -> str:
    """What results call the data: "digits", the archive's own name, or the folder's. Reads nothing.

    Raises DataError for an archive of which files are missing.
    """
    if source == "digits":
        return source
    archive = archives.find(Path(source))
    return archive.name if archive is not None else Path(source).name


def load(source: str, size: int, seed: int, labelled_from: str | None = None) -> Dataset:
    """scikit-learn's "digits", an unpacked official archive of CIFAR-10, CIFAR-100 or SVHN, or an image folder.

    A folder without parts is split 80/10/10 by the seed. labelled_from: as for `list_folders`, for an image folder.

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
    found = list_folders(root, labelled_from)
    classes, train = found.train.classes, _read(found.train, size)
    labelled = _read(found.labelled, size) if found.labelled is not None else None
    if found.test is not None:
        return Dataset(name(source), classes, train, _read(found.test, size), labelled=labelled)
    present, count = np.unique(train.labels, return_counts=True)
    if count.min() < 2:
        raise DataError(
            f"expected at least 2 images of every class in {found.train.root} to split off a test part, but "
            f"{classes[int(present[count.argmin()])]!r} has 1; add images, or make train/ and test/"
        )
    return Dataset(name(source), classes, *_three_parts(train, rng), labelled)


def list_folders(root: Path, labelled_from: str | None = None) -> Folders:
    """The images of an image folder's parts: train/ and test/, or stream/ and test/, or all of it and None.

    labelled_from: image folder of which all images, of train/ if it has one, are the labelled ones. Its classes are
    those of the data, of which `root` may lack some but not have others.

    Raises DataError for a folder that cannot be used.
    """
    labelled, classes = None, None
    if labelled_from is not None:
        labelled = folder.list_folder(folder.split_folder(Path(labelled_from))[0])
        classes = labelled.classes
    train_dir, test_dir = folder.split_folder(root, classes)
    if train_dir == root and (root / "stream").is_dir() and (root / "test").is_dir():
        train_dir, test_dir = root / "stream", root / "test"
    train = folder.list_folder(train_dir, classes)
    return Folders(labelled, train, folder.list_folder(test_dir, train.classes) if test_dir is not None else None)


def check_folder(source: str, option: str) -> None:
    """Raise UsageError, naming the option that needs it, where the data is no image folder: digits, or an archive."""
    if source == "digits" or archives.find(Path(source)) is not None:
        raise UsageError(
            f"expected --data to be an image folder for {option}, but found {name(source)}; choose another, or leave "
            f"{option} out"
        )


def check_recorded(source: str, labelled_from: str | None = None) -> str | None:
    """A sentence where the names of the training images are not those of a recording, or None.

    Raises UsageError where they have no names, as digits and archives, and DataError as `list_folders`.
    """
    check_folder(source, "--stream recorded")
    train = list_folders(Path(source), labelled_from).train
    return no_recording([file.relative_to(train.root) for file in train.files])


def _three_parts(images: Images, rng: np.random.Generator) -> tuple[Images, Images, Images]:
    """Training, test and validation images; at least one training and one test image of every class."""
    held, rest = pick(images.labels, 2 * TEST_SHARE, rng)
    test, validation = pick(images.labels[held], 0.5, rng)
    return images[rest], images[held[test]], images[held[validation]]


def _read(listed: folder.ImageFolder, size: int) -> Photos:
    pixels = np.empty((len(listed.files), size, size, 3), np.uint8)
    for number, file in enumerate(listed.files):
        image = listed.read(file)
        if image is None:
            why = folder.why_unreadable(file)
            raise DataError(f"expected an image that can be read, but {file} cannot ({why}); replace or remove it")
        pixels[number] = resize(image, size)
    names = tuple(file.relative_to(listed.root) for file in listed.files)
    return Photos(pixels, np.asarray(listed.labels, np.int64), files=names)


def unseen(
    root: Path,
    classes: tuple[str, ...] | None,
    most: int,
    bundle: Bundle,
    rng: np.random.Generator,
    tick: Callable[[int, int], None],
) -> Images:
    """At most so many images of a folder drawn at random, none that the bundle was trained on, resized for it; those
    that cannot be read are left out. classes: as for `list_folder`. tick: called with (done, total).

    Raises DataError for a folder that cannot be used, or holds no such image.
    """
    listed, trained_on = folder.list_folder(root, classes), bundle.trained_on()
    pixels: list[Pixels] = []
    labels: list[int] = []
    order = rng.permutation(len(listed.files))
    for number, i in enumerate(order):
        tick(min(number + 1, most), min(most, len(order)))
        if len(labels) == most:
            break
        seen = folder.fingerprint(listed.files[i]) in trained_on
        image = None if seen else listed.read(listed.files[i])
        if image is not None:
            pixels.append(fitted(image, bundle.preprocessing))
            labels.append(listed.labels[i])
    if not pixels:
        raise DataError(
            f"expected images in {root} that the model was not trained on, found none: choose another folder"
        )
    return Images(np.stack(pixels), np.asarray(labels, np.int64))
