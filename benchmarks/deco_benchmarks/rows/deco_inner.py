"""DECO-Inner: only the inner loop; one random model per segment, trained between the matching steps."""

from __future__ import annotations

from collections.abc import Callable

from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._loops import InnerLoop

NAME = "DECO-Inner"
ABOUT = "DECO with one random model per segment that is trained between matching steps (Xu et al., ablation)."


def make(setup: Setup) -> Row:
    """As many matching steps as DECO, from the same condensed buffer."""
    return Row(setup.learner(Inner))


class Inner(InnerLoop):
    """L steps along one model."""

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        work = self.begin(x, y, w)
        self.inner_loop(work, check)
        return work.done()
