"""FIFO: the newest frames replace the oldest (Hayes et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._real import RealFrames, replaced

NAME = "FIFO"
ABOUT = "Keeps the newest real frames (Hayes et al. 2019)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class."""
    return Row(setup.learner(Queue, setup.real_buffer()))


class Queue(RealFrames):
    """A ring: `oldest` is the place that goes next."""

    OWN: ClassVar[tuple[str, ...]] = ("oldest",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.oldest = 0

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        size = len(self.memory.y_syn)
        places = {}
        for i in range(len(y)):
            places[self.oldest] = i
            self.oldest = (self.oldest + 1) % size
        return replaced(self.memory, places, x, y)
