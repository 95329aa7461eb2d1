"""Baselines that keep their places by class: the paper's stay near their start, which those of mixed places do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Learner
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import LearnerRow, Setup


def make_per_class(setup: Setup, kind: type[Learner]) -> LearnerRow:
    """`kind` of learner, once for each class."""
    learner = setup.learner(PerClass, setup.real_buffer())
    assert isinstance(learner, PerClass)
    learner.divide(setup, kind)
    return LearnerRow(learner)


class PerClass(Learner):
    """One learner with a buffer of `ipc` places for the frames of each class."""

    KEPT: ClassVar[tuple[str, ...] | None] = None

    own: list[Learner]

    def divide(self, setup: Setup, kind: type[Learner]) -> None:
        """Give each class its part of the buffer."""
        parts = [np.flatnonzero(self.buffer.y_syn == c) for c in range(self.classes)]
        whole = self.buffer
        self.own = [setup.learner(kind, CondensedBuffer.start(whole.x_syn[i], whole.y_syn[i])) for i in parts]

    def update_buffer(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        for c in np.unique(y):
            own, mine = self.own[c], y == c
            own.theta = self.theta
            own.buffer = own.update_buffer(x[mine], y[mine], w[mine], check).buffer
        x_syn = np.concatenate([own.buffer.x_syn for own in self.own])
        y_syn = np.concatenate([own.buffer.y_syn for own in self.own])
        return Condensed(replace(self.buffer, x_syn=x_syn, y_syn=y_syn), [], [], 0)
