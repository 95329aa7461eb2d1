"""How small the weights of a regression should be, where the labelled images are fewer than what it regresses on.

With fewer images than axes a regression fits them all, however little they say. How strongly its weights are then
drawn to 0 is asked of the images themselves: some takes are answered by a regression on the others.
"""

from __future__ import annotations

import numpy as np

from deco_runtime.learning.regression import PENALTY
from deco_runtime.learning.vote import one_hot
from deco_runtime.types import Bools, Floats, Ints

FOLDS = 3
PRIORS = (0.1, 0.03, 0.3, 0.0)
"""Tried, in the order in which they are expected."""


def folds(y: Ints, takes: Ints) -> Ints:
    """Which of FOLDS each image (n,) is in, −1 for those never held out: the takes of a class, y (n,), in turn, and
    never its only one."""
    found, start = np.full(len(y), -1, np.int64), 0
    for c in np.unique(y):
        own = np.unique(takes[y == c])
        if len(own) > 1:
            for number, take in enumerate(own):
                found[takes == take] = (start + number) % FOLDS
            start += len(own)
    return found


def prior(phi: Floats, y: Ints, takes: Ints) -> float:
    """See `regression.penalty`, for the φ (n, D) of labelled images: the first of PRIORS, or the one with which most
    takes are answered right if those are more by a standard error; 0 where there are at least as many images as axes.
    """
    if len(phi) >= phi.shape[1]:
        return 0.0
    fold = folds(y, takes)
    if (fold < 0).all():
        return PRIORS[0]  # no take can be held out
    centred = phi - phi.mean(axis=0)
    gram = centred @ centred.T
    held = fold >= 0
    found = [share_of_takes(answered(gram, y, fold, PENALTY + each)[held], takes[held]) for each in PRIORS]
    (first, error), best = found[0], max(range(len(PRIORS)), key=lambda each: found[each][0])
    return PRIORS[best] if found[best][0] > first + error else PRIORS[0]


def share_of_takes(right: Bools, takes: Ints) -> tuple[float, float]:
    """The share of right answers (n,), each of the takes (n,) counting alike; and its standard error."""
    _, of, size = np.unique(takes, return_inverse=True, return_counts=True)
    share = float((1 / (size[of] * len(size))) @ right)
    return share, float(np.sqrt(max(share * (1 - share), 0.25 / len(size)) / len(size)))


def answered(gram: Floats, y: Ints, fold: Ints, penalty: float) -> Bools:
    """Whether each image (n,) is answered right by a ridge regression on the images of the other folds, given the inner
    products (n, n) of all; never for those of no fold."""
    targets, found = one_hot(y, int(y.max()) + 1), np.zeros(len(y), np.bool_)
    for number in range(FOLDS):
        held, known = fold == number, fold != number
        if not held.any():
            continue
        g = gram[np.ix_(known, known)].astype(np.float64)
        shared = targets[known] / np.maximum(targets[known].sum(axis=0), 1)  # classes count alike
        g.flat[:: len(g) + 1] += penalty * float(np.trace(g)) / len(g)
        w = np.linalg.solve(g, shared - shared.mean(axis=1, keepdims=True))
        found[held] = (gram[np.ix_(held, known)] @ w).argmax(axis=1) == y[held]
    return found
