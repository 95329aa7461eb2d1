"""What the rows that keep real frames share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.types import Floats, Ints


def replaced(buffer: CondensedBuffer, places: Mapping[int, int], x: Floats, y: Ints) -> Condensed:
    """The buffer with frame x[i] of class y[i] at each place of {place: i}."""
    into, index = np.array(list(places.keys()), np.int64), np.array(list(places.values()), np.int64)
    x_syn, y_syn = buffer.x_syn.copy(), buffer.y_syn.copy()
    x_syn[into], y_syn[into] = x[index], y[index]
    return Condensed(CondensedBuffer(x_syn, y_syn, buffer.velocity))
