"""Classes that people added: a linear discriminant tells them from the others, as soon as there are a few frames.

    discriminants   G, one linear function for each class, made of the sums that every frame went into
    beside          what a learner says of its own classes, and the added ones beside it
    Near            how far frames are from the added classes themselves: what is far from all classes is of none

A regression on ten frames remembers these ten and answers no other. Fisher's discriminant needs no more of a new class
than its mean; what frames of one class differ by is known from all the others. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from deco_runtime.learning.regression import TINY, Doubles, Statistics, within
from deco_runtime.types import Floats

RIDGE = 1.0
"""Added to the covariance, in parts of the mean variance. Chosen among 0.2 to 2, as COSTS, on frames of a stream from
CIFAR-10 with a class left out: it hardly matters."""
COSTS = (1e-3, 3e-4, 1e-4)
"""Share of the frames of a known class that an added one may take, as far as the sums tell: the first that the guard
accepts. The sums are of frames the network was trained on, so that of others it is several times as much."""
STEPS, LARGEST = 400, 40.0
"""Thresholds that are tried, and the largest, as log odds."""


def discriminants(statistics: Statistics, known: int, weight: float, cost: float = COSTS[0]) -> Floats:
    """G (D + 1, K) float32: g_c = Λμ_c and below −½(μ_cᵀΛμ_c − tr(ΛΣ)/n_c), Λ = (Σ + RIDGE·tr(Σ)/D·I)⁻¹.

    The last term is what a mean of n_c frames has too much in its square; of an added class, the `known`-th and later,
    n_c are `weight` times fewer, since a frame that was taught counts so often. Their biases are lower by the least
    threshold ≥ 0 at which of the known classes at most `cost` is lost on average, if frames are normally distributed.
    """
    b, covariance = statistics.b.astype(np.float64), within(statistics)
    frames = np.maximum(b[-1], TINY)
    means = b[:-1] / frames
    inverse = _precision(covariance)
    w = inverse @ means
    independent = np.where(np.arange(len(frames)) < known, frames, frames / weight)
    noise = float(np.sum(inverse * covariance)) / np.maximum(independent, 1)
    bias = -0.5 * ((means * w).sum(axis=0) - noise)
    seen = np.flatnonzero(b[-1, :known] > TINY)
    for j in range(known, len(frames)):
        towards = w[:, [j]] - w[:, seen]
        middle = (towards * means[:, seen]).sum(axis=0) + bias[j] - bias[seen]
        spread = np.sqrt(np.maximum((towards * (covariance @ towards)).sum(axis=0), TINY))
        bias[j] -= threshold(middle, spread, cost)
    return np.vstack([w, bias]).astype(np.float32)


@dataclass(frozen=True)
class Near:
    """precision: Λ (D, D) and means: μ (D, K − known) of the added classes, float32. usual: tr(ΛΣ), the mean of
    (φ − μ_c)ᵀΛ(φ − μ_c) over frames φ of class c."""

    precision: Floats
    means: Floats
    usual: float

    @classmethod
    def of(cls, statistics: Statistics, known: int) -> Near:
        """Of the classes behind the first `known` ones."""
        b, covariance = statistics.b[:, known:].astype(np.float64), within(statistics)
        inverse = _precision(covariance)
        means = b[:-1] / np.maximum(b[-1], TINY)
        return cls(inverse.astype(np.float32), means.astype(np.float32), float(np.sum(inverse * covariance)))

    def share(self, phi: Floats) -> Floats:
        """(n, K − known) float32 in (0, 1] for φ (n, D): the usual distance from each added class over the frame's,
        which is 1 up to there. Log odds of normal distributions grow with the distance from both classes; multiplied by
        this they do not, as of distributions with heavier tails."""
        found = np.empty((len(phi), self.means.shape[1]), np.float32)
        for j, mean in enumerate(self.means.T):
            apart = phi - mean
            distance = ((apart @ self.precision) * apart).sum(axis=1)
            found[:, j] = self.usual / np.maximum(distance, self.usual)
        return found


def _precision(covariance: Doubles) -> Doubles:
    """Λ (D, D) of Σ."""
    size = len(covariance)
    ridge = RIDGE * max(float(np.trace(covariance)) / size, TINY) * np.eye(size)
    return np.asarray(np.linalg.inv(covariance + ridge), np.float64)


def threshold(middle: Doubles, spread: Doubles, cost: float) -> float:
    """The least t ≥ 0 for which normally distributed values of these means and deviations (k,) are above t with a mean
    probability of at most `cost`; LARGEST where none is."""
    for t in np.linspace(0, LARGEST, STEPS + 1):
        above = [erfc((t - m) / (s * sqrt(2))) / 2 for m, s in zip(middle, spread, strict=True)]
        if sum(above) <= cost * len(above):
            return float(t)
    return LARGEST


def odds(g: Floats, phi: Floats, known: int) -> Floats:
    """Log odds (n, K − known) of each added class against the likeliest known one, for φ (n, D) and G (D + 1, K)."""
    values = phi @ g[:-1] + g[-1]
    against: Floats = values[:, known:] - values[:, :known].max(axis=1, keepdims=True)
    return against


def beside(said: Floats, against: Floats) -> Floats:
    """Logits (n, K) float32: those said of the known classes (n, known), and behind them each added class's, by its log
    odds against the likeliest."""
    return np.concatenate([said, said.max(axis=1, keepdims=True) + against], axis=1).astype(np.float32)
