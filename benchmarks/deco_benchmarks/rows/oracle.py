"""Oracle: DECO with the true labels in place of its votes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.types import Segment

from deco_benchmarks.rows import Row, Setup

NAME = "Oracle"
ABOUT = "DECO with true labels instead of votes: what better labels could bring."


def make(setup: Setup) -> Row:
    """The device's learner, told the truth: every frame of a segment is used, at weight 1."""
    return Oracle(setup.learner(Deco))


class Oracle(Row):
    """Passes each segment on with its true labels as pseudo-labels; a threshold of 0 keeps every class there is."""

    def __init__(self, learner: Deco) -> None:
        super().__init__(learner)
        learner.recipe = replace(learner.recipe, threshold=0.0, vote="filter")

    def learn(self, segment: Segment) -> SegmentReport:
        return super().learn(replace(segment, pseudo=segment.labels, confidence=np.ones(len(segment), np.float32)))
