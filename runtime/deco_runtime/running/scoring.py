"""Accuracy of a model on labelled test images, which the learner never sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from deco_runtime.errors import DataError
from deco_runtime.pictures.folder import Unreadable, fingerprints, list_folder, part_for_testing
from deco_runtime.preprocess import Preprocessing, fitted, normalise
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check, Floats, Ints, Pixels

BATCH = 64


def read_test_folder(
    root: Path, bundle: Bundle, classes: tuple[str, ...], streamed: frozenset[str] = frozenset()
) -> tuple[Pixels, Ints, str | None]:
    """Pixels (n, size, size, 3) uint8 and labels (n,) of DIR/test, or of DIR where there is no such part; and a note.

    classes: names of all there are. Copies of images that the model was trained on are left out, and of those that it
    learns from, whose fingerprints are `streamed`.

    Raises DataError when the folder cannot be used, or nothing of it is left.
    """
    listed = list_folder(part_for_testing(root, classes), classes)
    trained_on = bundle.trained_on()
    prints = fingerprints(listed.files) if trained_on or streamed else [None] * len(listed.files)
    kept = [i for i, own in enumerate(prints) if own not in trained_on and own not in streamed]
    trained = sum(own in trained_on for own in prints)
    counts = ((trained, "trained on"), (len(prints) - len(kept) - trained, "streamed"))
    left_out = " and ".join(f"{count} {what}" for count, what in counts if count)
    if not kept:
        raise DataError(
            f"expected test images that the model does not learn from, found only such in {listed.root} "
            f"({left_out}): name another folder for --test, or split this one into train/ and test/"
        )
    unreadable = Unreadable(len(kept))
    pixels, labels = [], []
    for file, label in ((listed.files[i], listed.labels[i]) for i in kept):
        image = listed.read(file)
        if image is None:
            unreadable.add(file)
        else:
            pixels.append(fitted(image, bundle.preprocessing))
            labels.append(label)
    if not pixels:
        raise DataError(f"expected test images in {root} that OpenCV can read, found none: replace them")
    said = f"left out of the test images those that the model learns from ({left_out})" if left_out else None
    none = f"images of none of the classes are not scored ({len(listed.none)})" if listed.none else None
    notes = filter(None, (listed.note, said, none, unreadable.summary()))
    return np.stack(pixels), np.asarray(labels, np.int64), "; ".join(notes) or None


def answers(
    predict: Callable[[Floats], Floats], pixels: Pixels, preprocessing: Preprocessing, check: Check = lambda: None
) -> Ints:
    """The class (n,) that `predict`, x (N, C, H, W) → logits (N, K), gives each image; pixels as `Scorer` keeps them.

    check: called before every batch of BATCH images.
    """
    found: Ints = logits(predict, pixels, preprocessing, check).argmax(axis=1)
    return found


def logits(
    predict: Callable[[Floats], Floats], pixels: Pixels, preprocessing: Preprocessing, check: Check = lambda: None
) -> Floats:
    """What `predict` gives for each image, (n, K); arguments as those of `answers`."""
    return np.concatenate([predict(x) for x in normalised(pixels, preprocessing, check)])


def normalised(pixels: Pixels, preprocessing: Preprocessing, check: Check) -> Iterator[Floats]:
    """The images as the network takes them, at most BATCH (N, C, H, W) at a time; check: called before each."""
    for start in range(0, len(pixels), BATCH):
        check()
        yield normalise(pixels[start : start + BATCH], preprocessing)


class Scorer:
    """Scores models on fixed test images, kept as uint8 to save memory."""

    def __init__(self, preprocessing: Preprocessing, pixels: Pixels, labels: Ints) -> None:
        self._preprocessing, self._pixels, self._labels = preprocessing, pixels, labels

    def __len__(self) -> int:
        return len(self._labels)

    def accuracy(self, predict: Callable[[Floats], Floats], check: Check = lambda: None) -> float:
        """Share of the images classified right by `predict`, x (N, C, H, W) → logits (N, K), 0 … 1.

        check: called before every batch.
        """
        found = answers(predict, self._pixels, self._preprocessing, check)
        return float(np.mean(found == self._labels))
