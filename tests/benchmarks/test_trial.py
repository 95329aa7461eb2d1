"""Scores of a trial."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.preprocess import Preprocessing

pytest.importorskip("torch")

from deco_benchmarks.scores import score
from deco_export.data import Images


def test_every_class_has_a_score_also_where_the_last_ones_have_no_image() -> None:
    images = Images(np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 0, 1, 1]))
    how = Preprocessing(8, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    found = score(lambda x: np.tile(np.float32([0, 1, 0]), (len(x), 1)), images, how, classes=3)
    assert found.accuracy == 0.5
    assert found.per_class.tolist() == [0, 1, 0]
    assert found.confusions("abc") == {"a": [("b", 2)], "b": [], "c": []}
