"""What more labels would bring: the start regression on parts of the takes, and how its errors fall.

    nested      parts of the takes, each within the next, some of every class
    measured    the regression on each part, asked about the held-out images
    forecast    the error that a power law expects with twice the takes, and how sure that is

The error of a classifier falls about as a power of its examples, e(n) = a·n^−b, over wide ranges (Hestness et al.
2017; Rosenfeld et al. 2020). b is fitted to the logarithms of the measured errors. Held-out takes and draws are then
drawn again with replacement, and b fitted anew: from this, and from how far the errors lie from a line, comes its
standard error. With few held-out takes that is large, and what is known of such powers beforehand counts more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
from deco_runtime.learning.regression import Statistics, add, scores, solve
from deco_runtime.learning.vote import one_hot
from deco_runtime.types import Bools, Floats, Ints

from deco_export.report.gather import penalty

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
DRAWS = 6
"""Times that the takes are drawn for each part."""
RESAMPLED = 300
WITHIN = 1.28
"""Standard errors on either side of what is expected: the range holds what comes 8 times of 10."""
USUAL, USUAL_SPREAD = 0.4, 0.25
"""Of the power, known beforehand: from 0.1 to 0.7 in most of the literature and here."""
BEND = 0.15
"""Standard error of a power from one doubling to the next, as real curves are not quite straight."""
LEAST_HELD, LEAST_PARTS = 12, 3
"""Held-out takes, and different numbers of takes, below which nothing is said."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """takes: (S,) how many were trained on. right: (S, R, m) bool, whether each of m held-out images was answered
    right in each of R draws; labels, held_takes: (m,), theirs. classes: K."""

    takes: Doubles
    right: Bools
    labels: Ints
    held_takes: Ints
    classes: int

    def errors(self) -> Doubles:
        """(S,): the share of wrong answers, all classes counting alike."""
        return error(self.right.mean(axis=1), self.labels, np.ones(len(self.labels)))


@dataclass(frozen=True)
class Forecast:
    """power: b. low, high: the factor that the errors are multiplied with by twice the labels, at least and at most.
    most: the classes whose labels would help most, at most MOST_NAMED."""

    power: float
    low: float
    high: float
    most: tuple[int, ...]


MOST_NAMED = 3
WORTH_NAMING = 0.02
"""Least fall of a class's error with twice its labels."""


def nested(y: Ints, takes: Ints, rng: np.random.Generator) -> list[Ints]:
    """Indices of the images (n,) of SHARES of the takes, drawn at random, at least one take of each class; each part
    holds the one before."""
    parts: list[list[Ints]] = [[] for _ in SHARES]
    for c in np.unique(y):
        own = np.flatnonzero(y == c)
        drawn = rng.permutation(np.unique(takes[own]))
        for part, wanted in zip(parts, SHARES, strict=True):
            part.append(own[np.isin(takes[own], drawn[: ceil(wanted * len(drawn))])])
    return [np.sort(np.concatenate(part)) for part in parts]


def measured(
    train: tuple[Floats, Ints, Ints], held: tuple[Floats, Ints, Ints], classes: int, rng: np.random.Generator
) -> Curve | None:
    """The curve of φ, labels and takes of both parts; None where they are too few for one, see LEAST_HELD."""
    (phi, y, takes), (held_phi, held_y, held_takes) = train, held
    if len(np.unique(held_takes)) < LEAST_HELD:
        return None
    counts, right = np.zeros(len(SHARES)), np.zeros((len(SHARES), DRAWS, len(held_y)), np.bool_)
    for draw in range(DRAWS):
        seen, before = Statistics.zero(phi.shape[1], classes), np.zeros(0, np.int64)
        for s, part in enumerate(nested(y, takes, rng)):
            if s == len(SHARES) - 1 and draw:
                right[s, draw] = right[s, 0]  # all takes, whichever way they are drawn
                continue
            new = np.setdiff1d(part, before)
            seen, before = add(seen, phi[new], one_hot(y[new], classes)), part
            w = solve(seen, penalty(len(part), phi.shape[1]))
            right[s, draw] = scores(w, held_phi).argmax(axis=1) == held_y
            counts[s] = len(np.unique(takes[part]))
    if len(np.unique(counts)) < LEAST_PARTS:
        return None
    different = np.r_[np.diff(counts) > 0, True]
    return Curve(counts[different], right[different], held_y, held_takes, classes)


def error(right: np.ndarray, labels: Ints, weight: np.ndarray) -> Doubles:
    """Balanced error (…,) of shares of right answers (…, m), where each image counts `weight` (m,) within its class."""
    size = np.bincount(labels, weight)
    each = np.where(weight > 0, weight / np.maximum(size[labels], 1e-12), 0) / np.count_nonzero(size)
    wrong: Doubles = (1 - np.asarray(right, np.float64)) @ each
    return wrong


def power(counts: Sequence[float] | Doubles, errors: Sequence[float] | Doubles) -> tuple[float, float]:
    """b of errors = a·counts^−b, both (S,) above 0, by least squares of logarithms; and its standard error, 0 where
    two points leave none."""
    x, y = np.log(np.asarray(counts, np.float64)), np.log(np.asarray(errors, np.float64))
    x, y = x - x.mean(), y - y.mean()
    b = -float(x @ y / (x @ x))
    return b, float(np.sqrt(((y + b * x) ** 2).sum() / (x @ x) / (len(x) - 2))) if len(x) > 2 else 0.0


def forecast(curve: Curve, rng: np.random.Generator) -> Forecast:
    """What twice the takes would bring, by the power law."""
    _, of, size = np.unique(curve.held_takes, return_inverse=True, return_counts=True)
    tiny = 0.5 / len(size)  # of so many takes without an error, half a one may come yet
    powers = []
    for _ in range(RESAMPLED):
        weight = np.bincount(rng.integers(0, len(size), len(size)), minlength=len(size))[of]
        drawn = curve.right[:, rng.integers(0, curve.right.shape[1], curve.right.shape[1])].mean(axis=1)
        b, spread = power(curve.takes, np.maximum(error(drawn, curve.labels, weight), tiny))
        powers.append(b + spread * rng.standard_normal())
    b, spread = expected(float(np.mean(powers)), float(np.std(powers)))
    low, high = b - WITHIN * spread, b + WITHIN * spread
    return Forecast(b, float(2 ** -max(high, 0.0)), float(2 ** -max(low, 0.0)), _help_most(curve))


def expected(b: float, spread: float) -> tuple[float, float]:
    """A power that was measured with this standard error, and what is known beforehand, as one value and its error."""
    measured, before = 1 / (spread**2 + BEND**2), 1 / USUAL_SPREAD**2
    return (measured * b + before * USUAL) / (measured + before), float((measured + before) ** -0.5)


def _help_most(curve: Curve) -> tuple[int, ...]:
    """The classes whose own error would fall most with twice the labels, if each goes on as it did."""
    share, falls = curve.right.mean(axis=1), np.zeros(curve.classes)
    for c in np.unique(curve.labels):
        own = curve.labels == c
        takes = len(np.unique(curve.held_takes[own]))
        wrong = np.maximum(1 - share[:, own].mean(axis=1), 0.5 / takes)
        if takes >= MOST_NAMED and wrong[-1] > 0.5 / takes:
            falls[c] = wrong[-1] * (1 - 2 ** -float(np.clip(power(curve.takes, wrong)[0], 0, 1)))
    return tuple(int(c) for c in np.argsort(-falls, kind="stable")[:MOST_NAMED] if falls[c] >= WORTH_NAMING)
