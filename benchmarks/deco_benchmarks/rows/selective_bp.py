"""Selective-BP: keeps the frames the model is least sure of (Jiang et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints
from scipy.special import log_softmax

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._real import RealFrames

NAME = "Selective-BP"
ABOUT = "Keeps the real frames with the lowest confidence of the deployed model (Jiang et al. 2019)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class."""
    return Row(setup.learner(LeastConfident, setup.real_buffer()))


class LeastConfident(RealFrames):
    """Buffer and active frames compete; confidence is that in the stored label, under the model as it is now."""

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        x_all, y_all = np.concatenate([self.memory.x_syn, x]), np.concatenate([self.memory.y_syn, y])
        logits, _ = self.engine.predict(self.model, x_all)
        log_p = log_softmax(logits, axis=1)[np.arange(len(y_all)), y_all]
        kept = np.sort(np.argsort(log_p, kind="stable")[: len(self.memory.y_syn)])
        return Condensed(CondensedBuffer(x_all[kept], y_all[kept], self.memory.velocity))
