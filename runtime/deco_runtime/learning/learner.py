"""What every learner does around its own algorithm: count, publish, and let the guard judge."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.guard import Guard, Memory, Verdict
from deco_runtime.learning.recipe import Recipe
from deco_runtime.types import Batches, Check, Floats, Ints, Segment


@dataclass(frozen=True)
class SegmentReport:
    """What one segment did. Shares and accuracies are fractions 0 … 1; None where there is nothing to say.

    active: the active classes. kept: share of frames learned from. pseudo_accuracy: share of these whose label is
    right, where the true labels are known (scoring only). distances: D of each iteration (L,).
    dropped: updates of the memory dropped because they were not finite. unknown: frames that show none of the classes.
    """

    active: list[int]
    kept: float
    pseudo_accuracy: float | None
    distances: list[float]
    contrastive: float | None
    dropped: int
    seconds: float = 0.0
    unknown: int = 0


@dataclass(frozen=True)
class RetrainReport:
    """One update of the deployed model: mean loss of the first and last epoch, None without any; accepted is False when
    the result was not finite or the guard rejected it, and then the model stayed as it was. verdict: the guard's, None
    without one."""

    loss: tuple[float, float] | None
    accepted: bool
    seconds: float
    verdict: Verdict | None = None


def seen_once(
    images: Batches, look: Callable[[Floats], tuple[Any, ...]], read: Callable[..., Floats]
) -> Callable[[Floats, Check], Floats]:
    """A function from a model and a check to read(model, …) of what `look` sees in all images, which is kept."""
    kept: list[Any] = []

    def answers(model: Floats, check: Check) -> Floats:
        if not kept:
            kept.extend(map(np.concatenate, zip(*map(look, images(check)), strict=True)))
        return read(model, *kept)

    return answers


class BaseLearner(ABC):
    """Owns what is learned: the model, the memory it is made from, the generator, the counts of segments and updates.

    model: flat float32, what `fit` gives. `learn` and `retrain` either finish or, when `check` raises, leave everything
    as it was. A reader in another thread may `predict` at any time: a new model is published by swapping one reference.

    scene: what the stream showed at the end of the last segment, (S,) float32, where the learner goes by the order of
    frames and nothing has interrupted the stream since; else None.

    guard: judges every update before it is published, and sends the memory back too when it rejects one; None, as in
    the paper, publishes all that are finite.
    """

    steps: tuple[str, int]
    """What `learn` does between two calls of `check`, and how often in a segment."""
    fit_steps: tuple[str, int]
    """The same of `retrain`."""
    states = 0
    """S, length of `scene`."""

    def __init__(
        self, engine: Engine, model: Floats, memory: Memory, classes: int, recipe: Recipe, rng: np.random.Generator
    ) -> None:
        self.engine, self.recipe, self.classes = engine, recipe, classes
        self.model, self.memory, self.rng = model, memory, rng
        self.segments = self.since_retrain = self.retrains = self.dropped = 0
        self.guard: Guard | None = None
        self.scene: Floats | None = None

    @abstractmethod
    def answer(self, model: Floats, x: Floats) -> Floats:
        """Logits (N, K) that a model gives images x (N, C, H, W)."""

    @abstractmethod
    def take_in(self, segment: Segment, check: Check) -> tuple[Memory, SegmentReport]:
        """Vote on a segment and learn from it: the memory with it, and what was done, but for the seconds."""

    @abstractmethod
    def fit(self, check: Check) -> tuple[Floats, list[float]]:
        """A model made from the memory, and the mean loss of each epoch."""

    def rehearse(self, model: Floats, memory: Memory, check: Check) -> tuple[Floats, Ints] | None:
        """See `guard.Rehearse`."""
        return None

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        """A function from a model and a check to its logits (g, K) for these g images."""
        return lambda model, check: np.concatenate([self.answer(model, x) for x in images(check)])

    def predict(self, x: Floats) -> Floats:
        """Logits (N, K) that the deployed model gives images x (N, C, H, W)."""
        return self.answer(self.model, x)

    def recognise(self, x: Floats) -> tuple[Floats, Floats]:
        """The same, and how likely each image shows none of the classes, (N,) in [0, 1); 0 where nobody can say."""
        return self.predict(x), np.zeros(len(x), np.float32)

    def learn(self, segment: Segment, check: Check = lambda: None) -> SegmentReport:
        """Take in one segment, unless the guard pauses learning."""
        started = time.monotonic()
        if self.guard is not None and self.guard.pass_over():
            self.scene = None
            self.segments += 1
            return SegmentReport([], 0.0, None, [], None, 0, time.monotonic() - started)
        before = self.rng.bit_generator.state
        try:
            self.memory, report = self.take_in(segment, check)
        except BaseException:
            self.rng.bit_generator.state = before
            raise
        self.segments += 1
        self.since_retrain += 1
        self.dropped += report.dropped
        return replace(report, seconds=time.monotonic() - started)

    @property
    def retrain_due(self) -> bool:
        """β segments were learned since the last update (t mod β = 0)."""
        return self.since_retrain >= self.recipe.retrain_interval

    def retrain(self, check: Check = lambda: None) -> RetrainReport:
        """Publish a model made from the memory; one that is not finite, or that the guard rejects, is dropped and
        counted."""
        started = time.monotonic()
        before = self.rng.bit_generator.state
        try:
            model, losses = self.fit(check)
            verdict = self.guard.judge(model, self.model, self.memory, check) if self.guard is not None else None
        except BaseException:
            self.rng.bit_generator.state = before
            raise
        accepted = verdict.accepted if verdict is not None else bool(np.isfinite(model).all())
        if self.guard is not None and verdict is not None:
            self.memory = self.guard.settle(verdict, self.memory, self.recipe.retrain_interval)
        if accepted:
            self.model = model
        else:
            self.dropped += 1
        self.retrains += 1
        self.since_retrain = 0
        loss = (losses[0], losses[-1]) if losses else None
        return RetrainReport(loss, accepted, time.monotonic() - started, verdict)
