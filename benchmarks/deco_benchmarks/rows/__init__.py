"""The rows of the paper's tables, and those it left out.

Every learner there is makes a row, by its TITLE. What is only compared with is a short file here, found by name: a
module whose name does not start with `_` defines NAME (as in tables), ABOUT (one sentence and its source) and
`make(setup) -> Row`, and RECIPE, the name of the recipe it goes by, where that is not the paper's. Adding a row is
adding such a file. KEEPS_IMAGES = False says that a row does without a buffer, so that it also runs at ipc 0.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from deco_export.initial_buffer import pick_per_class
from deco_runtime.engine import Engine
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.buffer import CondensedBuffer, initial
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Batches, Floats, Ints, Segment

D = TypeVar("D", bound=Deco)


@dataclass(frozen=True)
class Setup:
    """What every row starts from.

    x_labelled (n, C, H, W), y_labelled (n,): the labelled images the bundle's model was trained on. ipc: images per
    class a buffer may hold.
    """

    engine: Engine
    bundle: Bundle
    x_labelled: Floats
    y_labelled: Ints
    ipc: int
    recipe: Any
    rng: np.random.Generator

    @property
    def classes(self) -> int:
        """K."""
        return len(self.bundle.classes)

    def learner(self, kind: type[D], buffer: CondensedBuffer | None = None) -> D:
        """A kind of the paper's learner, with the bundle's condensed buffer unless another is given."""
        parameters, theta = self.bundle.parameters, self.bundle.weights()
        buffer = initial(self.bundle) if buffer is None else buffer
        return kind(self.engine, parameters, theta, buffer, self.classes, self.recipe, self.rng)

    def real_buffer(self) -> CondensedBuffer:
        """A buffer of `ipc` random labelled images per class: where methods that select real images start."""
        index = pick_per_class(self.y_labelled, self.ipc, self.rng)
        return CondensedBuffer.start(self.x_labelled[index], self.y_labelled[index])


class Row:
    """A learner in a trial: a way to keep a model up to date with a stream."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def answers_on(self, images: Batches) -> Callable[[], Floats]:
        """A function to the logits (n, K) of these n images by the model as it is then; what never changes is kept."""
        answers = self.learner.answers_on(images)
        return lambda: answers(self.learner.model, lambda: None)

    def learn(self, segment: Segment) -> SegmentReport:
        """Take one segment. Only Oracle and Upper may learn from its labels."""
        return self.learner.learn(segment)

    def retrain(self) -> None:
        """Update the deployed model; called every β segments, the same for all rows."""
        self.learner.retrain()

    def finish(self) -> None:
        """The stream is over."""

    def buffer(self) -> CondensedBuffer | None:
        """What is kept to retrain on; None for a row that keeps no images."""
        memory = self.learner.memory
        return memory if isinstance(memory, CondensedBuffer) and len(memory.y_syn) else None

    def state_bytes(self) -> int:
        """Learned state beyond the pre-trained model's weights, in bytes."""
        buffer = self.buffer()
        if buffer is None:
            memory = arrays_of(self.learner.memory).values()
            return sum(int(array.nbytes) for array in (self.learner.model, *memory)) if self.learner.LEARNS else 0
        # A buffer of real frames has no optimizer.
        return buffer.x_syn.nbytes + (buffer.velocity.nbytes if buffer.velocity.any() else 0)


class AsShipped(Row):
    """A learner as deco-run has it, without a guard."""

    def finish(self) -> None:
        """Use the segments since the last update too, where one costs next to nothing."""
        if self.learner.LEARNS and not self.learner.IPC and self.learner.since_retrain:
            self.learner.retrain()


@dataclass(frozen=True)
class Method:
    """A row of a table before it is made."""

    name: str
    about: str
    recipe: Recipe
    keeps_images: bool
    make: Callable[[Setup], Row]


def rows() -> dict[str, Method]:
    """Every row by its name."""
    found = [_shipped(kind) for kind in registry.learners().values()]
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        it = import_module(f"{__name__}.{info.name}")
        recipe = registry.named(getattr(it, "RECIPE", Deco.NAME))
        found.append(Method(it.NAME, it.ABOUT, recipe, getattr(it, "KEEPS_IMAGES", True), it.make))
    return {method.name: method for method in found}


def _shipped(kind: type[Learner]) -> Method:
    def make(setup: Setup) -> Row:
        return AsShipped(kind.open(setup.bundle, setup.engine, setup.recipe, setup.rng))

    return Method(kind.TITLE, kind.ABOUT, kind.RECIPE, bool(kind.IPC), make)
