"""The streaming regression and the soft vote of deco+, against what one gets from all data at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.regression import Start, Statistics, add, mixed, scores, share, solve
from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(2, 4), st.integers(1, 5))
@settings(max_examples=30)
def test_frames_in_any_pieces_and_order_give_the_solution_for_equal_shares(
    seed: int, size: int, classes: int, cuts: int
) -> None:
    """Against numpy's least squares in float64, on all frames at once.

    Its rows: each frame less the mean of its class, for 0; the mean of each class, weighing N/K frames, for the class;
    and √ridge·I for 0.
    """
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((40, size)).astype(np.float32)
    weight = rng.uniform(0.2, 1, 40).astype(np.float32)
    t = weight[:, None] * np.eye(classes, dtype=np.float32)[rng.integers(0, classes, 40)]
    statistics = Statistics.zero(size, classes)
    for part in np.array_split(rng.permutation(40), cuts):
        statistics = add(statistics, phi[part], t[part])
    z, shares = np.concatenate([phi, np.ones((40, 1))], axis=1).astype(np.float64), t.astype(np.float64)
    means = (shares.T @ z) / np.maximum(shares.sum(axis=0), 1e-9)[:, None]
    within = np.concatenate([np.sqrt(shares[:, [c]]) * (z - means[c]) for c in range(classes)])
    of_means = np.sqrt(shares.sum() / classes) * means
    ridge = 0.01 * (np.square(within).sum() + np.square(of_means).sum()) / (size + 1)
    rows = np.concatenate([within, of_means, np.sqrt(ridge) * np.eye(size + 1)])
    right = np.zeros((len(rows), classes))
    right[len(within) : len(within) + classes] = np.sqrt(shares.sum() / classes) * np.eye(classes)
    expected, *_ = np.linalg.lstsq(rows, right, rcond=None)
    found = solve(statistics)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(scores(found, phi), z @ expected, atol=1e-3)


def test_of_classes_in_equal_shares_it_is_plain_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    phi, y = rng.standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
    t = np.eye(3, dtype=np.float32)[y]
    z = np.concatenate([phi, np.ones((60, 1))], axis=1).astype(np.float64)
    a = z.T @ z
    expected = np.linalg.solve(a + 0.01 * np.trace(a) / 6 * np.eye(6), z.T @ t)
    np.testing.assert_allclose(solve(add(Statistics.zero(5, 3), phi, t)), expected, atol=1e-5)


def test_one_class_for_ever_does_not_crowd_out_the_others() -> None:
    """Two classes half a deviation apart: after 100 times as many frames of one, the other is still answered."""
    rng = np.random.default_rng(0)

    def draw(c: int, n: int) -> np.ndarray:
        return (rng.standard_normal((n, 4)) + 0.5 * c).astype(np.float32)

    def shares(c: int, n: int) -> np.ndarray:
        return np.tile(np.eye(2, dtype=np.float32)[c], (n, 1))

    statistics = Statistics.zero(4, 2)
    for c in (0, 1):
        statistics = add(statistics, draw(c, 500), shares(c, 500))
    statistics = add(statistics, draw(0, 50_000), shares(0, 50_000))
    w = solve(statistics)
    right = [np.mean(scores(w, draw(c, 2000)).argmax(axis=1) == c) for c in (0, 1)]
    assert min(right) > 0.6


def test_nothing_seen_is_no_answer_and_no_error() -> None:
    assert not solve(Statistics.zero(3, 2)).any()


def test_the_statistics_of_960_values_fit_two_megabytes() -> None:
    assert sum(array.nbytes for array in arrays_of(Statistics.zero(960, 10)).values()) < 2_000_000


def begun(statistics: Statistics, worth: float = 0.5) -> Start:
    return Start(statistics, 1.0, 1.0, 1.0, worth)


def test_the_share_begins_with_its_worth_and_grows_with_the_frames() -> None:
    one = np.ones((1, 2), np.float32) / 2
    start = add(Statistics.zero(3, 2), np.ones((4, 3), np.float32), one.repeat(4, axis=0))
    later = add(start, np.ones((32, 3), np.float32), one.repeat(32, axis=0))
    nothing = Statistics.zero(3, 2)
    for worth in (0.0, 0.25, 0.5, 0.8, 1.0):
        assert share(start, begun(start, worth)) == pytest.approx([worth, worth])
        assert share(nothing, begun(nothing, worth)) == pytest.approx([worth, worth])
    assert share(later, begun(start)) == pytest.approx([0.9, 0.9])  # 18 frames of each, and 2 at the start
    assert share(later, begun(start, 0.8)) == pytest.approx([36 / 37, 36 / 37])
    assert share(later, begun(nothing)).min() > 0.999
    assert share(later, begun(start, 0)).max() == 0
    assert share(later, begun(start, 1)).min() == 1


def test_a_class_is_no_better_known_for_the_frames_of_another() -> None:
    def seen(*frames: int) -> Statistics:
        y = np.repeat(np.arange(3), frames)
        return add(Statistics.zero(4, 3), np.ones((len(y), 4), np.float32), np.eye(3, dtype=np.float32)[y])

    assert share(seen(90, 10, 40), begun(seen(10, 10, 10))) == pytest.approx([9 / 10, 1 / 2, 4 / 5])
    assert share(seen(90, 10, 0), begun(seen(10, 10, 10)))[2] < 1e-3


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 5))
@settings(max_examples=30)
def test_an_answer_is_a_geometric_mean_of_both_models_class_by_class(seed: int, n: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    w, phi, votes = (3 * rng.standard_normal(size) for size in ((5, classes), (n, 4), (n, classes)))
    s = rng.random(classes)
    start = Start(Statistics.zero(4, classes), 2.0, 0.5, 1.0, 0.5)
    q = scipy.special.softmax((np.c_[phi, np.ones(n)] @ w) / 0.5, axis=1)
    p = scipy.special.softmax(votes / 2.0, axis=1)
    found = mixed(*(part.astype(np.float32) for part in (w, s, phi, votes)), start)
    np.testing.assert_allclose(found, np.log(q**s * p ** (1 - s)), rtol=1e-4, atol=1e-4)
