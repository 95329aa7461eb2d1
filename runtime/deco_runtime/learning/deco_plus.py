"""`deco+`: a regression on the frozen model's representation takes each frame in once, and forgets none.

observe   φ and the logits of the pre-trained model, which stays as it is   represented.py
vote      what each frame shows                                             voter.py, chain.py
add       the statistics of every frame                                     teachable.py, regression.add
solve     W; the deployed model answers with it and with the network        regression.solve, regression.mixed
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import voter
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.origin import Bundle, Labelled
from deco_runtime.learning.regression import Statistics, mixed, penalty, share, solve
from deco_runtime.learning.teachable import TaughtRecipe, TeachableLearner
from deco_runtime.learning.voter import Voter
from deco_runtime.types import Floats, Observed

P = TypeVar("P", bound="DecoPlus")


class DecoPlus(TeachableLearner):
    """The model is W (D + 1, K) with its shares s (K,) below, flat; the memory are the statistics of every frame."""

    NAME, TITLE = "deco+", "DECO+"
    ABOUT = "Streaming ridge regression on pooled layers of the frozen model, fed by votes that know the frames' order."
    RECIPE = TaughtRecipe("deco+")

    def __init__(self, engine: Engine, voter: Voter, recipe: TaughtRecipe, rng: np.random.Generator) -> None:
        super().__init__(engine, voter, np.vstack([voter.w, voter.s]).ravel(), recipe, rng)
        self.solve_steps = ("solving the regression", 1)

    @classmethod
    def open(cls: type[P], bundle: Bundle, engine: Engine, recipe: TaughtRecipe, rng: np.random.Generator) -> P:
        return cls(engine, Voter(voter.start(bundle), len(bundle.classes)), recipe, rng)

    @classmethod
    def fit(cls, labelled: Labelled) -> tuple[dict[str, Array], list[str]]:
        return voter.fit(labelled)

    def answer_own(self, model: Floats, observed: Observed) -> Floats:
        """A mean of what the regression and the pre-trained model say, each calibrated.

        The share of the regression begins with its worth on held-out images, and grows with what it has seen, see
        `share`.
        """
        rows = model.reshape(-1, self.bundle_classes)
        return mixed(rows[:-1], rows[-1], observed["phi"], observed["logits"], self.start)

    def solve_own(self, statistics: Statistics) -> Floats:
        """W, the exact solution, and its shares."""
        w = solve(statistics, penalty(statistics, self.start))
        return np.vstack([w, share(statistics, self.start)]).ravel()


LEARNER = DecoPlus
