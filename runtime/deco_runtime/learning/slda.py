"""`slda`: streaming linear discriminant analysis (Hayes & Kanan 2020), fed by the votes of `voter.py`.

    memory   the sums that the mean of each class, and one covariance around them, are made of
    model    the linear classifier of these: w_c = Λ μ_c, b_c = −½ μ_cᵀ Λ μ_c, Λ = ((1 − ε)Σ + εI)⁻¹

The source moves means and covariance with each labelled frame; they are those of all frames so far, as here, where a
frame counts for each class by its share of the vote. The temperature that calibrates the answers is fitted to held-out
images at the export.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import calibrate, voter
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.origin import Bundle, Labelled, fitted
from deco_runtime.learning.regression import TINY, Statistics, scores, within
from deco_runtime.learning.teachable import TaughtRecipe, TeachableLearner
from deco_runtime.learning.voter import Voter
from deco_runtime.types import Floats, Observed

FILE = fitted("slda")
TEMPERATURE = 4.0
"""Expected beforehand: the covariance of few labelled images makes scores several times too sure of others."""
NEVER = -1e9
"""Bias of a class without a frame."""


@dataclass(frozen=True)
class Settings(TaughtRecipe):
    """Raises UsageError for a value outside its range."""

    name: str = "slda"
    shrinkage: float = 1e-4
    """ε, the part of the identity, times the mean variance, in the covariance that is inverted; the source's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("shrinkage", 0 < self.shrinkage <= 1, "above 0 and at most 1")


class Slda(TeachableLearner):
    """The model is (D + 1, K), the weights with the biases below, flat."""

    NAME, TITLE = "slda", "SLDA"
    ABOUT = "Streaming linear discriminant analysis (Hayes & Kanan 2020) on the frozen model, with the votes of deco+."
    RECIPE = Settings()
    recipe: Settings

    def __init__(
        self, engine: Engine, voter: Voter, temperature: float, recipe: Settings, rng: np.random.Generator
    ) -> None:
        super().__init__(engine, voter, classifier(voter.start.statistics, recipe.shrinkage), recipe, rng)
        self.temperature, self.solve_steps = np.float32(temperature), ("inverting the covariance", 1)

    @classmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Settings, rng: np.random.Generator) -> Slda:
        temperature = float(bundle.array(FILE, "temperature", np.float32, ()))
        if temperature <= 0:
            raise bundle.broken(FILE, "a temperature above 0")
        return cls(engine, Voter(voter.start(bundle), len(bundle.classes)), temperature, recipe, rng)

    @classmethod
    def fit(cls, labelled: Labelled) -> tuple[dict[str, Array], list[str]]:
        held, notes = labelled.held_out, list[str]()
        w = classifier(labelled.statistics, cls.RECIPE.shrinkage).reshape(-1, labelled.classes)
        values = scores(w, held.all(labelled.size, labelled.classes)[0])
        found = calibrate.temperature(values, held.labels, held.takes, TEMPERATURE, "slda", notes)
        return {"temperature": np.asarray(found, np.float32)}, notes

    def answer_own(self, model: Floats, observed: Observed) -> Floats:
        values: Floats = scores(model.reshape(-1, self.bundle_classes), observed["phi"]) / self.temperature
        return values

    def solve_own(self, statistics: Statistics) -> Floats:
        return classifier(statistics, self.recipe.shrinkage)


def classifier(statistics: Statistics, shrinkage: float) -> Floats:
    """(D + 1, K) flat: Λ μ_c, and below −½ μ_cᵀ Λ μ_c; a class without a frame is never answered."""
    b, covariance = statistics.b.astype(np.float64), within(statistics)
    means, size = b[:-1] / np.maximum(b[-1], TINY), len(covariance)
    identity = max(float(np.trace(covariance)) / size, TINY) * np.eye(size)
    w = np.linalg.solve((1 - shrinkage) * covariance + shrinkage * identity, means)
    bias = np.where(b[-1] > TINY, -0.5 * (means * w).sum(axis=0), NEVER)
    return np.vstack([w, bias]).astype(np.float32).ravel()


LEARNER = Slda
