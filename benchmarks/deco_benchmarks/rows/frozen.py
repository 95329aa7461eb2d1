"""Frozen: the pre-trained model, never updated; what every other row has to beat."""

from __future__ import annotations

from collections.abc import Callable

from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Learner
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import LearnerRow, Row, Setup

NAME = "Frozen"
ABOUT = "The pre-trained model, never updated."
KEEPS_IMAGES = False


def make(setup: Setup) -> Row:
    """The pre-trained model; segments are voted on for the report and change nothing."""
    return Frozen(setup.learner(Idle))


class Idle(Learner):
    """A learner that keeps its buffer."""

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        return Condensed(self.buffer, [], [], 0)


class Frozen(LearnerRow):
    """Never retrains, and has no state of its own."""

    def retrain(self) -> None:
        pass

    def state_bytes(self) -> int:
        return 0
