"""Head: a streaming ridge classifier on the frozen model's features, fed by the frozen model's votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from deco_runtime.engine import Engine
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.learner import Learner, seen_once
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.vote import pseudo_label, vote
from deco_runtime.types import Batches, Check, Floats, Ints, Observed, Segment

from deco_benchmarks.rows import Row, Setup

NAME = "Head"
ABOUT = "Ridge regression onto one-hot labels from frozen features; exact, so it forgets nothing."
KEEPS_IMAGES = False

PENALTIES = tuple(10.0**k for k in range(-2, 7))
"""λ tried; the one with the best leave-one-out accuracy on the labelled images is taken."""

Doubles = npt.NDArray[np.float64]


def make(setup: Setup) -> Row:
    """Starts from the labelled images; costs as much memory as F² numbers."""
    learner = Ridge.open(setup.bundle, setup.engine, setup.recipe, setup.rng)
    learner.begin_with(setup.x_labelled, setup.y_labelled)
    return Head(learner)


@dataclass(frozen=True)
class Sums:
    """A = Σ f fᵀ (F + 1, F + 1) and B = Σ f onehot(y)ᵀ (F + 1, K), of features with a constant 1 behind, float64."""

    a: Doubles
    b: Doubles


class Ridge(Learner):
    """The memory are the sums, the model is W = (A + λI)⁻¹B, flat; θ, and so the features, stay as they are."""

    OWN: ClassVar[tuple[str, ...]] = ("penalty",)
    memory: Sums
    recipe: Hyperparameters

    def __init__(self, engine: Engine, theta: Floats, classes: int, recipe: Any, rng: np.random.Generator) -> None:
        super().__init__(engine, theta, Sums(np.zeros((0, 0)), np.zeros((0, classes))), classes, recipe, rng)
        self.theta, self.penalty = theta, 0.0
        self.steps, self.solve_steps = ("adding up the segment", 1), ("solving the regression", 1)

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Any, rng: np.random.Generator) -> Ridge:
        return cls(engine, bundle.weights(), len(bundle.classes), recipe, rng)

    def begin_with(self, x: Floats, y: Ints) -> None:
        """Choose λ and solve for the labelled images x (n, C, H, W), y (n,)."""
        f = with_constant(self.engine.predict(self.theta, x)[1])
        self.penalty = best_penalty(f, y, self.classes)
        self.memory = Sums(f.T @ f, f.T @ np.eye(self.classes)[y])
        self.model = self.solve(lambda: None)[0]

    def observe(self, x: Floats) -> Observed:
        votes, features = self.engine.predict(self.theta, self.engine.encode(x))
        return {"votes": votes, "features": features}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        """Regression values as logits, in place of the model's own last layer: only their order means something."""
        return (with_constant(observed["features"]) @ model.reshape(-1, self.classes)).astype(np.float32)

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        return seen_once(images, self.observe, self.answer)

    def update(self, segment: Segment, check: Check) -> tuple[Sums, SegmentReport]:
        """Add the active frames to the sums, each with weight 1; active by the frozen model's votes, since a regression
        that votes for itself drifts to the classes it saw last."""
        pseudo, confidence = pseudo_label(segment.observed["votes"])
        voted = Segment(segment.observed, pseudo, confidence, segment.labels, segment.cut)
        active = vote(voted, self.classes, self.recipe)
        f = with_constant(segment.observed["features"][active.index])
        return Sums(self.memory.a + f.T @ f, self.memory.b + f.T @ np.eye(self.classes)[active.y]), SegmentReport(
            active=active.classes.tolist(),
            kept=len(active) / max(len(segment), 1),
            pseudo_accuracy=active.accuracy(segment.labels),
        )

    def solve(self, check: Check) -> tuple[Any, list[float]]:
        """W (F + 1, K), flat."""
        a, b = self.memory.a, self.memory.b
        return np.linalg.solve(a + self.penalty * np.eye(len(a)), b).ravel(), []


class Head(Row):
    """Uses the segments since the last solution too, at the end."""

    def finish(self) -> None:
        self.learner.retrain()


def with_constant(features: Floats) -> Doubles:
    """Features (n, F) with a constant 1 behind, (n, F + 1) float64."""
    return np.concatenate([features.astype(np.float64), np.ones((len(features), 1))], axis=1)


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
