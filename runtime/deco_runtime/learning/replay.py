"""A learner that retrains the whole model on a buffer of labelled images, however it keeps that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import buffer as buffers
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.learner import Learner, seen_once
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.random_model import Parameter
from deco_runtime.types import Batches, Check, Floats, Ints, Observed

BATCH = 64
"""Images that are answered between two checks."""

L = TypeVar("L", bound="ReplayLearner")


class ReplayLearner(Learner):
    """The model is θ (P,), the memory is the buffer; it sees what θ works on, pixels or latents, since θ changes."""

    memory: CondensedBuffer
    recipe: Hyperparameters
    latents = False
    """Whether x are latents of a frozen trunk."""

    def __init__(
        self,
        engine: Engine,
        parameters: Sequence[Parameter],
        theta: Floats,
        buffer: CondensedBuffer,
        classes: int,
        recipe: Hyperparameters,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(engine, theta, buffer, classes, recipe, rng)
        self.parameters = parameters

    @classmethod
    def open(cls: type[L], bundle: Bundle, engine: Engine, recipe: Hyperparameters, rng: np.random.Generator) -> L:
        buffer = buffers.initial(bundle)
        learner = cls(engine, bundle.parameters, bundle.weights(), buffer, len(bundle.classes), recipe, rng)
        learner.latents = bundle.trunk
        return learner

    def observe(self, x: Floats) -> Observed:
        return {"x": self.engine.encode(x)}

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        # Latents are small, and costly to make again; pixels are large.
        return seen_once(images, self.observe, self._answer_in_parts) if self.latents else super().answers_on(images)

    def _answer_in_parts(self, model: Floats, observed: Observed) -> Floats:
        return self._logits(model, observed["x"], lambda: None)

    def _logits(self, model: Floats, x: Floats, check: Check) -> Floats:
        """(n, K) for x (n, …), some at a time."""
        found = []
        for start in range(0, len(x), BATCH):
            check()
            found.append(self.engine.predict(model, x[start : start + BATCH])[0])
        return np.concatenate(found)

    def answer(self, model: Floats, observed: Observed) -> Floats:
        return self.engine.predict(model, observed["x"])[0]

    def evaluate_memory(self, model: Floats, memory: CondensedBuffer, check: Check) -> tuple[Floats, Ints]:
        """The buffer's images, and what they stand for."""
        return self._logits(model, memory.x_syn, check), memory.y_syn
