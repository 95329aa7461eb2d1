"""Baselines that keep their places by class: the paper's stay near their start, which those of mixed places do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Deco
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup


def make_per_class(setup: Setup, kind: type[Deco]) -> Row:
    """`kind` of learner, once for each class."""
    learner = setup.learner(PerClass, setup.real_buffer())
    assert isinstance(learner, PerClass)
    learner.divide(setup, kind)
    return Row(learner)


class PerClass(Deco):
    """One learner with a buffer of `ipc` places for the frames of each class."""

    OWN: ClassVar[tuple[str, ...] | None] = None

    own: list[Deco]

    def divide(self, setup: Setup, kind: type[Deco]) -> None:
        """Give each class its part of the buffer."""
        parts = [np.flatnonzero(self.memory.y_syn == c) for c in range(self.classes)]
        whole = self.memory
        self.own = [setup.learner(kind, CondensedBuffer.start(whole.x_syn[i], whole.y_syn[i])) for i in parts]

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        for c in np.unique(y):
            own, mine = self.own[c], y == c
            own.model = self.model
            own.memory = own.condense(x[mine], y[mine], w[mine], check).buffer
        x_syn = np.concatenate([own.memory.x_syn for own in self.own])
        y_syn = np.concatenate([own.memory.y_syn for own in self.own])
        return Condensed(replace(self.memory, x_syn=x_syn, y_syn=y_syn))
