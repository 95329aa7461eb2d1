"""DECO+: a ridge regression on two layers of the frozen model, fed by soft votes."""

from __future__ import annotations

from deco_runtime.learning.deco_plus import DecoPlus

from deco_benchmarks.rows import LearnerRow, Row, Setup

NAME = "DECO+"
ABOUT = "Streaming ridge regression on pooled layers of the frozen model, with the segment's class shares as prior."
RECIPE = "deco+"
KEEPS_IMAGES = False


def make(setup: Setup) -> Row:
    """The device's learner; the buffer is not used."""
    return Plus(DecoPlus(setup.engine, setup.regression(), setup.classes, setup.recipe, setup.rng))


class Plus(LearnerRow):
    """Solves once more at the end, for the segments since the last update."""

    def finish(self) -> None:
        if self.learner.since_retrain:
            self.learner.retrain()
