"""A learner that retrains the whole model on a buffer of labelled images, however it keeps that.

What people said is trained on beside the buffer, on top of every update, and never gets into what the next update
starts from: so it outlasts an update that is taken back, and can be undone exactly. A class that people added has
images in the buffer too, which start as its frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import buffer as buffers
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.learner import Learner, seen_once
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.random_model import Parameter, spares
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.taught import Taught
from deco_runtime.types import Batches, Check, Floats, Ints, Observed

BATCH = 64
"""Images that are answered between two checks."""
ENOUGH = 0.8
"""Share of the frames of each teaching that has to be answered as people said. Training on goes on until it is, and no
longer: what it does beyond that, it does to the other answers."""

L = TypeVar("L", bound="ReplayLearner")


class ReplayLearner(Learner):
    """The model is θ (P,) or, once people said anything, θ trained on that too, and behind it θ without, (2P,). The
    memory is the buffer; it sees what θ works on, pixels or latents, since θ changes."""

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
        self.parameters, self._start = parameters, theta
        self.spare = spares(parameters)
        self._begun: list[int] = []  # classes that people added, whose images are still their frames
        self.outputs = classes + self.spare

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
            found.append(self.answer(model, {"x": x[start : start + BATCH]}))
        return np.concatenate(found)

    def answer(self, model: Floats, observed: Observed) -> Floats:
        return self.engine.predict(self.deployed(model), observed["x"])[0][:, : self.classes]

    def deployed(self, model: Floats) -> Floats:
        """The θ (P,) that a model answers with."""
        return model[: len(self._start)]

    def untaught(self, model: Floats) -> Floats:
        """The θ (P,) of a model that knows nothing of what people said."""
        return model[-len(self._start) :]

    def tell(self, taught: Taught) -> None:
        """See `Learner`. Raises ValueError where the frames are not such as the learner observes."""
        if len(taught.classes) > self.spare:
            has = f"{self.spare} spare output{'s' * (self.spare > 1)}" if self.spare else "no spare output"
            raise UsageError(
                f"expected a class of the bundle to teach --recipe {self.NAME}, whose graphs have {has}, but found "
                f"{taught.classes[-1]!r}; export a bundle with these pictures too or with more --spare, or learn by "
                "--recipe deco+ in another --state"
            )
        if len(taught) and {name: x.shape[1:] for name, x in taught.observed.items()} != {"x": self._shape}:
            raise ValueError("its taught frames do not fit the bundle")
        added = range(self.bundle_classes, self.bundle_classes + len(taught.classes))
        self._begun = [c for c in added if not np.array_equal(frames_of(taught, c), frames_of(self.taught, c))]
        self.taught, self.classes = taught, self.bundle_classes + len(taught.classes)
        begun = np.isin(self.memory.y_syn, self._begun)
        self.memory = self.memory.part(~begun) if begun.any() else self.memory
        self.memory = self.reshaped(self.memory, self.classes)

    def reshaped(self, memory: CondensedBuffer, classes: int) -> CondensedBuffer:
        """With images of just the classes below `classes`. Those of an added class that the memory lacks, or that was
        taught anew since, are those of the learner's own memory, or frames of what people said."""
        if classes == self.bundle_classes and memory.y_syn.max(initial=-1) < classes:
            return memory
        made = [memory.part(memory.y_syn < self.bundle_classes)]
        for c in range(self.bundle_classes, classes):
            its, own = (each.part(each.y_syn == c) for each in (memory, self.memory))
            its = own if c in self._begun or not len(its.y_syn) else its
            if not len(its.y_syn):
                frames, ipc = frames_of(self.taught, c), made[0].ipc
                x = frames[np.arange(ipc) % len(frames)] if len(frames) else np.zeros((ipc, *self._shape), np.float32)
                its = CondensedBuffer.start(x, np.full(ipc, c))
            made.append(its)
        return buffers.joined(made)

    def masked(self, theta: Floats, but: int = 0) -> Floats:
        """θ (P,) with its spare outputs as they were at the start, which weight decay would unmask over the years; the
        first `but` of them as likely as the others' mean."""
        if not self.spare:
            return theta
        made = theta.copy()
        for p in self.parameters[-2:]:
            made[p.slice] = self._start[p.slice]
        bias = self.parameters[-1]
        made[bias.offset : bias.offset + but] = 0
        return made

    def initial(self) -> Floats:
        return np.append(self._start, self._start) if len(self.taught) else self._start

    def retaught(self, check: Check) -> Floats:
        said = [(frames_of(self.taught, c), c) for c in self._begun]
        if said:
            x, y = np.concatenate([x for x, _ in said]), np.repeat([c for _, c in said], [len(x) for x, _ in said])
            own, self.rng = self.rng, np.random.default_rng(0)  # it goes on as if nobody had said anything
            try:
                self.memory = self.taken_in(x, y, check)
            finally:
                self.rng = own
        return self.with_taught(self.untaught(self.model), check)

    def with_taught(self, theta: Floats, check: Check) -> Floats:
        """A model made of θ (P,), the buffer, and what people said."""
        if not len(self.taught):
            return theta
        observed, labels, _ = self.taught.part(~self.taught.guards)
        began = self.masked(theta, len(self.taught.classes))
        rng = np.random.default_rng(0)  # of its own: the learner's goes on as if nobody had said anything
        teaching = self.taught.teaching[~self.taught.guards]
        number, of = np.unique(teaching, return_inverse=True)

        def enough(theta: Floats) -> bool:
            right = self._logits(theta, observed["x"], lambda: None).argmax(axis=1) == labels  # θ is all of that model
            return bool((np.bincount(of, right, len(number)) >= ENOUGH * np.bincount(of)).all())

        told, _ = retrain(
            *(self.engine, began, self.memory, self.outputs, self.recipe, rng, check),
            beside=(observed["x"], labels),
            enough=enough,
        )
        return np.append(told, theta)

    def taken_in(self, x: Floats, y: Ints, check: Check) -> CondensedBuffer:
        """The buffer with frames x (m, …) in it that show classes y (m,) for certain; m ≥ 1."""
        return self.memory

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.memory.x_syn.shape[1:]

    def evaluate_memory(self, model: Floats, memory: CondensedBuffer, check: Check) -> tuple[Floats, Ints]:
        """The buffer's images, and what they stand for."""
        return self._logits(model, memory.x_syn, check), memory.y_syn


def frames_of(taught: Taught, c: int) -> Floats:
    """Frames (m, …) of this class that are learned from."""
    return taught.part((taught.labels == c) & ~taught.guards)[0].get("x", np.zeros(0, np.float32))
