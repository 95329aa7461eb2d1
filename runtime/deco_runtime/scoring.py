"""Accuracy of a model on labelled test images, which the learner never sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from deco_runtime.bundle import Bundle
from deco_runtime.engine import Engine
from deco_runtime.errors import DataError
from deco_runtime.folder import Unreadable, list_folder, read_image
from deco_runtime.preprocess import Preprocessing, normalise, resize
from deco_runtime.types import Floats, Ints, Pixels

BATCH = 64


def read_test_folder(root: Path, bundle: Bundle) -> tuple[Pixels, Ints, str | None]:
    """Pixels (n, size, size, 3) uint8 and labels (n,) of DIR/test, or of DIR where there is no such part; and a note.

    Raises DataError when the folder cannot be used.
    """
    part = root / "test"
    listed = list_folder(part if part.is_dir() and part.name not in bundle.classes else root, bundle.classes)
    unreadable = Unreadable(len(listed.files))
    pixels, labels = [], []
    for file, label in zip(listed.files, listed.labels, strict=True):
        image = read_image(file)
        if image is None:
            unreadable.add(file)
        else:
            pixels.append(resize(image, bundle.preprocessing.size))
            labels.append(label)
    if not pixels:
        raise DataError(f"expected test images in {root} that OpenCV can read, found none: replace them")
    return np.stack(pixels), np.asarray(labels, np.int64), unreadable.summary()


def answers(
    predict: Callable[[Floats], Floats], pixels: Pixels, how: Preprocessing, check: Callable[[], None] = lambda: None
) -> Ints:
    """The class (n,) that `predict`, x (N, C, H, W) → logits (N, K), gives each image; pixels as `Scorer` keeps them.

    check: called before every batch of BATCH images.
    """
    found: Ints = logits(predict, pixels, how, check).argmax(axis=1)
    return found


def logits(
    predict: Callable[[Floats], Floats], pixels: Pixels, how: Preprocessing, check: Callable[[], None] = lambda: None
) -> Floats:
    """What `predict` gives for each image, (n, K); arguments as those of `answers`."""
    parts = []
    for start in range(0, len(pixels), BATCH):
        check()
        parts.append(predict(normalise(pixels[start : start + BATCH], how)))
    return np.concatenate(parts)


class Scorer:
    """Scores weights on fixed test images, kept as uint8 to save memory."""

    def __init__(self, engine: Engine, how: Preprocessing, pixels: Pixels, labels: Ints) -> None:
        self._engine, self._how, self._pixels, self._labels = engine, how, pixels, labels

    def __len__(self) -> int:
        return len(self._labels)

    def accuracy(self, theta: Floats, check: Callable[[], None] = lambda: None) -> float:
        """Share of the images classified right by the model θ (P,), 0 … 1. check: called before every batch."""
        found = answers(lambda x: self._engine.predict(theta, x)[0], self._pixels, self._how, check)
        return float(np.mean(found == self._labels))
