"""The streaming regression and the soft vote of deco+, against what one gets from all data at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from deco_runtime.regression import Statistics, add, scores, solve
from deco_runtime.vote import posterior
from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(2, 4), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_frames_in_any_pieces_and_order_give_the_ridge_solution(seed: int, size: int, classes: int, cuts: int) -> None:
    """Against numpy's least squares in float64, on all frames at once, with √w-weighted rows and √λ·I below them."""
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((40, size)).astype(np.float32)
    weight = rng.uniform(0.2, 1, 40).astype(np.float32)
    t = weight[:, None] * np.eye(classes, dtype=np.float32)[rng.integers(0, classes, 40)]
    statistics = Statistics.zero(size, classes)
    for part in np.array_split(rng.permutation(40), cuts):
        statistics = add(statistics, phi[part], t[part])
    z = np.concatenate([phi, np.ones((40, 1))], axis=1).astype(np.float64)
    root = np.sqrt(weight.astype(np.float64))[:, None]
    ridge = 0.01 * np.trace((root * z).T @ (root * z)) / (size + 1)
    rows = np.concatenate([root * z, np.sqrt(ridge) * np.eye(size + 1)])
    expected, *_ = np.linalg.lstsq(rows, np.concatenate([t / root, np.zeros((size + 1, classes))]), rcond=None)
    found = solve(statistics)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(scores(found, phi), z @ expected, atol=2e-4)


def test_nothing_seen_is_no_answer_and_no_error() -> None:
    assert not solve(Statistics.zero(3, 2)).any()


def test_the_statistics_of_960_values_fit_two_megabytes() -> None:
    assert Statistics.zero(960, 10).nbytes < 2_000_000


def test_a_segment_of_one_class_is_given_that_class() -> None:
    """Frames of class 1 that often look like class 2, as a weak model sees them."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5, 3.0, 2.0], size=128).astype(np.float32)
    assert np.mean(p.argmax(axis=1) == 1) < 0.75
    shares, found = posterior(p)
    assert shares[1] > 0.9
    assert np.mean(found.argmax(axis=1) == 1) > 0.95


def test_a_mixed_segment_keeps_both_classes_and_their_shares() -> None:
    rng = np.random.default_rng(1)
    y = np.repeat([0, 3], [384, 128])
    z = 1.5 * np.eye(5)[y] + rng.standard_normal((512, 5))
    p = scipy.special.softmax(1.5 * z, axis=1).astype(np.float32)  # exact for these Gaussians in equal shares
    shares, found = posterior(p)
    assert shares[0] == pytest.approx(0.75, abs=0.08)
    assert shares[3] == pytest.approx(0.25, abs=0.08)
    assert np.mean(found.argmax(axis=1) == y) > np.mean(p.argmax(axis=1) == y)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_shares_make_the_segment_likelier_than_equal_ones(seed: int, n: int, classes: int) -> None:
    p = np.random.default_rng(seed).dirichlet(np.ones(classes), size=n).astype(np.float32)
    shares, found = posterior(p)
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    likelihood = np.log(p @ shares).sum()
    assert likelihood >= np.log(p.mean(axis=1)).sum() - 1e-4


def test_frames_that_no_class_explains_are_no_division_by_zero() -> None:
    p = np.float32([[1, 0], [1, 0], [0, 0]])
    shares, found = posterior(p)
    assert np.isfinite(found).all()
    assert np.isfinite(shares).all()
