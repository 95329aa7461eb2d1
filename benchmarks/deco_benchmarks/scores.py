"""Scores of a deployed model, and of a whole trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from deco_export.images import Images
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.preprocess import Preprocessing
from deco_runtime.running.scoring import logits
from deco_runtime.types import Floats, Ints

MOST = 3
"""Confusions named per class, as in the paper's analysis of confused classes."""


@dataclass(frozen=True)
class Score:
    """confusion: (K, K) int64, images of class row that were given class column."""

    confusion: Ints

    @property
    def accuracy(self) -> float:
        """Share of all images that were right, 0 … 1."""
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def per_class(self) -> np.ndarray:
        """Share of each class's images that were right, (K,); 0 for a class without images."""
        right: np.ndarray = np.diag(self.confusion) / np.maximum(self.confusion.sum(axis=1), 1)
        return right

    def confusions(self, classes: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
        """The MOST classes that each class was most often taken for, with how many images; none with no image."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=1, kind="stable")[:, :MOST]
        return {
            name: [(classes[other], int(wrong[own, other])) for other in order[own] if wrong[own, other]]
            for own, name in enumerate(classes)
        }


def score(predict: Callable[[Floats], Floats], images: Images, preprocessing: Preprocessing, classes: int) -> Score:
    """What `predict`, x (N, C, H, W) → logits (N, K), makes of labelled images."""
    return count(logits(predict, images.pixels, preprocessing), images.labels, classes)


def count(given: Floats, labels: Ints, classes: int) -> Score:
    """What logits (n, K) make of images with labels (n,)."""
    counts = np.bincount(labels * classes + given.argmax(axis=1), minlength=classes**2)
    return Score(counts.reshape(classes, classes).astype(np.int64))


def of_stream(reports: Sequence[SegmentReport]) -> dict[str, Any]:
    """kept: mean share of frames learned from. pseudo_accuracy: share of these whose label was right, None without any.

    distances: D of each iteration of each segment, rounded to what a plot can show.
    """
    known = [(r.pseudo_accuracy, r.kept) for r in reports if r.pseudo_accuracy is not None]
    weight = sum(kept for _, kept in known)
    return {
        "kept": float(np.mean([r.kept for r in reports])) if reports else None,
        "pseudo_accuracy": sum(right * kept for right, kept in known) / weight if weight else None,
        "distances": [[round(d, 5) for d in r.figures.get("distances", ())] for r in reports],
    }
