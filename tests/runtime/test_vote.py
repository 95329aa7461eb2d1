"""Majority voting: confidences, active classes at and around the threshold, labels, weights, targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.vote import active_classes, pseudo_label, targets, vote
from deco_runtime.types import Floats, Ints, Segment
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.special import softmax

RECIPE = Hyperparameters()
RELABEL = replace(RECIPE, vote="relabel")


def segment(pseudo: list[int] | Ints) -> Segment:
    """Frames with these pseudo-labels; frame i has confidence (i + 1) / n."""
    n = len(pseudo)
    confidence = (np.arange(1, n + 1) / n).astype(np.float32)
    x = np.zeros((n, 3, 2, 2), np.float32)
    return Segment({"x": x}, np.asarray(pseudo, np.int64), confidence, np.full(n, -1, np.int64))


def votes(*counts: int) -> Ints:
    """counts[c] votes for each class c."""
    return np.repeat(np.arange(len(counts)), counts)


logits_of_any_size = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 8), st.integers(2, 20)),
    elements=st.floats(-1e4, 1e4, width=32),
)


@given(logits_of_any_size)
def test_pseudo_labels_are_those_of_softmax(logits: Floats) -> None:
    labels, confidence = pseudo_label(logits)
    expected = softmax(logits.astype(np.float64), axis=1)
    rows = np.arange(len(logits))
    assert labels.dtype == np.int64
    assert confidence.dtype == np.float32
    assert (logits[rows, labels] == logits.max(axis=1)).all()
    np.testing.assert_allclose(confidence, expected.max(axis=1), rtol=1e-6)
    assert (confidence > 0).all()
    assert (confidence <= 1).all()


def test_a_thousand_equal_logits_share_the_confidence() -> None:
    labels, confidence = pseudo_label(np.full((2, 1000), 88.0, np.float32))
    assert labels.tolist() == [0, 0]
    np.testing.assert_allclose(confidence, 1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    ("counts", "threshold", "expected"),
    [
        ((4, 3, 3), 0.4, []),  # exactly M = 4 is not more than M
        ((5, 3, 2), 0.4, [0]),
        ((5, 5), 0.4, [0, 1]),
        ((2, 4, 4), 0.39, [1, 2]),
        ((0, 10), 0.4, [1]),
        ((1, 0, 2), 0.0, [0, 2]),  # M = 0: every class that was seen
        ((29, 71), 0.29, [1]),  # 0.29 · 100 in binary is a little less than 29
        ((30, 70), 0.29, [0, 1]),
        ((58, 142), 0.29, [1]),
        ((7, 3), 0.7, []),
    ],
)
def test_active_classes(counts: tuple[int, ...], threshold: float, expected: list[int]) -> None:
    assert active_classes(votes(*counts), len(counts), threshold).tolist() == expected


@given(st.integers(1, 99), st.integers(1, 5))
def test_exactly_m_votes_are_never_enough(percent: int, hundreds: int) -> None:
    exactly = percent * hundreds
    rest = 100 * hundreds - exactly
    threshold = float(f"0.{percent:02}")
    assert 0 not in active_classes(votes(exactly, rest), 2, threshold)
    assert 0 in active_classes(votes(exactly + 1, rest - 1), 2, threshold)


@given(st.integers(2, 1000), st.data())
def test_any_number_of_classes(classes: int, data: st.DataObject) -> None:
    winner = data.draw(st.integers(0, classes - 1))
    other = (winner + 1) % classes
    pseudo = np.asarray([winner] * 6 + [other] * 4)
    assert active_classes(pseudo, classes, 0.4).tolist() == [winner]


def test_filter_keeps_the_frames_whose_own_label_is_active() -> None:
    active = vote(segment([2, 0, 2, 1, 2, 2]), 3, RECIPE)
    assert active.classes.tolist() == [2]
    assert active.index.tolist() == [0, 2, 4, 5]
    assert active.y.tolist() == [2, 2, 2, 2]
    np.testing.assert_array_equal(active.w, np.asarray([1, 3, 5, 6], np.float32) / np.float32(6))


def test_relabel_gives_all_frames_the_only_active_class() -> None:
    frames = segment([2, 0, 2, 1, 2, 2])
    active = vote(frames, 3, RELABEL)
    assert active.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert active.y.tolist() == [2] * 6
    np.testing.assert_array_equal(active.w, frames.confidence)


def test_relabel_with_two_active_classes_filters() -> None:
    active = vote(segment([0] * 5 + [1] * 5 + [2]), 3, RELABEL)
    assert active.classes.tolist() == [0, 1]
    assert active.index.tolist() == list(range(10))
    assert active.y.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize("recipe", [RECIPE, RELABEL])
def test_a_segment_without_a_majority_teaches_nothing(recipe: Hyperparameters) -> None:
    active = vote(segment([0, 1, 2, 3]), 4, recipe)
    assert len(active) == 0
    assert active.classes.tolist() == []


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.floats(0, 0.99),
    st.sampled_from(["filter", "relabel"]),
)
def test_what_is_kept_is_active(pseudo: list[int], threshold: float, how: str) -> None:
    frames = segment(pseudo)
    active = vote(frames, 10, replace(RECIPE, threshold=threshold, vote=how))
    assert set(active.y) <= set(active.classes)
    assert active.classes.tolist() == sorted(set(active.classes))
    assert active.index.tolist() == sorted(set(active.index))
    assert len(active) == len(active.y) == len(active.w)
    np.testing.assert_array_equal(active.w, frames.confidence[active.index])
    # Each active class has more than its share, so the kept frames have more than all of these shares together.
    share = len(active) / len(frames)
    assert share <= 1
    assert share >= len(active.classes) * threshold - 1e-6
    if how == "filter":
        np.testing.assert_array_equal(active.y, frames.pseudo[active.index])
        left = np.delete(frames.pseudo, active.index)
        assert not set(left) & set(active.classes)


def test_targets_are_weighted_one_hot_rows() -> None:
    t = targets(np.asarray([1, 0, 2]), np.asarray([0.5, 1.0, 0.25], np.float32), 3)
    assert t.dtype == np.float32
    assert t.tolist() == [[0, 0.5, 0], [1, 0, 0], [0, 0, 0.25]]


def test_targets_of_no_frames() -> None:
    assert targets(np.empty(0, np.int64), np.empty(0, np.float32), 4).shape == (0, 4)
