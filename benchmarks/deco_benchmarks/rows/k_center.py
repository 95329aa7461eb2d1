"""K-Center: greedy k-center in feature space (Sener & Savarese 2017)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._real import RealFrames

NAME = "K-Center"
ABOUT = "Keeps real frames that cover the feature space, by the greedy k-center rule (Sener & Savarese 2017)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class."""
    return Row(setup.learner(Covering, setup.real_buffer()))


class Covering(RealFrames):
    """Buffer and active frames compete, in the features of the model as it is now."""

    def condense(self, x: Floats, y: Ints, w: Floats, check: Callable[[], None]) -> Condensed:
        x_all, y_all = np.concatenate([self.memory.x_syn, x]), np.concatenate([self.memory.y_syn, y])
        features = self.engine.predict(self.model, x_all)[1].astype(np.float64)
        kept = greedy_centers(features, len(self.memory.y_syn), first=0)
        return Condensed(CondensedBuffer(x_all[kept], y_all[kept], self.memory.velocity))


def greedy_centers(points: npt.NDArray[np.float64], count: int, first: int) -> Ints:
    """Indices (count,) of points (n, F), sorted: from `first` on, always the point farthest from those chosen.

    The largest distance to a center is at most twice the smallest possible one (Gonzalez 1985).
    """
    chosen = [first]
    distance = np.linalg.norm(points - points[first], axis=1)
    while len(chosen) < count:
        distance[chosen[-1]] = -1.0  # a duplicate of a center may be chosen, the center itself may not
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return np.sort(np.array(chosen, np.int64))
