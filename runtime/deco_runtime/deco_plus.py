"""`deco+`: a segment's class shares decide what its frames are, and a regression takes each of them in once.

represent   φ and the logits of the pre-trained model, which stays as it is
posterior   the votes: which classes the segment holds, and so what each frame shows
add         their statistics, which forget nothing
solve       W; the deployed model answers with it and with the pre-trained one
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deco_runtime.base import BaseLearner, SegmentReport, seen_once
from deco_runtime.engine import Engine
from deco_runtime.recipe import Recipe
from deco_runtime.regression import Start, Statistics, add, mixed, share, solve
from deco_runtime.types import Batches, Check, Floats, Segment
from deco_runtime.vote import ALIKE, posterior, softmax

SHARE = 0.1
"""Part of a segment from which a class is reported as active."""


class DecoPlus(BaseLearner):
    """The model is W (D + 1, K) with its shares s (K,) below, flat; the memory are the statistics of every frame."""

    def __init__(self, engine: Engine, start: Start, classes: int, recipe: Recipe, rng: np.random.Generator) -> None:
        super().__init__(engine, _model(start.statistics, start), start.statistics, classes, recipe, rng)
        self.steps, self.fit_steps = ("adding up the segment", 1), ("solving the regression", 1)
        self._start = start

    @property
    def statistics(self) -> Statistics:
        """A and B."""
        assert isinstance(self.memory, Statistics)
        return self.memory

    def answer(self, model: Floats, x: Floats) -> Floats:
        return self._read(model, *self.engine.represent(x))

    def _read(self, model: Floats, phi: Floats, votes: Floats) -> Floats:
        """Logits (n, K) for φ (n, D) and the pre-trained model's (n, K): a mean of both, each as sure as it is right.

        The regression starts from few images and is then the weaker of the two; in the end it is the stronger, and
        counts more, see `share`.
        """
        rows = model.reshape(-1, self.classes)
        return mixed(rows[:-1], rows[-1], phi, votes, self._start)

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        """As in `BaseLearner`, but the images are represented once: only W changes."""
        return seen_once(images, self.engine.represent, self._read)

    def take_in(self, segment: Segment, check: Check) -> tuple[Statistics, SegmentReport]:
        """Every frame counts, shared among the classes by its posterior."""
        check()
        phi, votes = self.engine.represent(segment.x)
        shares, t = posterior(softmax(votes / np.float32(ALIKE * self._start.vote_temperature)))
        found = add(self.statistics, phi, t)
        fine = bool(np.isfinite(found.a).all() and np.isfinite(found.b).all())
        known = segment.labels
        right = float(np.mean(known == t.argmax(axis=1))) if len(known) and (known >= 0).all() else None
        return found if fine else self.statistics, SegmentReport(
            np.flatnonzero(shares > SHARE).tolist(),
            1.0 if fine else 0.0,
            right,
            [],
            None,
            0 if fine else 1,
        )

    def fit(self, check: Check) -> tuple[Floats, list[float]]:
        """W, the exact solution, and its shares."""
        return _model(self.statistics, self._start), []


def _model(statistics: Statistics, start: Start) -> Floats:
    return np.vstack([solve(statistics), share(statistics, start.statistics)]).ravel()
