"""`deco+`: a regression on the frozen model's representation takes each frame in once, and forgets none.

observe   φ and the logits of the pre-trained model, which stays as it is   represented.py
vote      what each frame shows                                             voter.py, chain.py
add       the statistics of every frame                                     regression.add
solve     W; the deployed model answers with it and with the network        regression.solve, regression.mixed
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import voter
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.origin import Bundle, Labelled
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import Statistics, add, mixed, penalty, share, solve
from deco_runtime.learning.represented import RepresentedLearner
from deco_runtime.learning.voter import Voter
from deco_runtime.types import Check, Floats, Observed

P = TypeVar("P", bound="DecoPlus")


class DecoPlus(RepresentedLearner):
    """The model is W (D + 1, K) with its shares s (K,) below, flat; the memory are the statistics of every frame."""

    NAME, TITLE = "deco+", "DECO+"
    ABOUT = "Streaming ridge regression on pooled layers of the frozen model, fed by votes that know the frames' order."
    RECIPE = Recipe("deco+")

    memory: Statistics

    def __init__(self, engine: Engine, voter: Voter, recipe: Recipe, rng: np.random.Generator) -> None:
        model = np.vstack([voter.w, voter.s]).ravel()
        super().__init__(engine, voter, model, voter.start.statistics, recipe, rng)
        self.solve_steps = ("solving the regression", 1)

    @classmethod
    def open(cls: type[P], bundle: Bundle, engine: Engine, recipe: Recipe, rng: np.random.Generator) -> P:
        return cls(engine, Voter(voter.start(bundle), len(bundle.classes)), recipe, rng)

    @classmethod
    def fit(cls, labelled: Labelled) -> tuple[dict[str, Array], list[str]]:
        return voter.fit(labelled)

    def answer(self, model: Floats, observed: Observed) -> Floats:
        """A mean of what the regression and the pre-trained model say, each calibrated.

        The share of the regression begins with its worth on held-out images, and grows with what it has seen, see
        `share`.
        """
        rows = model.reshape(-1, self.classes)
        return mixed(rows[:-1], rows[-1], observed["phi"], observed["logits"], self.voter.start)

    def add(self, memory: Statistics, observed: Observed, t: Floats) -> Statistics:
        return add(memory, observed["phi"], t)

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        """W, the exact solution, and its shares."""
        w = solve(self.memory, penalty(self.memory, self.voter.start))
        return np.vstack([w, share(self.memory, self.voter.start)]).ravel(), []


LEARNER = DecoPlus
