"""Algorithm 1 of the paper, read top to bottom: segment → vote → condense → retrain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensation, Condensed, condense
from deco_runtime.learning.guard import Memory
from deco_runtime.learning.learner import BaseLearner, SegmentReport
from deco_runtime.learning.random_model import Parameter, draw_model, layers
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.vote import vote
from deco_runtime.types import Check, Floats, Ints, Segment

BATCH = 64
"""Images that are answered between two checks."""


class Learner(BaseLearner):
    """The paper's: the model is θ (P,), the memory is S."""

    def __init__(
        self,
        engine: Engine,
        parameters: Sequence[Parameter],
        theta: Floats,
        buffer: CondensedBuffer,
        classes: int,
        recipe: Recipe,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(engine, theta, buffer, classes, recipe, rng)
        self.steps = ("condensing, iteration", recipe.iterations)
        self.fit_steps = ("retraining, epoch", recipe.retrain_epochs)
        self._parameters, self._layers = parameters, layers(parameters)

    @property
    def theta(self) -> Floats:
        """θ (P,)."""
        return self.model

    @theta.setter
    def theta(self, theta: Floats) -> None:
        self.model = theta

    @property
    def buffer(self) -> CondensedBuffer:
        """S."""
        assert isinstance(self.memory, CondensedBuffer)
        return self.memory

    @buffer.setter
    def buffer(self, buffer: CondensedBuffer) -> None:
        self.memory = buffer

    def answer(self, model: Floats, x: Floats) -> Floats:
        return self.engine.predict(model, x)[0]

    def take_in(self, segment: Segment, check: Check) -> tuple[CondensedBuffer, SegmentReport]:
        """One turn of Algorithm 1 up to the update of S: vote on `I_t`, condense its active part into the buffer."""
        active = vote(segment, self.classes, self.recipe)  # eq:filter, eq:active
        known = segment.labels[active.index]
        right = float(np.mean(known == active.y)) if len(active) and (known >= 0).all() else None
        done = Condensed(self.buffer, [], [], 0)
        if len(active):
            done = self.update_buffer(segment.x[active.index], active.y, active.w, check)
        return done.buffer, SegmentReport(
            active.classes.tolist(),
            len(active) / max(len(segment), 1),
            right,
            done.distances,
            done.contrastive[-1] if done.contrastive else None,
            done.dropped,
        )

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Check) -> Condensed:
        """S from active frames x (m, C, H, W), their labels y (m,) and weights w (m,): eq:opt2 … eq:final.

        Other ways to keep a buffer override this one step.
        """
        return condense(self.begin(x, y, w), self.random_model, check)

    def begin(self, x: Floats, y: Ints, w: Floats) -> Condensation:
        """The condensing of these active frames into the buffer as it is now, with nothing done yet."""
        return Condensation(
            self.engine, self.theta, self.buffer, x, y, w, self.classes, self.recipe, self._layers, self.rng
        )

    def random_model(self) -> Floats:
        """θ̃ (P,), a fresh one at each call."""
        return draw_model(self._parameters, self.rng)

    def fit(self, check: Check) -> tuple[Floats, list[float]]:
        """θ ← opt_θ(θ, S)."""
        return retrain(self.engine, self.theta, self.buffer, self.classes, self.recipe, self.rng, check)

    def rehearse(self, model: Floats, memory: Memory, check: Check) -> tuple[Floats, Ints] | None:
        """The buffer's images, and what they stand for."""
        assert isinstance(memory, CondensedBuffer)
        found = []
        for start in range(0, len(memory.x_syn), BATCH):
            check()
            found.append(self.answer(model, memory.x_syn[start : start + BATCH]))
        return np.concatenate(found), memory.y_syn
