"""`deco+`: a model of the stream says what its frames are, and a regression takes each of them in once.

represent   φ and the logits of the pre-trained model, which stays as it is
decode      the votes: what each frame shows, by what the bundle starts with and by the order of the frames
add         their statistics, which forget nothing
solve       W; the deployed model answers with it and with the pre-trained one
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.chain import alike, decode, in_common
from deco_runtime.learning.learner import BaseLearner, SegmentReport, seen_once
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import Start, Statistics, add, mixed, share, solve, spread
from deco_runtime.learning.unknown import Known, odds
from deco_runtime.learning.vote import softmax
from deco_runtime.types import Batches, Bools, Check, Floats, Segment

SHARE = 0.1
"""Part of a segment from which a class is reported as active."""


class DecoPlus(BaseLearner):
    """The model is W (D + 1, K) with its shares s (K,) below, flat; the memory are the statistics of every frame."""

    def __init__(self, engine: Engine, start: Start, classes: int, recipe: Recipe, rng: np.random.Generator) -> None:
        self._voter = _model(start.statistics, start)
        super().__init__(engine, self._voter, start.statistics, classes, recipe, rng)
        self.steps, self.fit_steps = ("adding up the segment", 1), ("solving the regression", 1)
        self._start, self.states = start, classes
        self._apart = spread(start.statistics)
        self._known: Known | None = None
        if start.unknown is not None:
            w = self._voter.reshape(-1, classes)[:-1]
            self._known, self.states = Known.of(start.statistics, w), classes + 1

    @property
    def statistics(self) -> Statistics:
        """A and B."""
        assert isinstance(self.memory, Statistics)
        return self.memory

    def answer(self, model: Floats, x: Floats) -> Floats:
        return self._read(model, *self.engine.represent(x))

    def _read(self, model: Floats, phi: Floats, logits: Floats) -> Floats:
        """Logits (n, K) for φ (n, D) and the pre-trained model's (n, K): a mean of both, each as sure as it is right.

        The share of the regression begins with its worth on held-out images, and grows with what it has seen, see
        `share`.
        """
        rows = model.reshape(-1, self.classes)
        return mixed(rows[:-1], rows[-1], phi, logits, self._start)

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        """As in `BaseLearner`, but the images are represented once: only W changes."""
        return seen_once(images, self.engine.represent, self._read)

    def recognise(self, x: Floats) -> tuple[Floats, Floats]:
        phi, logits = self.engine.represent(x)
        strange = self._odds(phi, logits)
        return self._read(self.model, phi, logits), strange / (1 + strange)

    def _odds(self, phi: Floats, logits: Floats, common: float = 1.0) -> Floats:
        """As `unknown.odds` (n,); 0 where the bundle does not say."""
        if self._known is None or self._start.unknown is None:
            return np.zeros(len(phi), np.float32)
        return odds(self._known.signs(phi, logits), self._start.unknown, common)

    def likelihood(self, phi: Floats, logits: Floats, cut: Bools | None = None) -> Floats:
        """What the votes are made of, (n, K or K + 1) float32: how likely each class makes a frame, and last, where the
        bundle knows, something unknown, up to a factor; of frames in a row, softened by how alike they are. cut: as in
        `Segment`.

        By the answer that the bundle starts with, never by what follows the stream: a model that votes for itself
        drifts to the classes it saw last.
        """
        said, r = self._read(self._voter, phi, logits), in_common(phi, self._apart, cut)
        softer = alike(r)
        p = softmax(said / np.float32(softer * self._start.mixed_temperature))
        if self._known is None:
            return p
        strange = self._odds(phi, logits, r) ** np.float32(1 / softer)
        return np.concatenate([p, strange[:, None] / self.classes], axis=1)  # p(frame | c) is K·p(c | frame)·p(frame)

    def take_in(self, segment: Segment, check: Check) -> tuple[Statistics, SegmentReport]:
        """Every frame counts as far as it is known, shared among the classes by its posterior."""
        check()
        phi, logits = self.engine.represent(segment.x)
        decoded = decode(self.likelihood(phi, logits, segment.cut), self.scene, segment.cut)
        t = decoded.posterior[:, : self.classes]
        found = add(self.statistics, phi, t)
        fine = bool(np.isfinite(found.a).all() and np.isfinite(found.b).all())
        self.scene = decoded.last if fine else None
        known = segment.labels >= 0
        right = float(np.mean(segment.labels[known] == t.argmax(axis=1)[known])) if known.any() else None
        return found if fine else self.statistics, SegmentReport(
            np.flatnonzero(t.mean(axis=0) > SHARE).tolist(),
            1.0 - float(decoded.posterior[:, self.classes :].sum() / max(len(t), 1)) if fine else 0.0,
            right,
            [],
            None,
            0 if fine else 1,
            unknown=int(np.count_nonzero(decoded.posterior.argmax(axis=1) == self.classes)),
        )

    def fit(self, check: Check) -> tuple[Floats, list[float]]:
        """W, the exact solution, and its shares."""
        return _model(self.statistics, self._start), []


def _model(statistics: Statistics, start: Start) -> Floats:
    return np.vstack([solve(statistics), share(statistics, start)]).ravel()
