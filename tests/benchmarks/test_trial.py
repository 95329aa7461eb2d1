"""What a trial goes by, its scores, and that it is the product's learner before the product's stream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.registry import named
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Segment

pytest.importorskip("torch")

from bases import quick_base
from deco_benchmarks import trial
from deco_benchmarks.config import Config
from deco_benchmarks.pictures import to_pixels
from deco_benchmarks.rows import Row, rows
from deco_benchmarks.scores import of_stream, score
from deco_benchmarks.streams import parse
from deco_benchmarks.sweep import read
from deco_benchmarks.trial import as_at_the_end, order_of, recipe_of, run_trial, scored, seen, split
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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_base(CONFIG, tmp_path_factory.mktemp("bases"))


class Told(Stream):
    """The product's loop, which notes what it is told."""

    def __init__(self, guarded: Unguarded) -> None:
        super().__init__(guarded)
        self.reports: list[SegmentReport] = []
        self.updates: list[RetrainReport] = []

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        self.reports.append(report)

    def retrained(self, report: RetrainReport) -> None:
        self.updates.append(report)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("kind", registry.learners().values(), ids=lambda kind: kind.NAME)
def test_a_trial_gives_what_the_learner_gives_before_a_stream(
    kind: type, interval: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: model, memory, counts and generator, and every figure that follows from them."""
    settings = (f"retrain_interval={interval}",)
    config = replace(CONFIG, row=kind.TITLE, stream="stc=50,drift=2", settings=settings)
    known, made, dataset = rows()[kind.TITLE], list[Row](), read("digits", 16)
    keeping = replace(known, make=lambda setup: made.append(known.make(setup)) or made[-1])
    monkeypatch.setattr(trial, "rows", lambda: {kind.TITLE: keeping})
    found, pictures = run_trial(config, dataset, base, lambda *_: None)

    bundle, recipe = open_bundle(base), recipe_of(config)
    learner = kind.open(bundle, open_engine(bundle, "portable"), recipe, np.random.default_rng(config.seed))
    _, images, held_out = split(dataset, config)
    order, spec, weather = order_of(images, config), parse(config.stream), np.random.default_rng(config.seed)
    stream, n, how = Told(Unguarded(learner)), recipe.segment, bundle.preprocessing
    for begin in range(0, n * (len(order) // n), n):
        x = normalise(seen(images, order, begin, n, spec, weather), how)
        stream.see(x, images.labels[order[begin : begin + n]])
    assert len(stream.reports) == found["segments"] == 5
    if kind.LEARNS:
        assert len(stream.updates) == 5 // interval
        if not kind.IPC and interval == 3:
            learner.retrain()  # two segments are left, and an update costs nothing
    row = made[0]
    assert row.learner is not learner
    if kind.LEARNS:  # a trial calls for updates of whichever row, and the stream none of one that has none to give
        assert row.learner.values() == learner.values()
    mine, by_hand = row.learner.arrays(), learner.arrays()
    assert mine.keys() == by_hand.keys()
    assert all(np.array_equal(mine[name], by_hand[name]) for name in mine)
    test = as_at_the_end(scored(held_out, config), spec, config.seed)
    assert found["final_accuracy"] == score(learner.predict, test, how, len(bundle.classes)).accuracy
    assert {name: found[name] for name in of_stream(stream.reports)} == of_stream(stream.reports)
    assert (kind.IPC > 0) == bool(pictures)
    if pictures:
        np.testing.assert_array_equal(pictures["after"], to_pixels(learner.memory.x_syn, how))
        assert not np.array_equal(pictures["after"], pictures["before"])
