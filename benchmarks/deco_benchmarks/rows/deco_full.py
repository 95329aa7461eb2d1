"""DECO-Full: both loops with the exact second order, as in dataset condensation (Zhao et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._loops import InnerLoop

NAME = "DECO-Full"
ABOUT = (
    "Bi-level condensation with exact gradients: random models, each trained between matching steps (Zhao et al. 2020)."
)


def make(setup: Setup) -> Row:
    """L times the matching steps of DECO, from the same condensed buffer."""
    return Row(replace(setup, recipe=replace(setup.recipe, gradient="exact")).learner(Full))


class Full(InnerLoop):
    """DECO's L random models, and DECO-Inner's L steps along each: the paper states neither loop's length."""

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        work = self.begin(x, y, w)
        for _ in range(self.recipe.iterations):
            self.inner_loop(work, check)
        return work.done()
