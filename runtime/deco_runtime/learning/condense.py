"""The formulas of section 4.3 and 4.4 of the paper: what `deco.py` computes in each iteration.

    gradient_distance   D(g_syn, g_real) and ∇_{g_syn} D         eq:opt2, D
    contrastive_loss    L_cont and its gradient on the features  eq:contrast
    Condensation        the data of one segment, I_t^A and S_t^A eq:active

numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats, Ints

TINY = 1e-12
"""Keeps a division by a vanishing norm finite; far below any norm that carries information."""


def dot(a: npt.NDArray[np.floating[Any]], b: npt.NDArray[np.floating[Any]]) -> float:
    """⟨a, b⟩ without BLAS, whose threads wait for each other longer than the sum takes when the cores are busy."""
    return float(np.sum(a * b, dtype=np.float64))


def gradient_distance(g_syn: Floats, g_real: Floats) -> tuple[float, Floats]:
    """D(g_syn, g_real) = 1 − cos(g_syn, g_real) and ∇_{g_syn} D, in closed form.

    g_syn, g_real: (P,) float32. Sums are taken in float64.
    """
    a, b = g_syn.astype(np.float64), g_real.astype(np.float64)
    norm_a, norm_b = dot(a, a) ** 0.5 + TINY, dot(b, b) ** 0.5 + TINY
    cosine = dot(a, b) / (norm_a * norm_b)
    return 1.0 - cosine, ((cosine * a / norm_a - b / norm_b) / norm_a).astype(np.float32)


def contrastive_loss(
    z: Floats, y: Ints, anchors: Ints, negative_class: Ints, temperature: float
) -> tuple[float, Floats]:
    """L_cont of eq:contrast over L2-normalised features, and its gradient with respect to z.

    z: (n, F) features of all of S under the deployed model; y: (n,) labels. anchors: (a,) indices A of the active
    images. negative_class: (a,) c_i^neg, a class other than y_i for each anchor. Returns the loss and an array like z.
    An anchor without positives (IpC 1) or without negatives contributes nothing.
    """
    norm = np.linalg.norm(z, axis=1, keepdims=True) + TINY
    unit = z / norm
    similarity = unit[anchors] @ unit.T / temperature  # z_i · z_j / τ, (a, n)
    positive = y[None, :] == y[anchors, None]  # P(i)
    positive[np.arange(len(anchors)), anchors] = False
    negative = y[None, :] == negative_class[:, None]  # N(i)
    counted = positive.any(axis=1) & negative.any(axis=1)
    positive, negative = positive & counted[:, None], negative & counted[:, None]
    mean_positive = positive / np.maximum(positive.sum(axis=1, keepdims=True), 1)  # 1/|P(i)|
    # log Σ_n exp(z_i · z_n / τ), shifted by the largest term so that it cannot overflow
    masked = np.where(negative, similarity, -np.inf)
    largest = np.where(counted, masked.max(axis=1), 0.0)[:, None]
    exponential = np.exp(masked - largest)
    total = exponential.sum(axis=1, keepdims=True)
    log_total = np.where(counted[:, None], np.log(np.where(counted[:, None], total, 1.0)) + largest, 0.0)
    loss = float(log_total.sum() - (mean_positive * similarity).sum())
    d_similarity = (exponential / np.where(total > 0, total, 1.0) - mean_positive) / temperature
    d_unit = d_similarity.T @ unit[anchors]
    np.add.at(d_unit, anchors, d_similarity @ unit)
    d_z = (d_unit - unit * (d_unit * unit).sum(axis=1, keepdims=True)) / norm
    return loss, d_z.astype(np.float32)


def draw_negative_classes(labels: Ints, classes: int, rng: np.random.Generator) -> Ints:
    """For each label a class drawn uniformly from the others, (n,) int64; there must be at least two classes."""
    drawn = rng.integers(0, classes - 1, size=len(labels))
    return drawn + (drawn >= labels)


@dataclass(frozen=True)
class Condensed:
    """What condensing a segment did: the new buffer, D and L_cont of each iteration (L,), and how many updates of the
    images were dropped because they were not finite."""

    buffer: CondensedBuffer
    distances: list[float] = field(default_factory=list)
    contrastive: list[float] = field(default_factory=list)
    dropped: int = 0


class Condensation:
    """The condensing of one segment as it goes: active real data `I_t^A` into the buffer's active images `S_t^A`.

    x_real (m, C, H, W), t_real (m, K): active frames and their weighted targets, m ≥ 1. active: A, (a,) indices of
    S_t^A, the images of S whose class is active, in S. x_syn, velocity: (n, C, H, W), all of S as it is now. y_syn
    (a,), t_syn (a, K): labels and targets of S_t^A. z: (n, F), features of S under the deployed model, where the
    contrastive term needs them. The buffer given is not touched.
    """

    def __init__(self, buffer: CondensedBuffer, x_real: Floats, y_real: Ints, w_real: Floats, classes: int) -> None:
        self.x_real, self.t_real = x_real, targets(y_real, w_real, classes)
        self.buffer, self.x_syn, self.velocity = buffer, buffer.x_syn.copy(), buffer.velocity.copy()
        self.active = np.flatnonzero(np.isin(buffer.y_syn, y_real))
        self.y_syn = buffer.y_syn[self.active]
        self.t_syn = targets(self.y_syn, np.ones(len(self.active), np.float32), classes)
        self.z = np.zeros((0, 0), np.float32)
        self.distances: list[float] = []
        self.contrastive: list[float] = []
        self.dropped = 0

    def done(self) -> Condensed:
        """The result; nothing may follow it, since it shares the arrays."""
        buffer = replace(self.buffer, x_syn=self.x_syn, velocity=self.velocity)
        return Condensed(buffer, self.distances, self.contrastive, self.dropped)
