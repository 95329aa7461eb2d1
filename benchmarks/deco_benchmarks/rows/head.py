"""Head: a streaming ridge classifier on the frozen model's features, fed by the same votes."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from deco_runtime.learner import SegmentReport
from deco_runtime.types import Floats, Ints, Segment
from deco_runtime.vote import vote

from deco_benchmarks.rows import Row, Setup

NAME = "Head"
ABOUT = "Ridge regression onto one-hot labels from frozen features; exact, so it forgets nothing."

PENALTIES = tuple(10.0**k for k in range(-2, 7))
"""λ tried; the one with the best leave-one-out accuracy on the labelled images is taken."""

Doubles = npt.NDArray[np.float64]


def make(setup: Setup) -> Row:
    """Starts from the labelled images; costs as much memory as F² numbers."""
    return Head(setup)


class Head:
    """Keeps A = Σ f fᵀ and B = Σ f onehot(y) with a constant feature; W = (A + λI)⁻¹B is solved every β segments."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        f = self.features(setup.x_labelled)
        self.penalty = best_penalty(f, setup.y_labelled, setup.classes)
        self.a, self.b = f.T @ f, f.T @ np.eye(setup.classes)[setup.y_labelled]
        self.weights = self.solved()
        self.segments = 0

    def features(self, x: Floats) -> Doubles:
        """Frozen features with a constant 1 behind, (n, F + 1) float64."""
        z = self.setup.engine.predict(self.setup.theta, x)[1].astype(np.float64)
        return np.concatenate([z, np.ones((len(z), 1))], axis=1)

    def solved(self) -> Doubles:
        """W (F + 1, K)."""
        return np.linalg.solve(self.a + self.penalty * np.eye(len(self.a)), self.b).astype(np.float64)

    def predict(self, x: Floats) -> Floats:
        """Regression values as logits; only their order means something, so confidences are nearly flat."""
        return (self.features(x) @ self.weights).astype(np.float32)

    def learn(self, segment: Segment) -> SegmentReport:
        """Add the active frames to the sums, each with weight 1."""
        started = time.monotonic()
        active = vote(segment, self.setup.classes, self.setup.recipe)
        if len(active):
            f = self.features(segment.x[active.index])
            self.a += f.T @ f
            self.b += f.T @ np.eye(self.setup.classes)[active.y]
        self.segments += 1
        if self.segments % self.setup.recipe.retrain_interval == 0:
            self.weights = self.solved()
        known = segment.labels[active.index]
        right = float(np.mean(known == active.y)) if len(active) and (known >= 0).all() else None
        kept = len(active) / len(segment)
        return SegmentReport(active.classes.tolist(), kept, right, None, None, 0, time.monotonic() - started)

    def finish(self) -> None:
        """Use the segments since the last solution too."""
        self.weights = self.solved()

    def state_bytes(self) -> int:
        """A, B and W."""
        return self.a.nbytes + self.b.nbytes + self.weights.nbytes


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
