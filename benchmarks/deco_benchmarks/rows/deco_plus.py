"""DECO+: a ridge regression on two layers of the frozen model, fed by soft votes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from deco_runtime.condense import Condensed
from deco_runtime.learner import Learner, RetrainReport, SegmentReport
from deco_runtime.regression import Statistics, add, scores, solve
from deco_runtime.types import Floats, Ints, Segment
from deco_runtime.vote import posterior
from scipy.special import softmax

from deco_benchmarks.rows import LearnerRow, Row, Setup

NAME = "DECO+"
ABOUT = "Streaming ridge regression on pooled layers of the frozen model, with the segment's class shares as prior."


def make(setup: Setup) -> Row:
    """Starts from the bundle's statistics of the labelled images."""
    learner = setup.learner(Regression)
    assert isinstance(learner, Regression)
    learner.statistics, learner.temperature = setup.regression()
    learner.weights = solve(learner.statistics)
    return DecoPlus(learner)


class Regression(Learner):
    """Statistics of all frames so far, and W."""

    KEPT = None
    temperature: float
    statistics: Statistics
    weights: Floats

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        return Condensed(self.buffer, [], [], 0)

    def learn(self, segment: Segment, check: Callable[[], None] = lambda: None) -> SegmentReport:
        """Every frame counts, shared among the classes by its posterior."""
        started = time.monotonic()
        logits = self.engine.predict(self.theta, segment.x)[0]
        p = softmax(logits / self.temperature, axis=1).astype(np.float32)
        shares, t = posterior(p)
        self.statistics = add(self.statistics, self.engine.represent(segment.x), t)
        self.segments += 1
        right = float(np.mean(t.argmax(axis=1) == segment.labels))
        active = np.flatnonzero(shares > 0.1).tolist()
        return SegmentReport(active, 1.0, right, [], None, 0, time.monotonic() - started)

    def retrain(self, check: Callable[[], None] = lambda: None) -> RetrainReport:
        started = time.monotonic()
        self.weights = solve(self.statistics)
        return RetrainReport(None, True, time.monotonic() - started)


class DecoPlus(LearnerRow):
    """Answers with the regression."""

    learner: Regression

    def predict(self, x: Floats) -> Floats:
        return scores(self.learner.weights, self.learner.engine.represent(x))

    def vote(self, x: Floats) -> Floats:
        """The frozen model's logits."""
        return super().predict(x)

    def finish(self) -> None:
        self.learner.retrain()

    def state_bytes(self) -> int:
        """The statistics and W."""
        return self.learner.statistics.nbytes + self.learner.weights.nbytes
