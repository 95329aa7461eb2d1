"""What a trial goes by, and its scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.learning.recipe import named
from deco_runtime.preprocess import Preprocessing

pytest.importorskip("torch")

from deco_benchmarks.config import Config
from deco_benchmarks.scores import score
from deco_benchmarks.trial import recipe_of
from deco_export.images import Images

CONFIG = Config("DECO+", "digits", 0.1, 2, "stc=50", 0, "smoke", engine="portable")


def test_a_row_goes_by_its_recipe_and_what_it_has_of_the_presets() -> None:
    assert recipe_of(CONFIG) == replace(named("deco+"), segment=40, retrain_interval=2)
    assert recipe_of(replace(CONFIG, settings=("retrain_interval=1",))).retrain_interval == 1
    paper = recipe_of(replace(CONFIG, row="DECO"))
    assert (paper.name, paper.segment, paper.iterations) == ("paper", 40, 2)
    with pytest.raises(UsageError, match="'alpha=0'"):
        recipe_of(replace(CONFIG, settings=("alpha=0",)))


def test_trials_of_earlier_versions_keep_their_names() -> None:
    """A sweep goes on beside the results in benchmarks/results."""
    old = Config(
        "DECO+", "cifar10", 0.1, 0, "stc=100,interleave=2", 0, "paper", engine="openvino", pretraining="augmented"
    )
    assert old.key == "deco+-ipc0-seed0-0050073f"
    keys = {replace(old, labelled_from=name).key for name in (None, "photos", "rooms")}
    assert len(keys) == 3


def test_every_class_has_a_score_also_where_the_last_ones_have_no_image() -> None:
    images = Images(np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 0, 1, 1]))
    how = Preprocessing(8, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    found = score(lambda x: np.tile(np.float32([0, 1, 0]), (len(x), 1)), images, how, classes=3)
    assert found.accuracy == 0.5
    assert found.per_class.tolist() == [0, 1, 0]
    assert found.confusions("abc") == {"a": [("b", 2)], "b": [], "c": []}
