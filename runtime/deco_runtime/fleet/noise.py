"""Gaussian noise on what a device sends, so that it tells little of any one frame: (ε, δ)-differential privacy.

    multiple   σ of the analytic Gaussian mechanism (Balle and Wang, ICML 2018), as a multiple of the sensitivity
    private    a difference made of noisy sums of the classes and the spread of the labelled images
    Noise      both, for a device's differences

Sums cannot be clipped any more: a device's learner shortens φ that are longer than a bound, `most`, before it adds them
up, and its votes see them as they are.

A frame φ with ‖φ‖ ≤ c and shares t of the classes, ‖t‖ ≤ 1, adds tφᵀ to the sums of the classes, no longer than c, but
φφᵀ to A, no longer than c², which has D/K times as many values to put noise on. So A is not sent: it is made of the
noisy sums and of how frames differ within the classes of the labelled images, which the fleet has anyway.

What is protected is so many frames as are asked for. One alone is protected given the votes of the others, which it
had a part in; a whole segment but for the scene that it hands on to the next; never that a class was seen for an hour.
A frame is in one difference only, so further ones cost it nothing, as long as what is kept as sent is the difference
without the noise: else the next would take the noise back. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, exp, inf, isfinite, sqrt

import numpy as np

from deco_runtime.errors import UsageError
from deco_runtime.fleet.sums import per_frame
from deco_runtime.learning.regression import Doubles, Statistics, upper, within

DELTA = 1e-6
"""δ of what devices send."""
CLIP = 1.25
"""The bound of ‖φ‖, times the length of labelled images: few frames are longer (docs/results/fleet.md)."""
SURE = 3.0
"""Standard deviations of the noise in counts that a device leaves room for."""
COUNT = 0.25
"""How much the count of a class weighs in the noise, of the bound of φ: so it costs φ 3 % more noise."""


def multiple(epsilon: float, delta: float) -> float:
    """Least σ for a sensitivity of 1; 0 for ε = inf. Raises UsageError unless ε > 0 and 0 < δ < 1."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise UsageError(f"expected ε above 0 and δ between 0 and 1, but found {epsilon} and {delta}; change them")
    if not isfinite(epsilon):
        return 0.0
    low, high = 0.0, 1.0
    while _delta(high, epsilon) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, epsilon) > delta else (low, middle)
    return high


def check_epsilon(epsilon: float) -> None:
    """Raise UsageError unless noise can be put on something for this ε."""
    if not 0 < epsilon < inf:
        raise UsageError(
            f"expected --noise EPSILON to be a finite number above 0, but found {epsilon}; give one, as in --noise 3"
        )


def _delta(sigma: float, epsilon: float) -> float:
    """δ that noise of this σ gives for ε, at a sensitivity of 1 (Balle and Wang, theorem 8)."""
    if sigma == 0:
        return inf
    near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    tail = _normal(far)
    return _normal(near) - exp(min(epsilon, 700)) * tail  # beyond that the tail is next to none


def _normal(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


def private(
    sums: Statistics,
    known: Statistics,
    epsilon: float,
    delta: float,
    most: float,
    rng: np.random.Generator,
    together: int = 1,
) -> Statistics:
    """What a device may send of these sums, whose φ are no longer than `most`; known: of the labelled images. together:
    frames that are protected as one.

    Classes of so few frames that their mean would be mostly noise are left out. rng: of nobody else's knowledge.
    Raises UsageError as `multiple`.
    """
    size, classes = len(sums.b) - 1, sums.b.shape[1]
    sigma = together * _sigma(epsilon, delta, most)
    b = sums.b.astype(np.float64)
    b[:-1] += rng.normal(0, 1, (size, classes)) * sigma
    b[-1] += rng.normal(0, 1, classes) * sigma / (COUNT * most)
    b[:, b[-1] <= _fewest(sigma, size, most)] = 0
    return of_means(b, known)


def _sigma(epsilon: float, delta: float, most: float) -> float:
    """Of the noise on the sums of φ, with the counts beside them, for one frame."""
    return multiple(epsilon, delta) * most * sqrt(1 + COUNT**2)


def _fewest(sigma: float, size: int, most: float) -> float:
    """Frames of a class up to which their mean would be mostly noise."""
    return max(sigma * sqrt(size) / most, 0.5)


def of_means(b: Doubles, known: Statistics) -> Statistics:
    """Sums B (D + 1, K) with the A that they would have if frames differed within a class as the labelled ones do."""
    n = b[-1]
    a = (b / np.maximum(n, 1e-12)) @ b.T
    a[:-1, :-1] += within(known) * n.sum()
    return Statistics(a[upper(len(a))].astype(np.float32), b.astype(np.float32))


def usual(known: Statistics) -> float:
    """The length √E‖φ‖² of labelled images: a bound may be some of it, since the fleet has it anyway."""
    return sqrt(per_frame(known))


@dataclass(frozen=True)
class Noise:
    """For ε and DELTA, with or without any one frame. known: sums of the labelled images. Raises UsageError for an ε
    that is none."""

    epsilon: float
    known: Statistics

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def most(self) -> float:
        """No φ that was added up may be longer."""
        return CLIP * usual(self.known)

    def on(self, sums: Statistics, rng: np.random.Generator) -> Statistics:
        """See `private`."""
        return private(sums, self.known, self.epsilon, DELTA, self.most, rng)

    def left(self, sums: Statistics) -> float:
        """Frames that nearly always are left of these when noise was put on them: of classes that are not left out, by
        their noisy counts. What is of fewer than the fleet asks for would be refused, and lost."""
        size, classes = len(sums.b) - 1, sums.b.shape[1]
        sigma = _sigma(self.epsilon, DELTA, self.most)
        slack = SURE * sigma / (COUNT * self.most)
        n = sums.b[-1].astype(np.float64)
        return float(n[n > _fewest(sigma, size, self.most) + slack].sum()) - slack * sqrt(classes)
