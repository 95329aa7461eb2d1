"""What held-out takes say of the pre-trained model and of the start regression: how sure, and which of them to believe.

    temperature   with which a model is calibrated
    calibrate     the temperatures of both models and of what both say, and the regression's worth in that
    unknown       from which strangeness on a frame shows none of the classes

Held-out images are few, and frames of one take are right or wrong together. So a take counts as one observation,
whatever its length, and each fit starts from a prior, to which it stays close where the takes say little. Without any
held-out image the prior is what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deco_runtime.learning.vote import log_softmax
from deco_runtime.types import Floats, Ints

NETWORK, REGRESSION, MIXED = 2.0, 0.12, 1.0
"""Temperatures expected beforehand: a network that has fitted its training images is twice as sure of others as it is
right, a regression's values are mostly between 0 and 1, and a mean of calibrated models is about calibrated."""
WORTH, WORTH_SPREAD = 0.75, 0.25
"""Of the regression: with few takes it is the better of the two, since the network knows these by heart."""
SPREAD = np.log(2)
"""Standard deviation of the prior of the logarithm of a temperature."""
RANGE = 5
"""Standard deviations of the prior that are searched on either side."""
STEPS = 101
"""Temperatures tried, and shares."""
KEPT = 0.95
"""Share of the known images that are not taken for unknown ones."""
SLOPE = 2.0
"""Logarithm of the odds per standard deviation of strangeness beyond that."""
TAKES, IMAGES = 8, 50
"""Held-out takes and images, below which nobody can say how strange a known frame may be."""
PENALTY = 1.0
"""Of the squared weights of the logistic regression on images of none of the classes."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """See `regression.Start`. notes: sentences about fits that ended where the search does."""

    network_temperature: float
    regression_temperature: float
    mixed_temperature: float
    worth: float
    notes: tuple[str, ...]


def calibrate(logits: Floats, values: Floats, y: Ints, takes: Ints) -> Calibration:
    """Fit all to held-out images: the network's logits (n, K), the start regression's values (n, K), labels (n,) and
    takes (n,); n may be 0.

    worth: the share of the regression that gives the held-out labels the highest likelihood.
    """
    notes: list[str] = []
    network = temperature(logits, y, takes, NETWORK, "the network", notes)
    regression = temperature(values, y, takes, REGRESSION, "the regression", notes)
    log_p, log_q = log_softmax(logits / np.float32(network)), log_softmax(values / np.float32(regression))
    shares = np.linspace(0, 1, STEPS)
    losses = [loss(np.float32(s) * log_q + np.float32(1 - s) * log_p, y, takes) + prior_of_worth(s) for s in shares]
    worth = float(shares[int(np.argmin(losses))])
    both = np.float32(worth) * log_q + np.float32(1 - worth) * log_p
    return Calibration(network, regression, temperature(both, y, takes, MIXED, "both", notes), worth, tuple(notes))


def loss(logits: Floats, y: Ints, takes: Ints) -> float:
    """−Σ over takes of the mean of log p(y | x) over the images of a take; logits (n, K), y (n,), takes (n,)."""
    if not len(y):
        return 0.0
    wrong = -log_softmax(logits)[np.arange(len(y)), y].astype(np.float64)
    _, of, size = np.unique(takes, return_inverse=True, return_counts=True)
    return float((wrong / size[of]).sum())


def prior_of_worth(share: float) -> float:
    """−log of a prior of the regression's worth, up to a constant."""
    return 0.5 * ((share - WORTH) / WORTH_SPREAD) ** 2


def temperature(logits: Floats, y: Ints, takes: Ints, prior: float, of: str, notes: list[str]) -> float:
    """T for which softmax(logits / T), logits (n, K), gives held-out labels y (n,) the highest likelihood (Guo et al.
    2017), with a log-normal prior around `prior`. of: whose logits they are, for a note on an edge of the search."""
    tried = prior * np.exp(SPREAD * np.linspace(-RANGE, RANGE, STEPS))
    losses = [loss(logits / np.float32(t), y, takes) + 0.5 * (np.log(t / prior) / SPREAD) ** 2 for t in tried]
    best = int(np.argmin(losses))
    if best in (0, STEPS - 1):
        notes.append(
            f"the temperature of {of} ended at {tried[best]:.2g}, the edge of what is tried: its held-out images are "
            "all right or all wrong, or look like those it was trained on"
        )
    return float(tried[best])


def unknown(known: Floats, takes: Ints, none: Floats) -> Floats | None:
    """Weights (SIGNS + 2,) float32 of `unknown.odds`; None where there are fewer than TAKES held-out takes
    or IMAGES images.

    known: signs (n, SIGNS) of held-out images, takes (n,) theirs. none: signs (m, SIGNS) of images of none of the
    classes, m may be 0. With some, the signs are weighed by logistic regression; without, each counts alike, in
    standard deviations of the known images. Either way KEPT of these, each take counting alike, have odds below 1.
    """
    _, of, size = np.unique(takes, return_inverse=True, return_counts=True)
    if len(size) < TAKES or len(known) < IMAGES:
        return None
    share = 1 / (size[of] * len(size))
    mean = share @ known
    spread = np.sqrt(np.maximum(share @ (known - mean) ** 2, 1e-12))
    standard = (known - mean) / spread
    if len(none):
        w = _logistic(standard, share, (none - mean) / spread) / spread
    else:
        w = SLOPE / max(float(np.sqrt(share @ standard.sum(axis=1) ** 2)), 1e-6) / spread
    strange = known @ w
    order = np.argsort(strange)
    threshold = strange[order][np.searchsorted(np.cumsum(share[order]), KEPT).clip(max=len(order) - 1)]
    weights: Floats = np.r_[w, -threshold, -(share @ strange)].astype(np.float32)
    return weights


def _logistic(known: Doubles, share: Doubles, none: Doubles) -> Doubles:
    """Weights (SIGNS,) that tell standardised signs of unknown images from those of known ones, both counting alike;
    by Newton's method."""
    x = np.vstack([np.c_[known, np.ones(len(known))], np.c_[none, np.ones(len(none))]]).astype(np.float64)
    y = np.r_[np.zeros(len(known)), np.ones(len(none))]
    weight = np.r_[share, np.full(len(none), 1 / len(none))] * len(x) / 2
    w: Doubles = np.zeros(x.shape[1])
    penalty = PENALTY * np.r_[np.ones(x.shape[1] - 1), 0]
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ w))
        slope = x.T @ (weight * (p - y)) + penalty * w
        curvature = (x.T * (weight * np.maximum(p * (1 - p), 1e-6))) @ x + np.diag(penalty)
        w -= np.linalg.solve(curvature, slope)
    return w[:-1]
