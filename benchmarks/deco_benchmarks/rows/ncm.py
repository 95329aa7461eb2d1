"""NCM: the nearest class mean, kept as an exponential average (the read-out of CoPE, De Lange & Tuytelaars 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.learning import voter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import TINY
from deco_runtime.learning.represented import RepresentedLearner
from deco_runtime.learning.voter import Voter
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check, Floats, Observed

from deco_benchmarks.rows import AsShipped, Row, Setup

NAME = "NCM"
ABOUT = "Nearest class mean by cosine, each mean an exponential average of the frames voted for it (CoPE's read-out)."
RECIPE = "deco+"
KEEPS_IMAGES = False

MOMENTUM = 0.999
"""What a mean keeps of itself at each frame of its class; CoPE keeps 0.99 at each batch."""
TEMPERATURE = 0.1
"""CoPE's."""


def make(setup: Setup) -> Row:
    """Starts from the means of the labelled images, with the votes of deco+."""
    return AsShipped(NearestMean.open(setup.bundle, setup.engine, setup.recipe, setup.rng))


@dataclass(frozen=True)
class Means:
    """means: (K, D) float32."""

    means: Floats


class NearestMean(RepresentedLearner):
    """The model are the means (K, D), flat."""

    memory: Means
    solve_steps = ("taking the means", 1)

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Recipe, rng: np.random.Generator) -> NearestMean:  # type: ignore[override]
        start = Voter(voter.start(bundle), len(bundle.classes))
        b = start.start.statistics.b
        means = unit((b[:-1] / np.maximum(b[-1], TINY)).T)
        return cls(engine, start, means.ravel(), Means(means), recipe, rng)

    def answer(self, model: Floats, observed: Observed) -> Floats:
        cosine: Floats = unit(observed["phi"]) @ unit(model.reshape(self.classes, -1)).T
        return cosine / np.float32(TEMPERATURE)

    def add(self, memory: Means, observed: Observed, t: Floats) -> Means:
        frames = t.sum(axis=0)[:, None]
        mean = t.T @ unit(observed["phi"]) / np.maximum(frames, TINY)
        kept = MOMENTUM**frames
        return Means((kept * memory.means + (1 - kept) * mean).astype(np.float32))

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return self.memory.means.ravel(), []


def unit(rows: Floats) -> Floats:
    """Rows of length 1."""
    scaled: Floats = (rows / (np.linalg.norm(rows, axis=1, keepdims=True) + TINY)).astype(np.float32)
    return scaled
