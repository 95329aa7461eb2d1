"""GSS-Greedy: keeps frames with distinct gradients (Aljundi et al. 2019, the greedy variant)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from deco_runtime.condense import TINY, Condensed
from deco_runtime.learner import Learner
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import LearnerRow, Row, Setup
from deco_benchmarks.rows._real import replaced

NAME = "GSS-Greedy"
ABOUT = "Replaces real frames whose gradient resembles others' (Aljundi et al. 2019); gradients of the last layer."

COMPARED = 10
"""Random frames of the buffer whose gradients a new one is compared with; the source's number."""


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class."""
    return LearnerRow(setup.learner(Distinct, setup.real_buffer()))


class Distinct(Learner):
    """Every frame of the buffer has a score: 1 + the largest cosine of its gradient with some others when it came.

    A new frame of score c < 1 (its gradient opposes those compared) takes the place of frame i, drawn with probability
    ∝ score_i, if a draw favours it: with probability score_i / (score_i + c).
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = self._largest_cosines(self.buffer.x_syn, self.buffer.y_syn) + 1.0

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        places: dict[int, int] = {}
        for i, score in enumerate(1.0 + self._largest_cosines(x, y)):
            if score >= 1.0:
                continue
            place = int(self.rng.choice(len(self.score), p=(self.score + TINY) / (self.score + TINY).sum()))
            if self.rng.random() < self.score[place] / (self.score[place] + score + TINY):
                places[place], self.score[place] = i, score
        return replaced(self.buffer, places, x, y)

    def _largest_cosines(self, x: Floats, y: Ints) -> Floats:
        """For each frame (n,) the largest cosine with COMPARED random frames of the buffer, itself left out."""
        size = len(self.buffer.y_syn)
        some = self.rng.choice(size, min(COMPARED, size), replace=False)
        x_some, y_some = self.buffer.x_syn[some], self.buffer.y_syn[some]
        error, feature = self._factors(x, y)
        error_some, feature_some = self._factors(x_some, y_some)
        cosines = (error @ error_some.T) * (feature @ feature_some.T)
        if x is self.buffer.x_syn:
            cosines[some, np.arange(len(some))] = -1.0
        largest: Floats = cosines.max(axis=1)
        return largest

    def _factors(self, x: Floats, y: Ints) -> tuple[Floats, Floats]:
        """The last layer's gradient is the outer product (p − onehot(y)) ⊗ f: its two factors, each of length 1.

        The cosine of two such products is the product of the cosines of their factors.
        """
        logits, features = self.engine.predict(self.theta, x)
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = shifted / shifted.sum(axis=1, keepdims=True)
        error[np.arange(len(y)), y] -= 1.0
        return _unit(error), _unit(features)


def _unit(rows: Floats) -> Floats:
    length: Floats = np.linalg.norm(rows, axis=1, keepdims=True) + TINY
    return rows / length
