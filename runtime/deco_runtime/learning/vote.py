"""Majority voting: which classes are active in a segment, and which of its frames to learn from (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.types import Floats, Ints, Segment


@dataclass(frozen=True)
class Active:
    """`I_t^A` of eq:active, the part of a segment that is learned from.

    index: (m,) int64, positions in the segment. y: (m,) int64 labels. w: (m,) float32 weights, the confidences.
    classes: (a,) int64, the active classes `C_t^A`, sorted.
    """

    index: Ints
    y: Ints
    w: Floats
    classes: Ints

    def __len__(self) -> int:
        return len(self.index)

    def accuracy(self, labels: Ints) -> float | None:
        """Share of y that is right by the true labels (n,) of the segment; None unless all of its frames' are known."""
        known = labels[self.index]
        return float(np.mean(known == self.y)) if len(self) and (known >= 0).all() else None


def pseudo_label(logits: Floats) -> tuple[Ints, Floats]:
    """ŷ = argmax_c p(x)_c and its confidence p(x)_ŷ, for logits (N, K) → (N,) int64, (N,) float32 in (0, 1]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    confidence = 1.0 / np.exp(shifted).sum(axis=1)
    return logits.argmax(axis=1), confidence.astype(np.float32)


def active_classes(pseudo: Ints, classes: int, threshold: float) -> Ints:
    """eq:filter with M = threshold · |I_t|: the classes that more than M frames voted for, sorted."""
    count = np.bincount(pseudo, minlength=classes)
    exact = round(threshold * len(pseudo), 9)  # 0.29 · 100 is 28.999999999999996 in binary, and 29 votes are not more
    return np.flatnonzero(count > exact)


def vote(segment: Segment, classes: int, recipe: Hyperparameters) -> Active:
    """eq:filter and eq:active: the active frames of a segment with the labels and weights to learn them with.

    `vote=filter` keeps frames whose own pseudo-label is active. `vote=relabel` gives every frame of a segment with
    exactly one active class that class, at the weight of its own confidence.
    """
    active = active_classes(segment.pseudo, classes, recipe.threshold)
    if recipe.vote == "relabel" and len(active) == 1:
        index, y = np.arange(len(segment)), np.full(len(segment), active[0])
    else:
        index = np.flatnonzero(np.isin(segment.pseudo, active))
        y = segment.pseudo[index]
    return Active(index, y, segment.confidence[index], active)


def accuracy(y: Ints, labels: Ints) -> float | None:
    """Share of y (n,) that is right by the true labels (n,), of those that are known (not −1); None without any."""
    known = labels >= 0
    return float(np.mean(labels[known] == y[known])) if known.any() else None


def log_softmax(logits: Floats) -> Floats:
    """log p(x) (N, K) float32 of logits (N, K)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p: Floats = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)
    return log_p


def softmax(logits: Floats) -> Floats:
    """p(x) (N, K) float32 of logits (N, K)."""
    p: Floats = np.exp(log_softmax(logits))
    return p


def one_hot(y: Ints, classes: int) -> Floats:
    """(n, K) float32, of weight 1."""
    return targets(y, np.ones(len(y), np.float32), classes)


def targets(y: Ints, w: Floats, classes: int) -> Floats:
    """t = w · onehot(y), (n, K) float32: the weighted targets of the loss L = −Σ_i Σ_c t_ic log p(x_i)_c."""
    t = np.zeros((len(y), classes), np.float32)
    t[np.arange(len(y)), y] = w
    return t
