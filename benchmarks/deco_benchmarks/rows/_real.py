"""What the rows that keep real frames share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Deco
from deco_runtime.types import Floats, Ints


class RealFrames(Deco):
    """A learner whose buffer is of real frames, so that its labels change with them."""

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """As every learner; those of condensed images are fixed, and must be the bundle's."""
        y, before = arrays["y_syn"], self.memory
        if y.shape != before.y_syn.shape or y.dtype != np.int64 or not ((y >= 0) & (y < self.classes)).all():
            raise ValueError("its labels are not those of a buffer of the bundle's classes")
        self.memory = replace(before, y_syn=y)
        try:
            super().restore(arrays, values)
        except BaseException:
            self.memory = before
            raise


def replaced(buffer: CondensedBuffer, places: Mapping[int, int], x: Floats, y: Ints) -> Condensed:
    """The buffer with frame x[i] of class y[i] at each place of {place: i}."""
    into, index = np.array(list(places.keys()), np.int64), np.array(list(places.values()), np.int64)
    x_syn, y_syn = buffer.x_syn.copy(), buffer.y_syn.copy()
    x_syn[into], y_syn[into] = x[index], y[index]
    return Condensed(CondensedBuffer(x_syn, y_syn, buffer.velocity))
