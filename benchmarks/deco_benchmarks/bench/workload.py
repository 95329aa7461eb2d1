"""What is measured: the device's own learner on a bundle, with random images in place of a camera's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import settable
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.state import beside
from deco_runtime.types import Floats, Segment

L = TypeVar("L", bound=Deco)


@dataclass(frozen=True)
class Work:
    """A bundle opened on an engine, one frame (1, C, H, W), and a segment whose frames are all taken for class 0."""

    bundle: Bundle
    engine: Engine
    recipe: Any
    frame: Floats
    segment: Segment

    def learner(self, **values: Any) -> Learner:
        """A fresh learner, with other values of the recipe where these are its own."""
        own = {name: value for name, value in values.items() if name in settable(self.recipe)}
        kind = registry.learner(self.recipe.name)
        return kind.open(self.bundle, self.engine, replace(self.recipe, **own), np.random.default_rng(0))

    def by(self, recipe_name: str) -> Work:
        """The same work by another recipe."""
        return work_on(self.bundle, self.engine, recipe_name)

    def kind_of(self, kind: type[L]) -> L:
        """A fresh learner of this kind, which condenses."""
        return kind.open(self.bundle, self.engine, self.recipe, np.random.default_rng(0))


def open_work(path: Path, engine: str, recipe_name: str = "paper") -> Work:
    """Raises what `open_bundle` and `open_engine` raise, and BundleError where the recipe lacks what it starts from."""
    bundle = open_bundle(path)
    return work_on(bundle, opened(bundle, engine), recipe_name)


def opened(bundle: Bundle, engine: str) -> Engine:
    """The engine; what it builds for minutes is kept where deco-run keeps it. Raises what `open_engine` raises."""
    return open_engine(bundle, engine, directory=beside(bundle.path))


def work_on(bundle: Bundle, engine: Engine, recipe_name: str) -> Work:
    """Work by this recipe. Raises BundleError where the bundle lacks what it starts from."""
    recipe, rng = registry.named(recipe_name), np.random.default_rng(0)
    n = recipe.segment
    x = rng.standard_normal((n, *bundle.image_shape), np.float32)
    confidence = rng.uniform(0.5, 1, n).astype(np.float32)
    learner = registry.learner(recipe_name).open(bundle, engine, recipe, rng)
    segment = Segment(learner.observe(x), np.zeros(n, np.int64), confidence, np.full(n, -1))
    return Work(bundle, engine, recipe, x[:1], segment)
