"""Frames become segments, and segments are learned: the loop that every learner shares, without a device around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.running.segmenter import Segmenter
from deco_runtime.running.stream import Stream
from deco_runtime.types import Check, Floats, Ints, Observed, Segment
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Sum:
    total: Floats


class Adding(Learner):
    """Images are one number each, and it answers with them and, where they are even, with its model added. It learns
    their sum."""

    RECIPE = Recipe("adding")

    def __init__(self, segment: int, interval: int = 1) -> None:
        recipe = Recipe("adding", segment, interval)
        engine: Any = None
        super().__init__(engine, np.zeros(1, np.float32), Sum(np.zeros(1, np.float32)), 4, recipe, rng())
        self.observed = 0
        self.given: list[Segment] = []

    @classmethod
    def open(cls, bundle: Any, engine: Any, recipe: Any, rng: Any) -> Adding:
        return cls(recipe.segment)

    def observe(self, x: Floats) -> Observed:
        self.observed += len(x)
        return {"x": x, "twice": np.stack([x, 2 * x], axis=1)}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        which = (observed["x"] + model[0]).astype(np.int64) % self.classes
        return np.eye(self.classes, dtype=np.float32)[which]

    def update(self, segment: Segment, check: Check) -> tuple[Sum, SegmentReport]:
        self.given.append(segment)
        return Sum(self.memory.total + segment.observed["x"].sum()), SegmentReport(kept=1.0)

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return self.model + np.float32(1), []


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class Told(Stream):
    """Notes what it is told, in order."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(Unguarded(learner))
        self.told: list[tuple[Any, ...]] = []

    def predicted(self, observed: Observed, pseudo: Ints, confidence: Floats, labels: Ints) -> None:
        assert set(observed) == {"x", "twice"}
        assert len(observed["x"]) == len(pseudo) == len(confidence) == len(labels)
        self.told += [("predicted", *each) for each in zip(observed["x"].tolist(), pseudo.tolist(), strict=True)]

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        self.told.append(("learned", len(segment), report.kept))

    def retrained(self, report: RetrainReport) -> None:
        self.told.append(("retrained", report.accepted, float(self.learner.model[0])))


def images(n: int) -> tuple[Floats, Ints]:
    return np.arange(n, dtype=np.float32), np.arange(n) % 4


def parts(n: int, cuts: list[int]) -> list[tuple[Floats, Ints]]:
    x, y = images(n)
    where = sorted({min(cut, n) for cut in cuts})
    return list(zip(np.split(x, where), np.split(y, where), strict=True))


def test_frames_are_predicted_gathered_learned_and_every_beta_segments_the_model_is_another() -> None:
    stream = Told(Adding(segment=2, interval=2))
    stream.follow(parts(9, list(range(9))))
    assert stream.told == [
        ("predicted", 0, 0),
        ("predicted", 1, 1),
        ("learned", 2, 1.0),
        ("predicted", 2, 2),
        ("predicted", 3, 3),
        ("learned", 2, 1.0),
        ("retrained", True, 1.0),
        ("predicted", 4, 1),  # by the new model
        ("predicted", 5, 2),
        ("learned", 2, 1.0),
        ("predicted", 6, 3),
        ("predicted", 7, 0),
        ("learned", 2, 1.0),
        ("retrained", True, 2.0),
        ("predicted", 8, 2),
    ]
    assert stream.segmenter.count == 1
    assert stream.learner.memory.total == sum(range(8))


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 3), st.lists(st.integers(0, 40), max_size=8))
def test_parts_of_any_size_are_as_frames_one_by_one(n: int, size: int, interval: int, cuts: list[int]) -> None:
    """No frame is predicted by a model that was made before the segment in front of it was learned."""
    alone, many = Told(Adding(size, interval)), Told(Adding(size, interval))
    alone.follow(parts(n, list(range(n))))
    many.follow(parts(n, cuts))
    assert many.told == alone.told
    assert many.segmenter.count == alone.segmenter.count == n % size
    assert many.segmenter.room == size - n % size
    for it in (alone.learner, many.learner):
        assert isinstance(it, Adding)
        assert it.observed == n  # each goes through the network once
        seen = [segment.observed["x"] for segment in it.given]
        assert all(len(each) == size for each in seen)
        assert np.concatenate([*seen, np.zeros(0)]).tolist() == list(range(n - n % size))
        for segment in it.given:
            np.testing.assert_array_equal(segment.observed["twice"][:, 1], 2 * segment.observed["x"])
            np.testing.assert_array_equal(segment.labels, segment.observed["x"].astype(int) % 4)
            assert segment.pseudo.dtype == segment.labels.dtype == np.int64
            assert segment.confidence.dtype == np.float32


def test_a_frame_with_a_fault_is_predicted_and_not_learned_and_cuts_the_stream() -> None:
    it = Adding(segment=3)
    stream = Told(it)
    for number in range(7):
        x, label = np.array([number], np.float32), np.array([-1])
        stream.see(x, label, fault=number in (1, 2, 5))
    assert [each[1] for each in stream.told if each[0] == "predicted"] == list(range(7))
    (segment,) = it.given
    assert segment.observed["x"].tolist() == [0, 3, 4]
    assert segment.cut is not None
    assert segment.cut.tolist() == [False, True, False]
    assert stream.segmenter.take().cut.tolist() == [True]  # type: ignore[union-attr]


def add(segmenter: Segmenter, *numbers: int) -> None:
    x = np.asarray(numbers, np.float32)
    segmenter.add({"x": x}, np.asarray(numbers), x / 10, -np.ones(len(numbers), np.int64))


def test_a_segment_that_is_taken_is_nobody_elses() -> None:
    """The next frames must not be written where a learner's thread reads."""
    segmenter = Segmenter(3)
    add(segmenter, 1, 2)
    assert (segmenter.count, segmenter.room) == (2, 1)
    add(segmenter, 3)
    assert (segmenter.count, segmenter.room) == (3, 0)
    first = segmenter.take()
    assert (segmenter.count, segmenter.room) == (0, 3)
    add(segmenter, 4)
    second = segmenter.take()
    add(segmenter, 5, 6, 7)
    assert first.observed["x"].tolist() == first.pseudo.tolist() == [1, 2, 3]
    np.testing.assert_allclose(first.confidence, [0.1, 0.2, 0.3])
    assert len(second) == 1
    assert second.observed["x"].tolist() == second.pseudo.tolist() == [4]
    assert segmenter.take().pseudo.tolist() == [5, 6, 7]
    assert len(segmenter.take()) == 0


@pytest.mark.parametrize("again", [1, 3])
def test_a_cut_is_in_front_of_the_next_frame_whichever_segment_that_is_of(again: int) -> None:
    segmenter = Segmenter(4)
    segmenter.cut()
    add(segmenter, 0, 1)
    for _ in range(again):
        segmenter.cut()
    add(segmenter, 2, 3)
    segmenter.cut()
    first = segmenter.take()
    add(segmenter, 4, 5)
    add(segmenter, 6)
    second = segmenter.take()
    assert first.cut is not None
    assert second.cut is not None
    assert first.cut.tolist() == [True, False, True, False]
    assert second.cut.tolist() == [True, False, False]
