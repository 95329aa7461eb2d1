"""What is measured: the device's own learner on a bundle, with random images in place of a camera's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning.learner import BaseLearner
from deco_runtime.learning.recipe import Recipe, named
from deco_runtime.running.assemble import L, condensing, new_learner
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats, Segment


@dataclass(frozen=True)
class Work:
    """A bundle opened on an engine, one frame (1, C, H, W), and a segment whose frames are all taken for class 0."""

    bundle: Bundle
    engine: Engine
    recipe: Recipe
    frame: Floats
    segment: Segment

    def learner(self, iterations: int | None = None, epochs: int | None = None) -> BaseLearner:
        """A fresh learner, with another number of iterations or epochs than the recipe's where given."""
        recipe = replace(
            self.recipe,
            iterations=iterations or self.recipe.iterations,
            retrain_epochs=epochs or self.recipe.retrain_epochs,
        )
        return new_learner(self.bundle, self.engine, recipe, seed=0)

    def by(self, recipe_name: str) -> Work:
        """The same work by another recipe."""
        return replace(self, recipe=named(recipe_name))

    def kind_of(self, kind: type[L]) -> L:
        """A fresh learner of this kind, which condenses."""
        return condensing(kind, self.bundle, self.engine, self.recipe, seed=0)


def open_work(path: Path, engine: str, recipe_name: str = "paper") -> Work:
    """Raises what `open_bundle` and `open_engine` raise."""
    bundle = open_bundle(path)
    recipe = named(recipe_name)
    n, rng = recipe.segment, np.random.default_rng(0)
    x = rng.standard_normal((n, *bundle.image_shape), np.float32)
    confidence = rng.uniform(0.5, 1, n).astype(np.float32)
    segment = Segment(x, np.zeros(n, np.int64), confidence, np.full(n, -1))
    return Work(bundle, open_engine(bundle, engine), recipe, x[:1], segment)


def learn_and_update(learner: BaseLearner, segment: Segment) -> None:
    """What `deco+` does with each segment."""
    learner.learn(segment)
    learner.retrain()
