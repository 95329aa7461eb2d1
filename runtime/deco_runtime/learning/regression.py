"""`deco+`: a linear classifier of frozen features that takes each frame in once and forgets none.

    Statistics      A = Σ φφᵀ and B = Σ φtᵀ over every frame so far, φ with a constant 1 behind
    add             one segment's frames and their soft labels
    solve           W, a ridge regression onto one-hot labels, as if every class had come equally often

W is what one would get from all frames at once, in whichever order they came: there is nothing to replay. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deco_runtime.learning.vote import log_softmax
from deco_runtime.types import Bools, Floats

PENALTY = 0.01
"""λ, relative to the mean of A's diagonal, so that it grows with the frames seen."""
TINY = 1e-12

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """a: (D'(D' + 1)/2,) float32, the upper triangle of A row by row, D' = D + 1. b: (D', K) float32."""

    a: Floats
    b: Floats

    @classmethod
    def zero(cls, size: int, classes: int) -> Statistics:
        """Nothing seen yet; size: D."""
        count = size + 1
        return cls(np.zeros(count * (count + 1) // 2, np.float32), np.zeros((count, classes), np.float32))


@dataclass(frozen=True)
class Start:
    """What `deco+` starts from: the statistics of the labelled images, and what held-out ones say of both models.

    softmax(logits / T) of the pre-trained model is calibrated with network_temperature, and so is that of
    the regression's values with regression_temperature, and of what both say, see `mixed`, with mixed_temperature.
    worth: the regression's share in that, 0 … 1, with which both are best. unknown: weights (SIGNS + 2,) float32 of
    `unknown.odds`, None where nothing could be held out to fit them to. prior: see `penalty`.
    """

    statistics: Statistics
    network_temperature: float
    regression_temperature: float
    mixed_temperature: float
    worth: float
    unknown: Floats | None = None
    prior: float = 0.0


def share(now: Statistics, start: Start) -> Floats:
    """s (K,) float32 in [0, 1], the regression's share in what is answered about class c: `worth` w at the start, and
    s_c = w·n_c / (w·n_c + (1 − w)·n₀_c) later.

    It is made of n_c frames of that class now, and was of n₀_c at the start. Two measurements are best weighed by the
    inverse of their variances; that of the regression falls with the frames, and a class is no better known for those
    of another; the other model's stays.
    """
    frames, first = (np.maximum(s.b[-1], TINY) for s in (now, start.statistics))
    part: Floats = (start.worth * frames / (start.worth * frames + (1 - start.worth) * first)).astype(np.float32)
    return part


def penalty(now: Statistics, start: Start) -> float:
    """λ for these statistics: PENALTY and, of a start from fewer images than φ has axes, a prior that W is small, which
    counts as much as at the start and so the less the more frames there are."""
    return PENALTY + start.prior * float(start.statistics.b[-1].sum() / max(now.b[-1].sum(), TINY))


def with_constant(phi: Floats) -> Floats:
    """φ (n, D) with a constant 1 behind, (n, D + 1)."""
    return np.concatenate([phi, np.ones((len(phi), 1), np.float32)], axis=1)


def add(statistics: Statistics, phi: Floats, t: Floats) -> Statistics:
    """Take in frames φ (n, D) with label shares t (n, K); a row of t that sums to w counts the frame w times."""
    z = with_constant(phi)
    weighted = z * t.sum(axis=1, keepdims=True)
    moments = z.T @ weighted
    return Statistics(statistics.a + moments[upper(len(moments))], statistics.b + z.T @ t)


def clipped(phi: Floats, most: float) -> Floats:
    """φ (n, D), those longer than `most` shortened to it."""
    length = np.linalg.norm(phi, axis=1, keepdims=True)
    shorter: Floats = phi * np.minimum(1, most / np.maximum(length, TINY)).astype(np.float32)
    return shorter


def together(one: Statistics, other: Statistics) -> Statistics:
    """Of the frames of both."""
    return Statistics(one.a + other.a, one.b + other.b)


def of_classes(statistics: Statistics, classes: int) -> Statistics:
    """The same of more classes, which no frame was of so far; or of fewer. Then what the frames of the last ones have
    in common goes with them, n_c μ_c μ_cᵀ; what they differ by stays, as of frames that were of no class."""
    size, now = statistics.b.shape
    if classes == now:
        return statistics
    if classes > now:
        return Statistics(statistics.a, np.pad(statistics.b, ((0, 0), (0, classes - now))))
    b = statistics.b[:, classes:].astype(np.float64)
    gone = (b / np.maximum(b[-1], TINY)) @ b.T
    return Statistics(statistics.a - gone[upper(size)].astype(np.float32), statistics.b[:, :classes].copy())


def solve(statistics: Statistics, penalty: float = PENALTY) -> Floats:
    """W (D + 1, K) float32 = (A' + λ·tr(A')/D'·I)⁻¹ B', solved in float64. The constant is penalised as the others are.

    A plain regression follows the shares of the classes, and a stream may show one of them for hours. With n_c frames
    of class c, their mean μ_c, and N in all, the scatter within classes is kept, and the means count alike:
    A' = A − Σ n_c μ_c μ_cᵀ + N/K · Σ μ_c μ_cᵀ, and column c of B' is N/K · μ_c. With equal shares A' = A and B' = B.
    """
    a, b, classes = square(statistics), statistics.b.astype(np.float64), statistics.b.shape[1]
    frames = np.maximum(b[-1], TINY)  # of each class: sums of the constant 1
    means, each = b / frames, frames.sum() / classes
    a += (means * (each - frames)) @ means.T
    return ridge(a, each * means, penalty)


def upper(size: int) -> Bools:
    """(size, size) bool: the upper triangle of a matrix, which it picks row by row."""
    return ~np.tri(size, k=-1, dtype=bool)


def square(statistics: Statistics) -> Doubles:
    """A (D + 1, D + 1) float64."""
    count = len(statistics.b)
    a: Doubles = np.empty((count, count))
    above = upper(count)
    a[above] = statistics.a
    np.copyto(a, a.T, where=~above)
    return a


def within(statistics: Statistics) -> Doubles:
    """The covariance Σ of φ within classes (D, D) float64: mean of (φ − μ_c)(φ − μ_c)ᵀ over all frames."""
    a, b = square(statistics), statistics.b.astype(np.float64)
    frames = np.maximum(b[-1], TINY)
    means = (b / frames)[:-1]
    scatter: Doubles = (a[:-1, :-1] - (means * frames) @ means.T) / frames.sum()
    return scatter


def spread(statistics: Statistics) -> float:
    """E‖φ − φ'‖² of two frames of one class drawn at random: twice the trace of Σ."""
    return 2 * float(np.trace(within(statistics)))


def ridge(a: Doubles, b: Doubles, penalty: float = PENALTY) -> Floats:
    """(a + λ·tr(a)/D'·I)⁻¹ b, float32. Adds that to the diagonal of a, which is large, in place."""
    a.flat[:: len(a) + 1] += penalty * max(float(np.trace(a)) / len(a), TINY)
    w: Floats = np.linalg.solve(a, b).astype(np.float32)
    return w


def scores(w: Floats, phi: Floats) -> Floats:
    """φ (n, D), W → regression values (n, K), the largest of which is the answer."""
    values: Floats = with_constant(phi) @ w
    return values


def mixed(w: Floats, s: Floats, phi: Floats, logits: Floats, start: Start) -> Floats:
    """Logits (n, K) float32, s_c · log q(c | x) + (1 − s_c) · log p(c | x), each model calibrated: q the
    regression on φ (n, D), p the pre-trained model with these logits (n, K); s (K,)."""
    log_q = log_softmax(scores(w, phi) / np.float32(start.regression_temperature))
    both: Floats = s * log_q + (1 - s) * log_softmax(logits / np.float32(start.network_temperature))
    return both
