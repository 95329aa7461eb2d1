"""Algorithm 1 of the paper, read top to bottom: segment → vote → condense → retrain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deco_runtime.buffer import CondensedBuffer
from deco_runtime.condense import Condensation, Condensed, condense
from deco_runtime.engine import Engine
from deco_runtime.guard import Guard, Verdict
from deco_runtime.initialise import Parameter, draw_model, layers
from deco_runtime.recipe import Recipe
from deco_runtime.retrain import retrain
from deco_runtime.types import Floats, Ints, Segment
from deco_runtime.vote import vote


@dataclass(frozen=True)
class SegmentReport:
    """What one segment did. Shares and accuracies are fractions 0 … 1; None where there is nothing to say.

    active: the active classes. kept: share of frames learned from. pseudo_accuracy: share of these whose label is
    right, where the true labels are known (scoring only). distances: D of each iteration (L,).
    dropped: condensing updates dropped because they were not finite.
    """

    active: list[int]
    kept: float
    pseudo_accuracy: float | None
    distances: list[float]
    contrastive: float | None
    dropped: int
    seconds: float


@dataclass(frozen=True)
class RetrainReport:
    """One update of the deployed model: mean loss of the first and last epoch; accepted is False when the result was
    not finite or the guard rejected it, and then the model stayed as it was. verdict: the guard's, None without one."""

    loss: tuple[float, float] | None
    accepted: bool
    seconds: float
    verdict: Verdict | None = None


class Learner:
    """Owns what is learned: θ, the buffer, the generator and the counts of segments and updates.

    `learn` and `retrain` either finish or, when `check` raises, leave everything as it was. A reader in another
    thread may take `theta` at any time: a new model is published by swapping that one reference.

    guard: judges every update before it is published, and sends the buffer back too when it rejects one; None, as in
    the paper, publishes all that are finite.
    """

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
        self.engine, self.recipe, self.classes = engine, recipe, classes
        self.theta, self.buffer, self.rng = theta, buffer, rng
        self.segments = self.since_retrain = self.retrains = self.dropped = 0
        self.guard: Guard | None = None
        self._parameters, self._layers = parameters, layers(parameters)

    def learn(self, segment: Segment, check: Callable[[], None] = lambda: None) -> SegmentReport:
        """One turn of Algorithm 1 up to the update of S: vote on `I_t`, condense its active part into the buffer."""
        started = time.monotonic()
        if self.guard is not None and self.guard.pass_over():
            self.segments += 1
            return SegmentReport([], 0.0, None, [], None, 0, time.monotonic() - started)
        active = vote(segment, self.classes, self.recipe)  # eq:filter, eq:active
        known = segment.labels[active.index]
        right = float(np.mean(known == active.y)) if len(active) and (known >= 0).all() else None
        distances: list[float] = []
        contrastive, dropped = None, 0
        if len(active):
            before = self.rng.bit_generator.state
            try:
                done = self.update_buffer(segment.x[active.index], active.y, active.w, check)
            except BaseException:
                self.rng.bit_generator.state = before
                raise
            self.buffer, distances, dropped = done.buffer, done.distances, done.dropped
            contrastive = done.contrastive[-1] if done.contrastive else None
        self.segments += 1
        self.since_retrain += 1
        self.dropped += dropped
        return SegmentReport(
            active.classes.tolist(),
            len(active) / max(len(segment), 1),
            right,
            distances,
            contrastive,
            dropped,
            time.monotonic() - started,
        )

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
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

    @property
    def retrain_due(self) -> bool:
        """β segments were learned since the last update (t mod β = 0)."""
        return self.since_retrain >= self.recipe.retrain_interval

    def retrain(self, check: Callable[[], None] = lambda: None) -> RetrainReport:
        """θ ← opt_θ(θ, S); a result that is not finite, or that the guard rejects, is dropped and counted."""
        started = time.monotonic()
        before = self.rng.bit_generator.state
        try:
            theta, losses = retrain(self.engine, self.theta, self.buffer, self.classes, self.recipe, self.rng, check)
            verdict = self.guard.judge(theta, self.theta, self.buffer, check) if self.guard is not None else None
        except BaseException:
            self.rng.bit_generator.state = before
            raise
        accepted = verdict.accepted if verdict is not None else bool(np.isfinite(theta).all())
        if self.guard is not None and verdict is not None:
            self.buffer = self.guard.settle(verdict, self.buffer, self.recipe.retrain_interval)
        if accepted:
            self.theta = theta
        else:
            self.dropped += 1
        self.retrains += 1
        self.since_retrain = 0
        loss = (losses[0], losses[-1]) if losses else None
        return RetrainReport(loss, accepted, time.monotonic() - started, verdict)
