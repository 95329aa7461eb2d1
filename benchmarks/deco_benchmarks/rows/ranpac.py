"""RanPAC: a ridge regression on a random projection of the representation (McDonnell et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from deco_export.images import batches
from deco_runtime.engine import Engine
from deco_runtime.learning import voter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.represented import RepresentedLearner
from deco_runtime.learning.vote import one_hot
from deco_runtime.learning.voter import Voter
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check, Floats, Observed

from deco_benchmarks.rows import AsShipped, Row, Setup

NAME = "RanPAC"
ABOUT = (
    "Ridge regression on a random projection and ReLU of the representation (McDonnell et al. 2023), votes of deco+."
)
RECIPE = "deco+"
KEEPS_IMAGES = False

SIZE = 2000
"""M, values of the random projection; the source takes 10,000, a Gram matrix of 400 MB."""
PENALTIES = tuple(10.0**k for k in range(-2, 7))
"""λ tried; that with the smallest squared error on HELD_OUT of the labelled images is taken, as in the source."""
HELD_OUT = 0.2


def make(setup: Setup) -> Row:
    """Starts from the labelled images, with the votes of deco+."""
    learner = Projected.open(setup.bundle, setup.engine, setup.recipe, setup.rng)
    learner.begin_with(setup.x_labelled, one_hot(setup.y_labelled, setup.classes))
    return AsShipped(learner)


@dataclass(frozen=True)
class Gram:
    """g: Σ hhᵀ (M, M) float32, c: Σ htᵀ (M, K) float32, of the projected frames h."""

    g: Floats
    c: Floats

    @classmethod
    def zero(cls, size: int, classes: int) -> Gram:
        """Nothing seen yet."""
        return cls(np.zeros((size, size), np.float32), np.zeros((size, classes), np.float32))


class Projected(RepresentedLearner):
    """The model is W (M, K), flat."""

    OWN = ("penalty",)
    memory: Gram
    penalty = 1.0
    solve_steps = ("solving the regression", 1)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        size = len(self.voter.w) - 1
        self._r = np.random.default_rng(0).standard_normal((size, SIZE), np.float32) / np.float32(size**0.5)

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Recipe, rng: np.random.Generator) -> Projected:  # type: ignore[override]
        """One that has seen nothing yet: the bundle holds no sums of this projection."""
        start = Voter(voter.start(bundle), len(bundle.classes))
        nothing = Gram.zero(SIZE, len(bundle.classes))
        return cls(engine, start, nothing.c.ravel(), nothing, recipe, rng)

    def begin_with(self, x: Floats, t: Floats) -> None:
        """Choose λ and take in the labelled images x (n, C, H, W), t (n, K)."""
        parts = [self.observe(x[part]) for part in batches(len(x))]
        phi = np.concatenate([part["phi"] for part in parts])
        held = np.random.default_rng(0).random(len(x)) < HELD_OUT
        known, h = summed(Gram.zero(SIZE, self.classes), self._project(phi[~held]), t[~held]), self._project(phi[held])
        errors = {each: float(np.square(h @ ridge(known, each) - t[held]).sum()) for each in PENALTIES}
        self.penalty = min(errors, key=lambda each: errors[each])
        self.memory = summed(self.memory, self._project(phi), t)
        self.model = self.solve(lambda: None)[0]

    def answer(self, model: Floats, observed: Observed) -> Floats:
        """Regression values as logits: only their order means something."""
        return self._project(observed["phi"]) @ model.reshape(-1, self.classes)

    def add(self, memory: Gram, observed: Observed, t: Floats) -> Gram:
        return summed(memory, self._project(observed["phi"]), t)

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return ridge(self.memory, self.penalty).ravel(), []

    def _project(self, phi: Floats) -> Floats:
        """h = max(0, φR) (n, M)."""
        return np.maximum(phi @ self._r, 0)


def summed(memory: Gram, h: Floats, t: Floats) -> Gram:
    """The sums with frames h (n, M), each shared among the classes by t (n, K)."""
    weighted = h * t.sum(axis=1, keepdims=True)
    return Gram(memory.g + h.T @ weighted, memory.c + h.T @ t)


def ridge(memory: Gram, penalty: float) -> Floats:
    """W = (G + λI)⁻¹ C (M, K)."""
    g: npt.NDArray[np.float64] = memory.g.astype(np.float64)
    w: Floats = np.linalg.solve(g + penalty * np.eye(len(g)), memory.c.astype(np.float64)).astype(np.float32)
    return w
