"""What validation says about each class, and what it cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from deco_runtime.pictures.layout import some
from deco_runtime.types import Floats, Ints

from deco_export.takes import nearly_same

FEW = 10
"""Held-out images of a class, below which its share of right answers says little: of 10, one is 10 points."""

UNEVEN = 10
"""Times as many training images in the largest class as in the smallest, from which accuracy is that of the large."""

APART = 0.1
"""Difference between accuracy and balanced accuracy that is worth a sentence."""


@dataclass(frozen=True)
class Judged:
    """Answers on held-out images, counted by class.

    classes: K names. trained, held, right: (K,) int64, images trained on, held out, and of these answered right.
    """

    classes: tuple[str, ...]
    trained: Ints
    held: Ints
    right: Ints

    @property
    def accuracy(self) -> float | None:
        """Share of the held-out images answered right, 0 … 1; None without any."""
        return float(self.right.sum() / self.held.sum()) if self.held.any() else None

    @property
    def balanced(self) -> float | None:
        """Mean over the classes with held-out images of the share answered right, 0 … 1; None without any.

        What always answering the most frequent class gets is 1 / K, however many images it has.
        """
        some_held = self.held > 0
        return float(np.mean(self.right[some_held] / self.held[some_held])) if some_held.any() else None

    def by_class(self) -> dict[str, dict[str, int]]:
        """Counts of each class, for JSON."""
        rows = zip(self.classes, self.trained, self.held, self.right, strict=True)
        return {name: {"trained": int(t), "held_out": int(h), "right": int(r)} for name, t, h, r in rows}

    def warnings(self) -> list[str]:
        """What to know before trusting the accuracy, a sentence each; none where all classes can be judged."""
        said = []
        unknown, few = self.held == 0, (self.held > 0) & (self.held < FEW)
        if unknown.any():
            said.append(
                f"nothing is held out of {self._named(unknown)}, so that how well {_they(unknown)} known cannot be "
                "told; add images"
            )
        if few.any():
            said.append(
                f"fewer than {FEW} images are held out of {self._named(few, self.held)}, so that each is many points "
                "of the class's accuracy; add images, or raise --val"
            )
        least, most = int(self.trained.argmin()), int(self.trained.argmax())
        if self.trained[most] >= UNEVEN * max(1, int(self.trained[least])):
            said.append(
                f"training images are {self.trained[most]} of {self.classes[most]!r} and {self.trained[least]} of "
                f"{self.classes[least]!r}; go by the balanced accuracy, and add images of the small classes"
            )
        missed = (self.held >= FEW) & (self.right == 0)
        if missed.any():
            said.append(f"no held-out image of {self._named(missed, self.held)} is answered right; look at its images")
        if self.accuracy is not None and self.balanced is not None and abs(self.accuracy - self.balanced) >= APART:
            said.append(
                f"accuracy is {self.accuracy:.1%} over images, but {self.balanced:.1%} over classes, which says how "
                "well a class is known whatever its share"
            )
        return said

    def _named(self, which: np.ndarray, counts: Ints | None = None) -> str:
        index = np.flatnonzero(which)
        names = [repr(self.classes[i]) + ("" if counts is None else f": {counts[i]}") for i in index]
        return f"{len(index)} of {len(self.classes)} classes ({some(names)})" if len(index) > 1 else names[0]


def judge(answers: Ints, held: Ints, trained: Ints, classes: Sequence[str]) -> Judged:
    """answers, held: (n,) int64, the class answered and the true one of each held-out image. trained: (m,) int64, the
    classes of the training images."""
    known = len(classes)
    counts = [np.bincount(labels, minlength=known) for labels in (trained, held, held[answers == held])]
    return Judged(tuple(classes), *counts)


def near_duplicates(train: Floats, validation: Floats) -> Ints:
    """Pairs of pictures, as `takes.describe` has them, that are nearly the same though one is held out: (n, 2) int64,
    index in each.

    Of one class there are none where `data.held_out` parted them by takes; of two, one of the labels is mostly wrong.
    """
    found = [np.argwhere(same) + np.array([start, 0]) for start, same in nearly_same(train, validation)]
    pairs: Ints = np.concatenate([np.empty((0, 2), np.int64), *found])
    return pairs


def _they(which: np.ndarray) -> str:
    return "they are" if which.sum() > 1 else "it is"
