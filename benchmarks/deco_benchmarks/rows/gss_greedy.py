"""GSS-Greedy: keeps frames with distinct gradients (Aljundi et al. 2019, the greedy variant)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from deco_runtime.learning.condense import TINY, Condensed
from deco_runtime.types import Floats, Ints
from scipy.special import softmax

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._real import RealFrames, replaced

NAME = "GSS-Greedy"
ABOUT = "Replaces real frames whose gradient resembles others' (Aljundi et al. 2019); gradients of the last layer."

COMPARED = 10
"""Random frames of the buffer whose gradients a new one is compared with; the source's number."""


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class."""
    return Row(setup.learner(Distinct, setup.real_buffer()))


class Distinct(RealFrames):
    """Every frame of the buffer has a score: 1 + the largest cosine of its gradient with some others when it came.

    A new frame of score c < 1 (its gradient opposes those compared) takes the place of frame i, drawn with probability
    ∝ score_i, if a draw favours it: with probability score_i / (score_i + c). Frames come one by one, so that those of
    one segment are compared with each other too.

    A gradient is that of the last layer, the outer product (p − onehot(y)) ⊗ f of error and feature. It is never
    formed: cos((p − t) ⊗ f, (p' − t') ⊗ f') = cos(p − t, p' − t') · cos(f, f').
    """

    OWN: ClassVar[tuple[str, ...]] = ("score",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        error, feature = self._factors(self.memory.x_syn, self.memory.y_syn)
        places = np.arange(len(error))
        others = [self._some(np.delete(places, i)) for i in places]
        self.score = np.array([_score(error[i], feature[i], error[o], feature[o]) for i, o in enumerate(others)])

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        error, feature = self._factors(self.memory.x_syn, self.memory.y_syn)  # of the buffer, as it changes below
        places: dict[int, int] = {}
        for i, (e, f) in enumerate(zip(*self._factors(x, y), strict=True)):
            some = self._some(np.arange(len(error)))
            score = _score(e, f, error[some], feature[some])
            if score >= 1.0:
                continue
            weight = self.score + TINY
            place = int(self.rng.choice(len(weight), p=weight / weight.sum()))
            if self.rng.random() < weight[place] / (weight[place] + score):
                places[place], self.score[place] = i, score
                error[place], feature[place] = e, f
        return replaced(self.memory, places, x, y)

    def _some(self, places: Ints) -> Ints:
        """COMPARED random ones of these places, or all where there are fewer."""
        return self.rng.choice(places, min(COMPARED, len(places)), replace=False)

    def _factors(self, x: Floats, y: Ints) -> tuple[Floats, Floats]:
        """Error p − onehot(y) (n, K) and feature f (n, F) of each frame under the model as it is now, of length 1."""
        logits, features = self.engine.predict(self.model, x)
        error = softmax(logits, axis=1)
        error[np.arange(len(y)), y] -= 1.0
        return _unit(error), _unit(features)


def _score(error: Floats, feature: Floats, errors: Floats, features: Floats) -> float:
    """1 + the largest cosine of one gradient, factors (K,) and (F,), with those of factors (m, K) and (m, F): 0 … 2."""
    return max(0.0, 1.0 + float(((errors @ error) * (features @ feature)).max()))


def _unit(rows: Floats) -> Floats:
    length: Floats = np.linalg.norm(rows, axis=1, keepdims=True) + TINY
    return rows / length
