"""Labelled pictures whose class the other pictures do not believe.

    left_out   what a regression on all other takes says of each picture, without solving it once per take
    disputed   where that is another class, the clearest first

Most of them are labelled wrong, show two things, or are the only ones of their kind. A picture's own take is left out
with it, since frames of one take would vouch for each other. A class of one take only is left out picture by picture:
without its only take nothing would be known of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from deco_runtime.learning.calibrate import REGRESSION, temperature
from deco_runtime.learning.regression import with_constant
from deco_runtime.learning.vote import log_softmax, one_hot
from deco_runtime.types import Floats, Ints

SURE, HARDLY = 0.8, 0.05
"""A label is doubted clearly where the others give this probability, at least, to another class, and that, at most, to
its own …"""
ENOUGH, AGREED = 5, 0.8
"""… if they know the label's class by that many takes, and that share of the takes that they take for the other class,
at least, is labelled so: a weak classifier is sure of much that is wrong."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Disputed:
    """A picture whose class the others do not believe.

    index: its place among the pictures looked at. says: the class that they take it for. p, p_given: the probability of
    that, and of its own class. take: how many pictures of its take are disputed, and how many there are. clearly:
    whether the label is probably wrong.
    """

    index: int
    says: int
    p: float
    p_given: float
    take: tuple[int, int]
    clearly: bool


def weights(y: Ints, classes: int) -> Doubles:
    """How much each picture (n,) counts, so that all classes count alike: 1 on average."""
    size = np.bincount(y, minlength=classes)
    each: Doubles = (len(y) / (np.count_nonzero(size) * np.maximum(size, 1)))[y]
    return each


def left_out(phi: Floats, y: Ints, takes: Ints, classes: int, penalty: float) -> Floats:
    """What ridge regressions on all but a picture's own take say of it, (n, K) float32: values as `regression.scores`.

    phi (n, D), labels y (n,), takes (n,). penalty: λ, relative as `regression.PENALTY` is. With X = √w·φ, T = √w·t,
    M = (XᵀX + λI)⁻¹ and W = M·XᵀT of all pictures, those of a take I are off by (1 − X_I·M·X_Iᵀ)⁻¹ (T_I − X_I·W) in the
    regression without it, by the formula of Sherman, Morrison and Woodbury. w and λ stay those of all pictures.
    """
    root = np.sqrt(weights(y, classes))[:, None]
    x, t = with_constant(phi) * root, one_hot(y, classes) * root
    a = x.T @ x
    a.flat[:: len(a) + 1] += penalty * max(float(np.trace(a)) / len(a), 1e-12)
    inverse, xt = np.linalg.inv(a), x.T @ t
    off, through = t - x @ (inverse @ xt), x @ inverse
    for own in _groups(y, takes):
        if len(own) > len(a):  # fewer columns than rows: solved anew
            without = np.linalg.solve(a - x[own].T @ x[own], xt - x[own].T @ t[own])
            off[own] = t[own] - x[own] @ without
        else:
            off[own] = np.linalg.solve(np.eye(len(own)) - through[own] @ x[own].T, off[own])
    said: Floats = ((t - off) / root).astype(np.float32)
    return said


def disputed(values: Floats, y: Ints, takes: Ints) -> tuple[list[Disputed], float]:
    """The pictures that `left_out` (n, K) takes for another class, the clearest first, and of each take only that; and
    the share of the labels that it agrees with, takes counting alike."""
    scale = temperature(values, y, takes, REGRESSION, "the regression", [])
    log_p = log_softmax(values / np.float32(scale))
    says, every = log_p.argmax(axis=1), np.arange(len(y))
    p, p_given = np.exp(log_p[every, says]), np.exp(log_p[every, y])
    _, first, of, size = np.unique(takes, return_index=True, return_inverse=True, return_counts=True)
    wrong, each = np.bincount(of, says != y, len(size)).astype(int), 1 / size[of]
    said, agreed = (np.bincount(says[some], each[some], values.shape[1]) for some in (slice(None), says == y))
    known = np.bincount(y[first], minlength=values.shape[1]) >= ENOUGH
    clearly = (p >= SURE) & (p_given <= HARDLY) & known[y] & (agreed >= AGREED * said)[says]
    found, met = [], set[int]()
    for i in np.lexsort((log_p[every, y] - log_p[every, says], ~clearly)):
        if says[i] != y[i] and of[i] not in met:
            met.add(int(of[i]))
            take = int(wrong[of[i]]), int(size[of[i]])
            found.append(Disputed(int(i), int(says[i]), float(p[i]), float(p_given[i]), take, bool(clearly[i])))
    return found, float(agreed.sum()) / len(size)


def _groups(y: Ints, takes: Ints) -> list[Ints]:
    """The pictures that are left out together."""
    keys = takes.copy()
    for c in np.unique(y):
        own = np.flatnonzero(y == c)
        if np.ptp(takes[own]) == 0:
            keys[own] = -1 - own
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
