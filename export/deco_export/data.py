"""The workstation's labelled data: an image folder, or scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from deco_runtime import folder
from deco_runtime.errors import DataError, UsageError
from deco_runtime.preprocess import resize
from deco_runtime.sources.images import stc_order
from deco_runtime.types import Ints, Pixels

DIGITS_STC = 100
"""Images of one digit in a row in the demo stream."""


@dataclass(frozen=True)
class Images:
    """pixels (n, size, size, 3) uint8 B, G, R, resized as the device does it; labels (n,) int64."""

    pixels: Pixels
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Ints) -> Images:
        return Images(self.pixels[index], self.labels[index])


@dataclass(frozen=True)
class Data:
    """What an export works on. Only train and validation have been looked at by the model.

    trained_on: fingerprints of the files in train and validation. stream, test: the demo's, None for a folder, and no
    stream where every image is labelled.
    skipped: a sentence about unreadable images, or None.
    """

    classes: tuple[str, ...]
    train: Images
    validation: Images
    trained_on: tuple[str, ...]
    stream: Images | None = None
    test: Images | None = None
    skipped: str | None = None


def pick(labels: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Indices of a random fraction of every class (at least one image of each), and of the rest; both sorted."""
    chosen = []
    for c in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == c))
        chosen.append(index[: max(1, round(fraction * len(index)))])
    first = np.sort(np.concatenate(chosen))
    return first, np.setdiff1d(np.arange(len(labels)), first)


def _hold_out(images: Images, fraction: float, rng: np.random.Generator) -> tuple[Images, Images]:
    """Train and validation parts; a class of one image keeps it for training."""
    held = []
    for c in np.unique(images.labels):
        index = rng.permutation(np.flatnonzero(images.labels == c))
        held.append(index[: min(len(index) - 1, round(fraction * len(index)))])
    validation = np.sort(np.concatenate(held))
    train = np.setdiff1d(np.arange(len(images)), validation)
    return images[train], images[validation]


def load(
    source: str, labelled: float, validation: float, size: int, seed: int, tick: Callable[[int, int], None]
) -> Data:
    """Labelled data from `source`, an image folder or "digits".

    labelled: fraction of the training images whose labels may be used, in (0, 1]. validation: fraction of these held
    out, in [0, 1). size: side of the images in pixels. tick: called with (done, total) while reading.
    Raises DataError for a folder that cannot be used.
    """
    rng = np.random.default_rng(seed)
    if source == "digits":
        return _digits(labelled, validation, size, rng)
    train_dir, _ = folder.split_folder(Path(source))
    listed = folder.list_folder(train_dir)
    labels = np.asarray(listed.labels, np.int64)
    chosen, _ = pick(labels, labelled, rng)
    unreadable = folder.Unreadable(total=len(chosen))
    pixels, kept = [], []
    for done, index in enumerate(chosen):
        image = folder.read_image(listed.files[index])
        if image is None:
            unreadable.add(listed.files[index])
        else:
            pixels.append(resize(image, size))
            kept.append(index)
        tick(done + 1, len(chosen))
    lost = [listed.classes[c] for c in np.setdiff1d(np.arange(len(listed.classes)), labels[kept])]
    if lost:
        raise DataError(
            f"expected a readable image of every class in {train_dir}, but found none of {lost[0]!r}; add some"
        )
    images = Images(np.stack(pixels), labels[kept])
    fingerprints = tuple(sorted(folder.fingerprint(listed.files[i]) for i in kept))
    train, held = _hold_out(images, validation, rng)
    return Data(listed.classes, train, held, fingerprints, skipped=unreadable.summary())


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
    pixels = np.stack([resize(cv2.cvtColor(g, cv2.COLOR_GRAY2BGR), size) for g in grey])
    return Images(pixels, bunch.target.astype(np.int64))


def _digits(labelled: float, validation: float, size: int, rng: np.random.Generator) -> Data:
    everything = digits(size)
    test, rest = pick(everything.labels, 0.2, rng)
    known, unlabelled = pick(everything.labels[rest], labelled, rng)
    train, held = _hold_out(everything[rest[known]], validation, rng)
    stream = None
    if len(unlabelled):
        stream = everything[rest[unlabelled]]
        stream = stream[stc_order(stream.labels.tolist(), DIGITS_STC, int(rng.integers(2**31)))]
    return Data(tuple(str(c) for c in range(10)), train, held, (), stream, everything[test])
