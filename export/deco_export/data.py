"""The workstation's labelled data: an image folder, or scikit-learn's handwritten digits."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
from deco_runtime.errors import DataError, UsageError
from deco_runtime.pictures import folder
from deco_runtime.pictures.layout import some
from deco_runtime.preprocess import Preprocessing, fitted, resize
from deco_runtime.sources.orders import stc_order
from deco_runtime.types import Ints

from deco_export.images import Images, ImageSet, StoredImages
from deco_export.images import pictures as every_picture
from deco_export.judged import near_duplicates
from deco_export.takes import describe, find_takes

DIGITS_SIZE = 8
"""Side of scikit-learn's digits in pixels."""
DIGITS_STC = 100
"""Images of one digit in a row in the demo stream."""

CLEARLY_FEWER = 0.9
"""Takes are worth a note where they are fewer than so many times the images: most folders hold a few duplicates."""

NONE = Images(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Data:
    """What an export works on. Only train and validation have been looked at by the model.

    trained_on: fingerprints of the files in train and validation. stream, test: the demo's, None for a folder, and no
    stream where every image is labelled.
    skipped: a sentence about images that are unreadable or were passed over, or None. none: images of none of the
    classes, labels without a meaning. alike: files, <class>/<image>, of a training and a validation image each that are
    nearly the same picture. names: what people call the images of train, validation and none; empty where nobody said.
    """

    classes: tuple[str, ...]
    train: ImageSet
    validation: ImageSet
    trained_on: tuple[str, ...]
    stream: Images | None = None
    test: Images | None = None
    skipped: str | None = None
    none: ImageSet = NONE
    alike: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, ...], ...] = ((), (), ())

    def notes(self) -> list[str]:
        """What to know about the takes of the labelled images, a sentence each; none where each is its own take and
        no two show the same."""
        notes, known = [], len(self.classes)
        parts = (self.train, self.validation)
        images, takes = sum(map(len, parts)), sum(len(np.unique(part.takes)) for part in parts)
        held = np.unique(self.validation.labels)
        if takes < CLEARLY_FEWER * images:
            notes.append(
                f"{images} labelled images are {takes} takes (recorded in one go), and a take is held out for "
                f"validation as a whole or not at all; those held out show {len(held)} of {known} classes"
            )
        of_class = [self.train.takes[self.train.labels == c] for c in np.setdiff1d(np.arange(known), held)]
        single = sum(len(t) > 1 and t.min() == t.max() for t in of_class)
        if single:
            notes.append(
                f"classes whose images are all of one take, so that none can be held out for validation: {single} of "
                f"{known}; record these a second time"
            )
        if self.alike:
            notes.append(
                f"pictures that are nearly the same though of two classes, one for training and one for validation: "
                f"{len(self.alike)} ({some([' and '.join(pair) for pair in self.alike])}); check their labels"
            )
        return notes


