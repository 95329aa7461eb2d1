"""None of these: how much likelier a frame is if it shows nothing that the bundle knows.

    signs     what tells such frames: far from every class, and neither model sure of anything
    odds      p(frame | unknown) / p(frame | known), by the signs' weights, which deco-export fits to held-out images

Most of what a camera sees is none of the classes. No single sign is enough, and neither is a single frame; the chain of
the votes adds up those of a scene. All is taken from what the bundle starts with, so that nothing drifts. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deco_runtime.learning.regression import TINY, Statistics, scores, with_constant, within
from deco_runtime.types import Floats

SIGNS = 3
RIDGE = 0.05
"""Added to both covariances, in parts of the mean variance: few images say little of most directions."""
LEAST_COMMON = 0.08
"""Least share of the variance of strangeness that the frames of a scene have in common, since classes differ in it."""
LARGEST = 20.0
"""Largest logarithm of the odds, either way: one frame alone must not decide over a scene."""


@dataclass(frozen=True)
class Known:
    """What the labelled images are like, all float32 and for φ with a constant 1 behind.

    square: (D + 1, D + 1), and linear: (D + 1, K'), for the K' classes that have images, make the relative Mahalanobis
    distance (Ren et al. 2021). w: (D + 1, K), the start regression.
    """

    square: Floats
    linear: Floats
    w: Floats

    @classmethod
    def of(cls, statistics: Statistics, w: Floats) -> Known:
        """From the labelled images' statistics, and W (D + 1, K) made of them: class means μ_c, the covariance Σ within
        classes, and that of all, Σ₀ around μ₀, classes counting alike. The distance is
        min_c (φ − μ_c)ᵀΣ⁻¹(φ − μ_c) − (φ − μ₀)ᵀΣ₀⁻¹(φ − μ₀)."""
        b, scatter = statistics.b.astype(np.float64), within(statistics)
        means, seen = (b / np.maximum(b[-1], TINY))[:-1], b[-1] > TINY
        centre = means[:, seen].mean(axis=1)
        apart = means[:, seen] - centre[:, None]
        near, far = _inverse(scatter), _inverse(scatter + apart @ apart.T / max(seen.sum(), 1))
        size = len(b)
        quadratic = np.zeros((size, size))
        quadratic[:-1, :-1] = near - far
        quadratic[:-1, -1] = quadratic[-1, :-1] = far @ centre
        quadratic[-1, -1] = -centre @ far @ centre
        towards = near @ means
        linear = np.vstack([-2 * towards, (means * towards).sum(axis=0)])
        # A class without an image is near to nothing.
        return cls(quadratic.astype(np.float32), linear[:, seen].astype(np.float32), w)

    def signs(self, phi: Floats, logits: Floats) -> Floats:
        """(n, SIGNS) float32 for φ (n, D) and the pre-trained model's logits (n, K), each larger for stranger frames:
        relative Mahalanobis distance; minus the largest of the regression's values; minus the largest logit."""
        z = with_constant(phi)
        distance = ((z @ self.square) * z).sum(axis=1) + (z @ self.linear).min(axis=1)
        largest = scores(self.w, phi).max(axis=1), logits.max(axis=1)
        found: Floats = np.stack([distance, *(-each for each in largest)], axis=1).astype(np.float32)
        return found


def odds(signs: Floats, weights: Floats, common: float = 1.0) -> Floats:
    """p(frame | unknown) / p(frame | known) (n,) float32 > 0, for signs (n, SIGNS) and weights (SIGNS + 2,): those of
    the signs, and what is added so that the odds are 1 at the edge of the known images, and at their mean.

    common: correlation r of neighbouring frames, 0 … 1. Of one known frame alone, r = 1, the sum of the signs is within
    the edge 95 times of 100. The mean over a scene is nearer to that of all known images, the less its frames have in
    common: its variance falls to r of theirs, LEAST_COMMON at least, and so the edge comes √r as near.
    """
    edge, mean = float(weights[-2]), float(weights[-1])
    log_odds = signs @ weights[:SIGNS] + np.float32(mean + (edge - mean) * np.sqrt(max(common, LEAST_COMMON)))
    ratio: Floats = np.exp(np.clip(log_odds, -LARGEST, LARGEST)).astype(np.float32)
    return ratio


def _inverse(covariance: np.ndarray) -> np.ndarray:
    size = len(covariance)
    return np.linalg.inv(covariance + RIDGE * max(np.trace(covariance) / size, TINY) * np.eye(size))
