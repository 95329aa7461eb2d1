"""Random: reservoir sampling over the stream (Vitter 1985)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._real import RealFrames, replaced

NAME = "Random"
ABOUT = "Keeps a uniform random sample of all real frames seen (reservoir sampling, Vitter 1985)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class, which count as seen."""
    return Row(setup.learner(Reservoir, setup.real_buffer()))


class Reservoir(RealFrames):
    """Algorithm R: the n-th frame replaces a random place of the buffer of size b with probability b/n."""

    OWN: ClassVar[tuple[str, ...]] = ("seen",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen = len(self.memory.y_syn)

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        places: dict[int, int] = {}
        for i in range(len(y)):
            self.seen += 1
            place = int(self.rng.integers(self.seen))
            if place < len(self.memory.y_syn):
                places[place] = i
        return replaced(self.memory, places, x, y)
