"""Learners made of sums over frames, which people can teach: what deco+ and slda share.

What people said is kept apart from the sums of what was voted, as frames, so that it outlasts an update that is taken
back, and can be undone itself. Every model is made of both. Classes of the bundle are answered as the learner does,
classes that people added by `added.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import added
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import Statistics, add, clipped, of_classes, together
from deco_runtime.learning.represented import RepresentedLearner
from deco_runtime.learning.taught import Taught
from deco_runtime.learning.vote import targets
from deco_runtime.learning.voter import Voter
from deco_runtime.types import Check, Floats, Observed


@dataclass(frozen=True)
class TaughtRecipe(Recipe):
    """Raises UsageError for a value outside its range."""

    taught_weight: float = 10.0
    """How often a frame counts that people said the class of, against 1 for one that was voted on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("taught_weight")


class TeachableLearner(RepresentedLearner):
    """The memory are the sums of every voted frame and of the labelled images; the model is what `solve_own` makes for
    the bundle's classes and, where people added some, the discriminants of all behind it.

    longest: of ‖φ‖ in what is added to the memory; longer ones are shortened, so that noise can hide any one frame.
    """

    CAUTIOUS = True
    memory: Statistics
    recipe: TaughtRecipe

    def __init__(
        self, engine: Engine, voter: Voter, model: Floats, recipe: TaughtRecipe, rng: np.random.Generator
    ) -> None:
        super().__init__(engine, voter, model, voter.start.statistics, recipe, rng)
        self.start, self._own = voter.start, len(model)
        self._said: Statistics | None = None
        self.longest = inf

    @abstractmethod
    def answer_own(self, model: Floats, observed: Observed) -> Floats:
        """Logits (N, K) for the bundle's classes, of a model that `solve_own` gave."""

    @abstractmethod
    def solve_own(self, statistics: Statistics) -> Floats:
        """A model for the bundle's classes, flat, made of the sums of frames of these."""

    def answer(self, model: Floats, observed: Observed) -> Floats:
        said = self.answer_own(model[: self._own], observed)
        if len(model) == self._own:
            return said
        phi = observed["phi"]
        g = model[self._own :].reshape(phi.shape[1] + 1, -1)
        return added.beside(said, added.odds(g, phi, said.shape[1]))

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        """Of the memory and of what people said."""
        return self._solved(self.memory), []

    def _solved(self, memory: Statistics) -> Floats:
        everything = memory if self._said is None else together(memory, self._said)
        own = self.solve_own(of_classes(everything, self.bundle_classes))
        if self.classes == self.bundle_classes:
            return own
        weight, cost = self.recipe.taught_weight, added.COSTS[self.taught.step]
        g = added.discriminants(everything, self.bundle_classes, weight, cost)
        return np.append(own, g.ravel())

    def tell(self, taught: Taught) -> None:
        """See `Learner`. The votes go by what people said as by the labelled images."""
        if not len(taught) and not len(self.taught):
            return
        start, classes, weight = self.start, self.bundle_classes + len(taught.classes), self.recipe.taught_weight
        said = None
        if not len(taught):
            voter = Voter(start, classes)
        else:
            observed, labels, _ = taught.part(~taught.guards)
            w = np.full(len(labels), weight, np.float32)
            size = len(start.statistics.b) - 1
            if {name: array.shape[1:] for name, array in taught.observed.items()} != {
                "phi": (size,),
                "logits": (self.bundle_classes,),
            }:
                raise ValueError("its taught frames do not fit the bundle")
            said = add(Statistics.zero(size, classes), observed["phi"], targets(labels, w, classes))
            ours = labels < self.bundle_classes
            t = targets(labels[ours], w[ours], self.bundle_classes)
            own = add(Statistics.zero(size, self.bundle_classes), observed["phi"][ours], t)
            known = together(of_classes(start.statistics, classes), said)
            cost, like = added.COSTS[taught.step], together(start.statistics, own)
            voter = Voter(replace(start, statistics=known), classes, start.statistics, weight, cost, like)
        if voter.states != self.states:
            self.scene = None
        self.memory = self.reshaped(self.memory, classes)
        self.taught, self._said, self.voter = taught, said, voter
        self.classes, self.states = classes, voter.states

    def reshaped(self, memory: Statistics, classes: int) -> Statistics:
        return of_classes(memory, classes)

    def initial(self) -> Floats:
        return self._solved(of_classes(self.start.statistics, self.classes))

    def add(self, memory: Statistics, observed: Observed, t: Floats) -> Statistics:
        phi = observed["phi"]
        return add(memory, phi if self.longest == inf else clipped(phi, self.longest), t)

    def values(self) -> dict[str, Any]:
        return super().values() | ({} if self.longest == inf else {"longest": self.longest})

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        longest = values.get("longest", inf)
        if type(longest) is not float or not longest > 0:
            raise ValueError("its bound is none")
        super().restore(arrays, values)
        self.longest = longest

    def known(self) -> dict[str, Floats]:
        said = self._said
        voted = self.memory.b[-1]
        return {"frames": voted if said is None else voted + said.b[-1]}
