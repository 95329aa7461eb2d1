"""Head: a streaming ridge classifier on the frozen model's features, fed by the frozen model's votes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Learner
from deco_runtime.learning.learner import RetrainReport, seen_once
from deco_runtime.types import Batches, Check, Floats, Ints

from deco_benchmarks.rows import LearnerRow, Row, Setup

NAME = "Head"
ABOUT = "Ridge regression onto one-hot labels from frozen features; exact, so it forgets nothing."
KEEPS_IMAGES = False

PENALTIES = tuple(10.0**k for k in range(-2, 7))
"""λ tried; the one with the best leave-one-out accuracy on the labelled images is taken."""

Doubles = npt.NDArray[np.float64]


def make(setup: Setup) -> Row:
    """Starts from the labelled images; costs as much memory as F² numbers."""
    learner = setup.learner(Ridge)
    assert isinstance(learner, Ridge)
    learner.begin_with(setup.x_labelled, setup.y_labelled)
    return Head(learner)


class Ridge(Learner):
    """Keeps A = Σ f fᵀ and B = Σ f onehot(y) with a constant feature; its update of the model is W = (A + λI)⁻¹B."""

    KEPT: ClassVar[tuple[str, ...]] = ("penalty", "a", "b", "weights")

    penalty: float
    a: Doubles
    b: Doubles
    weights: Doubles

    def begin_with(self, x: Floats, y: Ints) -> None:
        """Choose λ and solve for the labelled images x (n, C, H, W), y (n,)."""
        f = self.features(x)
        self.penalty = best_penalty(f, y, self.classes)
        self.a, self.b = f.T @ f, f.T @ np.eye(self.classes)[y]
        self.solve()

    def features(self, x: Floats) -> Doubles:
        """Frozen features with a constant 1 behind, (n, F + 1) float64."""
        z = self.engine.predict(self.theta, x)[1].astype(np.float64)
        return np.concatenate([z, np.ones((len(z), 1))], axis=1)

    def solve(self) -> None:
        """W (F + 1, K)."""
        self.weights = np.linalg.solve(self.a + self.penalty * np.eye(len(self.a)), self.b).astype(np.float64)

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        """Add the active frames to the sums, each with weight 1; the buffer stays."""
        f = self.features(x)
        self.a += f.T @ f
        self.b += f.T @ np.eye(self.classes)[y]
        return Condensed(self.buffer, [], [], 0)

    def answer(self, model: Floats, x: Floats) -> Floats:
        """Regression values as logits, in place of the model's own last layer: only their order means something."""
        return self.values(self.features(x))

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        """As in `BaseLearner`, but the features of the images are computed once."""
        return seen_once(images, lambda x: (self.features(x),), lambda model, f: self.values(f))

    def values(self, f: Doubles) -> Floats:
        """Features (n, F + 1) → (n, K)."""
        return (f @ self.weights).astype(np.float32)

    def retrain(self, check: Callable[[], None] = lambda: None) -> RetrainReport:
        """Solve; θ, and so the features, stay as they are."""
        started = time.monotonic()
        self.solve()
        self.retrains += 1
        self.since_retrain = 0
        return RetrainReport(None, True, time.monotonic() - started)


class Head(LearnerRow):
    """Votes with the frozen model and answers with the regression."""

    learner: Ridge

    def vote(self, x: Floats) -> Floats:
        """The frozen model's logits: a regression that votes for itself drifts to the classes it saw last."""
        return self.learner.engine.predict(self.learner.theta, x)[0]

    def finish(self) -> None:
        """Use the segments since the last solution too."""
        self.learner.solve()

    def state_bytes(self) -> int:
        """A, B and W."""
        return self.learner.a.nbytes + self.learner.b.nbytes + self.learner.weights.nbytes


def best_penalty(f: Doubles, y: Ints, classes: int) -> float:
    """λ of PENALTIES by leave-one-out accuracy: the residual without i is that with it over 1 − H_ii, H the hat matrix.

    f (n, F + 1), y (n,). The constant feature is penalised as the others are.
    """
    target = np.eye(classes)[y]
    u, s, _ = np.linalg.svd(f, full_matrices=False)
    accuracy = {}
    for penalty in PENALTIES:
        shrink = u * (s**2 / (s**2 + penalty))
        leverage = np.einsum("ij,ij->i", shrink, u)[:, None]
        fitted = shrink @ (u.T @ target)
        left_out = target - (target - fitted) / np.maximum(1 - leverage, 1e-9)
        accuracy[penalty] = float(np.mean(left_out.argmax(axis=1) == y))
    return max(accuracy, key=lambda k: accuracy[k])
