"""Tent: the norms' scales and shifts follow the entropy of the answers down (Wang et al. 2021); it needs no votes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.retrain import sgd_step
from deco_runtime.learning.vote import accuracy, log_softmax
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Bools, Check, Floats, Observed, Segment

from deco_benchmarks.rows import AsShipped, Row, Setup

NAME = "Tent"
ABOUT = "One step per segment on the norms' scales and shifts, towards less entropy (Wang et al. 2021), no votes."
RECIPE = "deco+"
KEEPS_IMAGES = False

RATE, MOMENTUM = 1e-3, 0.9
"""Of the source's SGD."""


def make(setup: Setup) -> Row:
    """Starts from the pre-trained model."""
    return AsShipped(Entropy.open(setup.bundle, setup.engine, setup.recipe, setup.rng))


@dataclass(frozen=True)
class Descent:
    """theta, velocity: (P,) float32."""

    theta: Floats
    velocity: Floats


class Entropy(Learner):
    """The model is θ (P,), of which only the norms' weights change."""

    memory: Descent

    def __init__(
        self, engine: Engine, theta: Floats, norms: Bools, classes: int, recipe: Recipe, rng: np.random.Generator
    ) -> None:
        super().__init__(engine, theta, Descent(theta, np.zeros_like(theta)), classes, recipe, rng)
        self._norms = norms
        self.steps, self.solve_steps = ("one step", 1), ("publishing the step", 1)

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Recipe, rng: np.random.Generator) -> Entropy:  # type: ignore[override]
        return cls(engine, bundle.weights(), norms_of(bundle), len(bundle.classes), recipe, rng)

    def observe(self, x: Floats) -> Observed:
        return {"x": self.engine.encode(x)}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        return self.engine.predict(model, observed["x"])[0]

    def update(self, segment: Segment, check: Check) -> tuple[Descent, SegmentReport]:
        """θ of the norms ← θ − η ∇ mean H(p(x)).

        ∂H/∂z_c = −p_c (log p_c + H), and the loss −Σ t log p has ∂/∂z = p Σt − t: both are the same for
        t_c = p_c (log p_c + H), which adds up to 0.
        """
        x, (theta, velocity) = segment.observed["x"], (self.memory.theta, self.memory.velocity)
        log_p = log_softmax(self.engine.predict(theta, x)[0])
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(axis=1, keepdims=True)
        t = (p * (log_p + entropy) / len(x)).astype(np.float32)
        _, gradient = self.engine.weight_gradient(theta, x, t)
        theta, velocity = sgd_step(theta, velocity, gradient * self._norms, RATE, MOMENTUM, 0.0)
        y = log_p.argmax(axis=1)
        return Descent(theta, velocity), SegmentReport(np.unique(y).tolist(), 1.0, accuracy(y, segment.labels))

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return self.memory.theta, []


def norms_of(bundle: Bundle) -> Bools:
    """Which weights (P,) are scales and shifts of norms: vectors that begin as ones, and those behind them that begin
    as zeros. Raises UsageError for a model without any."""
    found = np.zeros(bundle.weight_count, bool)
    for scale, shift in zip(bundle.parameters, bundle.parameters[1:], strict=False):
        is_scale = len(scale.shape) == 1 and scale.kind == "constant" and scale.a == 1
        if is_scale and shift.shape == scale.shape and shift.kind == "constant" and shift.a == 0:
            found[scale.slice] = found[shift.slice] = True
    if not found.any():
        raise UsageError("expected a model with norms that scale and shift, for row Tent, but found none; leave it out")
    return found
