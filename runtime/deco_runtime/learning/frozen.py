"""The pre-trained model, never updated: what every learner has to beat, and what `deco-run --no-learn` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.types import Check, Floats, Observed, Segment

F = TypeVar("F", bound="Frozen")


@dataclass(frozen=True)
class Nothing:
    """A memory without arrays."""


class Frozen(Learner):
    """Segments change nothing, and there is never an update."""

    NAME, TITLE = "frozen", "Frozen"
    ABOUT = "The pre-trained model, never updated."
    RECIPE = Recipe("frozen")
    GRAPH = "predict"
    LEARNS = False

    def __init__(self, engine: Engine, theta: Floats, classes: int, recipe: Recipe, rng: np.random.Generator) -> None:
        super().__init__(engine, theta, Nothing(), classes, recipe, rng)
        self.steps, self.solve_steps = ("passing the segment over", 1), ("keeping the model", 1)

    @classmethod
    def open(cls: type[F], bundle: Bundle, engine: Engine, recipe: Any, rng: np.random.Generator) -> F:
        return cls(engine, bundle.weights(), len(bundle.classes), recipe, rng)

    def observe(self, x: Floats) -> Observed:
        return {"logits": self.engine.predict(self.model, self.engine.encode(x))[0][:, : self.classes]}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        return observed["logits"]

    def update(self, segment: Segment, check: Check) -> tuple[Nothing, SegmentReport]:
        return self.memory, SegmentReport()

    @property
    def retrain_due(self) -> bool:
        return False

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return self.model, []


LEARNER = Frozen
