"""How small the weights of a regression are asked to be, where images are fewer than axes."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.learning.prior import FOLDS, PRIORS, answered, folds, prior
from deco_runtime.learning.regression import PENALTY, Start, Statistics, add, penalty
from deco_runtime.learning.vote import one_hot
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60))
def test_a_take_is_in_one_fold_and_the_only_one_of_a_class_in_none(pairs: list[tuple[int, int]]) -> None:
    y = np.array([c for c, _ in pairs])
    takes = np.array([3 * c + take for c, take in pairs])
    fold = folds(y, takes)
    for take in np.unique(takes):
        assert len(np.unique(fold[takes == take])) == 1
    for c in np.unique(y):
        own = np.unique(takes[y == c])
        held = {int(fold[takes == take][0]) for take in own}
        assert held == {-1} if len(own) == 1 else len(held) == min(len(own), FOLDS)


def test_the_dual_answers_as_the_primal_regression_does() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 12)
    phi = (rng.standard_normal((36, 20)) + 2.0 * np.eye(3, 20)[y]).astype(np.float32)
    phi -= phi.mean(axis=0)
    fold = folds(y, np.arange(36))
    found = answered(phi @ phi.T, y, fold, 0.1)
    for number in range(FOLDS):
        known, held = fold != number, fold == number
        x, t = phi[known].astype(np.float64), one_hot(y[known], 3).astype(np.float64)
        t /= t.sum(axis=0)
        t -= t.mean(axis=1, keepdims=True)
        strength = 0.1 * np.trace(x @ x.T) / len(x)
        w = np.linalg.solve(x.T @ x + strength * np.eye(20), x.T @ t)
        assert ((phi[held] @ w).argmax(axis=1) == y[held]).tolist() == found[held].tolist()
    assert 0.4 < found.mean() < 1


def test_more_images_than_axes_need_no_prior_and_single_takes_get_the_first() -> None:
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(2), 20)
    assert prior(rng.standard_normal((40, 30)).astype(np.float32), y, np.arange(40)) == 0
    assert prior(rng.standard_normal((40, 60)).astype(np.float32), y, y) == PRIORS[0]


def test_noise_on_many_axes_asks_for_a_stronger_prior_than_none() -> None:
    """Classes differ along one strong axis; without a prior the many weak ones are fitted too."""
    chosen = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(2), 12)
        phi = 0.5 * rng.standard_normal((24, 400))
        phi[:, 0] += 2.5 * (2 * y - 1) + rng.standard_normal(24)
        chosen.append(prior(phi.astype(np.float32), y, np.arange(24)))
    assert np.mean(np.array(chosen) > 0) >= 0.75


def test_the_prior_counts_less_the_more_frames_there_are() -> None:
    rng = np.random.default_rng(2)
    phi, t = rng.standard_normal((10, 4)).astype(np.float32), one_hot(np.arange(10) % 2, 2)
    few = add(Statistics.zero(4, 2), phi, t)
    many = add(few, np.tile(phi, (9, 1)), np.tile(t, (9, 1)))
    start = Start(few, 1.0, 1.0, 1.0, 0.5, prior=0.2)
    assert penalty(few, start) == pytest.approx(PENALTY + 0.2)
    assert penalty(many, start) == pytest.approx(PENALTY + 0.02)
    assert penalty(many, Start(few, 1.0, 1.0, 1.0, 0.5)) == PENALTY
