"""The rows of the paper's tables, and those it left out: one short file each, found by name.

A module here whose name does not start with `_` defines NAME (as in tables), ABOUT (one sentence and its source) and
`make(setup) -> Row`, and RECIPE, the name of the recipe it goes by, where that is not the paper's. Adding a row is
adding such a file. KEEPS_IMAGES = False says that a row does without a buffer, so that it also runs at ipc 0.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Protocol

import numpy as np
from deco_export.initial_buffer import pick_per_class
from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco import Learner
from deco_runtime.learning.learner import BaseLearner, SegmentReport
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import Start
from deco_runtime.types import Batches, Floats, Ints, Segment


@dataclass(frozen=True)
class Setup:
    """What every row starts from.

    theta: (P,) the pre-trained model. condensed: the bundle's initial buffer, without an image at ipc 0. regression:
    reads what `deco+` starts from. x_labelled (n, C, H, W), y_labelled (n,): the labelled images the model was trained
    on. ipc: images per class a buffer may hold.
    """

    engine: Engine
    parameters: tuple[Parameter, ...]
    theta: Floats
    condensed: CondensedBuffer
    regression: Callable[[], Start]
    x_labelled: Floats
    y_labelled: Ints
    classes: int
    ipc: int
    recipe: Recipe
    rng: np.random.Generator

    def learner(self, kind: type[Learner] = Learner, buffer: CondensedBuffer | None = None) -> Learner:
        """The device's learner, or a kind of it, with the condensed buffer unless another is given."""
        return kind(
            self.engine,
            self.parameters,
            self.theta,
            self.condensed if buffer is None else buffer,
            self.classes,
            self.recipe,
            self.rng,
        )

    def real_buffer(self) -> CondensedBuffer:
        """A buffer of `ipc` random labelled images per class: where methods that select real images start."""
        index = pick_per_class(self.y_labelled, self.ipc, self.rng)
        return CondensedBuffer.start(self.x_labelled[index], self.y_labelled[index])


class Row(Protocol):
    """A way to keep a model up to date with a stream."""

    def predict(self, x: Floats) -> Floats:
        """x (N, C, H, W) → logits (N, K) of the deployed model as it is now."""
        ...

    def answers_on(self, images: Batches) -> Callable[[], Floats]:
        """A function to the logits (n, K) of these n images by the model as it is then; what never changes is kept."""
        ...

    def vote(self, x: Floats) -> Floats:
        """x (N, C, H, W) → logits (N, K) whose largest are the pseudo-labels of a segment's frames."""
        ...

    def learn(self, segment: Segment) -> SegmentReport:
        """Take one segment. Only Oracle and Upper may learn from its labels."""
        ...

    def retrain(self) -> None:
        """Update the deployed model; called every β segments, the same for all rows."""
        ...

    def finish(self) -> None:
        """The stream is over."""
        ...

    def buffer(self) -> CondensedBuffer | None:
        """What is kept to retrain on; None for a row that keeps no images."""
        ...

    @property
    def learner(self) -> BaseLearner:
        """Whose model, memory, generator and counts make up the row's state."""
        ...

    def kept(self) -> tuple[str, ...] | None:
        """Names of the learner's numbers and arrays that are state too; None where there is more, and no way back."""
        ...

    def state_bytes(self) -> int:
        """Learned state beyond the model's weights, in bytes."""
        ...


class LearnerRow:
    """A row around the device's learner, or a kind of it.

    A kind with state of its own names it in KEPT, a tuple of attributes, or says None.
    """

    def __init__(self, learner: BaseLearner) -> None:
        self.learner = learner

    def predict(self, x: Floats) -> Floats:
        return self.learner.predict(x)

    def answers_on(self, images: Batches) -> Callable[[], Floats]:
        answers = self.learner.answers_on(images)
        return lambda: answers(self.learner.model, lambda: None)

    def vote(self, x: Floats) -> Floats:
        return self.predict(x)

    def learn(self, segment: Segment) -> SegmentReport:
        return self.learner.learn(segment)

    def retrain(self) -> None:
        self.learner.retrain()

    def finish(self) -> None:
        pass

    def buffer(self) -> CondensedBuffer | None:
        memory = self.learner.memory
        return memory if isinstance(memory, CondensedBuffer) and len(memory.y_syn) else None

    def kept(self) -> tuple[str, ...] | None:
        names: tuple[str, ...] | None = getattr(self.learner, "KEPT", ())
        return names

    def state_bytes(self) -> int:
        buffer = self.buffer()
        if buffer is None:
            return sum(int(array.nbytes) for array in (self.learner.model, *vars(self.learner.memory).values()))
        # A buffer of real frames has no optimizer.
        return buffer.x_syn.nbytes + (buffer.velocity.nbytes if buffer.velocity.any() else 0)


def rows() -> dict[str, ModuleType]:
    """Every row module by its NAME."""
    modules = [import_module(f"{__name__}.{i.name}") for i in pkgutil.iter_modules(__path__) if i.name[0] != "_"]
    return {module.NAME: module for module in modules}
