"""How many held-out images are answered right, and how far that can be trusted.

    share      of right answers, with an interval that counts takes
    by_class   the same of every class
    balanced   the mean over classes, with an interval as well
    confused   which class is taken for which

Images of one take are right or wrong together, so an interval over images would be too narrow. Here a take counts
once, as if all its images said the same: where they do not, the interval is wider than it need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from deco_runtime.types import Bools, Ints

Z = 1.96
"""Standard errors on either side: intervals hold the true share 19 times of 20."""


@dataclass(frozen=True)
class Share:
    """A share of right answers 0 … 1, its interval from `low` to `high`, and the images and takes that it stands on.
    counted: how many takes of equal size and weight say as much."""

    value: float
    low: float
    high: float
    images: int
    takes: int
    counted: float


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share of n independent trials, n above 0 and not always whole."""
    centre, spread = share + Z * Z / (2 * n), Z * sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    low, high = (centre - spread) / (1 + Z * Z / n), (centre + spread) / (1 + Z * Z / n)
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def effective(takes: Ints) -> float:
    """How many takes of equal size say as much as these of the images (n,): (Σ size)² / Σ size², Kish's number."""
    size = np.unique(takes, return_counts=True)[1].astype(float)
    return float(size.sum() ** 2 / (size**2).sum())


def share(right: Bools, takes: Ints) -> Share | None:
    """Of answers (n,), whether they are right, on images of these takes (n,); None without any."""
    if not len(right):
        return None
    value, n = float(np.mean(right)), effective(takes)
    return Share(value, *wilson(value, n), len(right), len(np.unique(takes)), n)


def by_class(right: Bools, labels: Ints, takes: Ints, classes: int) -> tuple[Share | None, ...]:
    """`share` of each class, None for one without an image; labels (n,)."""
    return tuple(share(right[labels == c], takes[labels == c]) for c in range(classes))


def balanced(shares: Sequence[Share | None]) -> Share | None:
    """The mean over the classes that have one; None without any.

    Its interval is that of as many independent takes as say as much: a take of a class with n of them has the weight
    1/(K·n), and Kish's number of these is K² / Σ 1/n.
    """
    some = [each for each in shares if each is not None]
    if not some:
        return None
    value = sum(each.value for each in some) / len(some)
    n = len(some) ** 2 / sum(1 / each.counted for each in some)
    counts = sum(each.images for each in some), sum(each.takes for each in some)
    return Share(value, *wilson(value, n), *counts, n)


def confused(answers: Ints, labels: Ints, classes: int) -> Ints:
    """(K, K) int64: how many images of the class of a row are answered with the class of a column."""
    return np.bincount(labels * classes + answers, minlength=classes * classes).reshape(classes, classes)