def pick(labels: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Indices of a random fraction of every class (at least one image of each), and of the rest; both sorted.

    It draws images, not takes, since it comes before they are read.
    """
    chosen = []
    for c in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == c))
        chosen.append(index[: max(1, round(fraction * len(index)))])
    first = np.sort(np.concatenate(chosen))
    return first, np.setdiff1d(np.arange(len(labels)), first)


def hold_out(images: Images, fraction: float, rng: np.random.Generator, least: int = 0) -> tuple[Images, Images]:
    """Train and validation parts of images in memory, as `held_out` says."""
    train, validation = held_out(images, fraction, rng, least)
    return images[train], images[validation]


def held_out(images: ImageSet, fraction: float, rng: np.random.Generator, least: int = 0) -> tuple[Ints, Ints]:
    """Indices of the train and validation parts, both sorted: a random fraction of every class, by whole takes.

    A class keeps at least one take for training. Classes whose images are each their own take give their share, but
    at least `least` images. The others together give what comes nearest to their shares, but at least one take;
    those that have given least so far come first.
    """
    held: list[Ints] = []
    grouped: list[list[Ints]] = []
    wanted = 0.0
    for c in np.unique(images.labels):
        index = rng.permutation(np.flatnonzero(images.labels == c))
        takes, first = np.unique(images.takes[index], return_index=True)
        if len(takes) == len(index):
            held.append(index[: min(len(index) - 1, max(least, round(fraction * len(index))))])
        else:
            wanted += max(least, fraction * len(index))
            grouped.append([index[images.takes[index] == take] for take in takes[np.argsort(first)]])
    validation = np.sort(np.concatenate([*held, *_nearest(grouped, wanted, rng), np.zeros(0, np.int64)]))
    return np.setdiff1d(np.arange(len(images)), validation), validation


def _nearest(grouped: list[list[Ints]], wanted: float, rng: np.random.Generator) -> list[Ints]:
    """Of each class's takes, in order, those that together hold about `wanted` images; never a class's last one."""
    shuffled = rng.permutation(len(grouped)) if grouped else ()  # no draw where there are no takes
    classes = [grouped[i] for i in shuffled if len(grouped[i]) > 1]
    sizes = [sum(map(len, takes)) for takes in classes]
    given, chosen, count = [0] * len(classes), [], 0
    offered = dict.fromkeys(range(len(classes)), 0)
    while wanted and offered:
        c = min(offered, key=lambda c: given[c] / sizes[c])
        take = classes[c][offered[c]]
        offered[c] += 1
        if offered[c] == len(classes[c]) - 1:
            del offered[c]
        if abs(count + len(take) - wanted) < abs(count - wanted):
            chosen.append(take)
            given[c] += len(take)
            count += len(take)
    if wanted and classes and not chosen:
        chosen.append(min((takes[0] for takes in classes), key=len))
    return chosen


def load(
    source: str,
    labelled: float,
    validation: float,
    pictures: Preprocessing,
    seed: int,
    tick: Callable[[int, int], None],
    file: BinaryIO | None = None,
) -> Data:
    """Labelled data from `source`, an image folder or "digits".

    labelled: fraction of the training images whose labels may be used, in (0, 1]. validation: fraction of these held
    out by whole takes, in [0, 1). pictures: how images are cut and scaled. tick: called with (done, total) while
    reading. file: an empty one, where the pixels of a folder's images are kept, to be open as long as they are used;
    None for memory.
    Raises DataError for a folder that cannot be used, OSError where the file cannot be written.
    """
    rng = np.random.default_rng(seed)
    if source == "digits":
        return _digits(labelled, validation, pictures.size, rng)
    train_dir, _ = folder.split_folder(Path(source))
    listed = folder.list_folder(train_dir)
    labels = np.asarray(listed.labels, np.int64)
    chosen, _ = pick(labels, labelled, rng)
    unreadable, file, kept = folder.Unreadable(total=len(chosen)), file or io.BytesIO(), []
    for done, index in enumerate(chosen):
        image = listed.read(listed.files[index])
        if image is None:
            unreadable.add(listed.files[index])
        else:
            file.write(fitted(image, pictures).tobytes())
            kept.append(index)
        tick(done + 1, len(chosen))
    lost = [listed.classes[c] for c in np.setdiff1d(np.arange(len(listed.classes)), labels[kept])]
    if lost:
        raise DataError(
            f"expected a readable image of every class in {train_dir}, but found none of {lost[0]!r}; add some"
        )
    rows = np.arange(len(kept))
    images = StoredImages(file, pictures.size, rows, labels[kept], rows)
    names = [listed.name(listed.files[i]).as_posix() for i in kept]
    described = describe(every_picture(images))
    images = replace(images, takes=find_takes(names, images.labels, described))
    fingerprints = tuple(sorted(folder.fingerprint(listed.files[i]) for i in kept))
    first, second = held_out(images, validation, rng)
    train, held = images.select(first), images.select(second)
    none, of_none = _add(file, listed, pictures, len(kept))
    shown = [f"{listed.classes[label]}/{name}" for label, name in zip(images.labels, names, strict=True)]
    pairs = near_duplicates(described[first], described[second])
    alike = tuple((shown[first[a]], shown[second[b]]) for a, b in pairs)
    skipped = "; ".join(filter(None, (listed.note, unreadable.summary()))) or None
    called = (tuple(shown[i] for i in first), tuple(shown[i] for i in second), tuple(of_none))
    return Data(listed.classes, train, held, fingerprints, skipped=skipped, none=none, alike=alike, names=called)


def _add(file: BinaryIO, listed: folder.ImageFolder, how: Preprocessing, first: int) -> tuple[ImageSet, list[str]]:
    """Those of the images of no class that can be read, written behind the `first` ones of the file; their names."""
    file.seek(0, io.SEEK_END)
    names = []
    for path in listed.none:
        if (image := listed.read(path)) is not None:
            file.write(fitted(image, how).tobytes())
            names.append(path.relative_to(listed.root).as_posix())
    rows = np.arange(len(names))
    return StoredImages(file, how.size, first + rows, np.zeros(len(names), np.int64), rows), names


def digits(size: int) -> Images:
    """scikit-learn's 1,797 handwritten digits, grey as B, G, R. Raises UsageError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            "expected scikit-learn for --data digits, but it is not installed; run pip install 'deco-edge[export]'"
        ) from error
    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    pixels = np.stack([cv2.cvtColor(g, cv2.COLOR_GRAY2BGR) for g in grey])
    return _scaled(Images(pixels, bunch.target.astype(np.int64)), size)


def _scaled(images: Images, size: int) -> Images:
    pixels = np.empty((len(images), size, size, 3), np.uint8)
    for picture, small in zip(pixels, images.pixels, strict=True):
        picture[:] = resize(small, size)
    return replace(images, pixels=pixels)


def _digits(labelled: float, validation: float, size: int, rng: np.random.Generator) -> Data:
    everything = digits(DIGITS_SIZE)  # its parts are enlarged at the end, when nothing is copied any more
    test, rest = pick(everything.labels, 0.2, rng)
    known, unlabelled = pick(everything.labels[rest], labelled, rng)
    chosen = rest[known]
    parts = [chosen[part] for part in held_out(everything[chosen], validation, rng)]
    stream = None
    if len(unlabelled):
        stream = everything[rest[unlabelled]]
        order = stc_order(stream.labels.tolist(), DIGITS_STC, int(rng.integers(2**31)))
        stream = _scaled(stream[order], size)
    classes = tuple(str(c) for c in range(10))
    train, held = (_scaled(everything[part], size) for part in parts)
    names = tuple(tuple(f"digit {i}" for i in part) for part in parts)
    return Data(classes, train, held, (), stream, _scaled(everything[test], size), names=(*names, ()))
