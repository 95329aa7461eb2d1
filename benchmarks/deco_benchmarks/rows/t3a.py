"""T3A: test-time templates in place of the last layer (Iwasawa & Matsuo 2021); it needs no votes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.vote import accuracy, softmax
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check, Floats, Observed, Segment

from deco_benchmarks.rows import AsShipped, Row, Setup
from deco_benchmarks.rows.ncm import unit

NAME = "T3A"
ABOUT = "The last layer's weights and the surest features of each class as templates (Iwasawa & Matsuo 2021), no votes."
RECIPE = "deco+"
KEEPS_IMAGES = False

KEPT = 100
"""Features kept per class, those of the lowest entropy; of the source's choices the largest that is not all."""


def make(setup: Setup) -> Row:
    """Starts from the last layer of the pre-trained model."""
    weights = last_layer(setup.bundle)
    return AsShipped(Templates(setup.engine, setup.bundle.weights(), weights, setup.recipe, setup.rng))


@dataclass(frozen=True)
class Supports:
    """features: (K, 1 + KEPT, F) float32 of length 1, the last layer's weights first; entropy: (K, 1 + KEPT) float32,
    −1 of these, LARGE where there is none yet."""

    features: Floats
    entropy: Floats


LARGE = 1e9


class Templates(Learner):
    """The model are the class templates (K, F), flat: means of the supports."""

    memory: Supports

    def __init__(
        self, engine: Engine, theta: Floats, weights: Floats, recipe: Recipe, rng: np.random.Generator
    ) -> None:
        classes, size = weights.shape
        features, entropy = np.zeros((classes, 1 + KEPT, size), np.float32), np.full((classes, 1 + KEPT), LARGE)
        features[:, 0], entropy[:, 0] = unit(weights), -1
        super().__init__(engine, weights.ravel(), Supports(features, entropy.astype(np.float32)), classes, recipe, rng)
        self.theta = theta
        self.steps, self.solve_steps = ("keeping the surest features", 1), ("averaging the templates", 1)
        self.model = self.solve(lambda: None)[0]

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Recipe, rng: np.random.Generator) -> Templates:  # type: ignore[override]
        return cls(engine, bundle.weights(), last_layer(bundle), recipe, rng)

    def observe(self, x: Floats) -> Observed:
        logits, features = self.engine.predict(self.theta, self.engine.encode(x))
        return {"logits": logits, "features": features}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        values: Floats = observed["features"] @ model.reshape(self.classes, -1).T
        return values

    def update(self, segment: Segment, check: Check) -> tuple[Supports, SegmentReport]:
        """Each frame is a support of the class that the pre-trained model gives it, if it is sure enough."""
        logits, z = segment.observed["logits"], unit(segment.observed["features"])
        p, y = softmax(logits), logits.argmax(axis=1)
        entropy = -(p * np.log(p + 1e-12)).sum(axis=1).astype(np.float32)
        features, kept = self.memory.features.copy(), self.memory.entropy.copy()
        for c in np.unique(y):
            both = np.concatenate([features[c], z[y == c]])
            doubt = np.concatenate([kept[c], entropy[y == c]])
            surest = np.argsort(doubt, kind="stable")[: 1 + KEPT]
            features[c], kept[c] = both[surest], doubt[surest]
        return Supports(features, kept), SegmentReport(np.unique(y).tolist(), 1.0, accuracy(y, segment.labels))

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        there = (self.memory.entropy < LARGE)[:, :, None]
        return unit((self.memory.features * there).sum(axis=1)).ravel(), []


def last_layer(bundle: Bundle) -> Floats:
    """The weights (K, F) of the model's last linear layer. Raises UsageError for a model without one."""
    shape = (len(bundle.classes), bundle.features)
    found = [p for p in bundle.parameters if p.shape == shape]
    if not found:
        raise UsageError(
            f"expected a model whose last layer is linear, {shape}, for row T3A, but found none; leave it out"
        )
    return bundle.weights()[found[-1].slice].reshape(shape)
