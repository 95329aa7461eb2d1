"""Noise on what a device sends: as much as (ε, δ) needs, and sums that a pool still understands."""

from __future__ import annotations

from math import erfc, exp, inf, sqrt

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.fleet.noise import clipped, multiple, of_means, private, usual
from deco_runtime.fleet.sums import complaint, frames
from deco_runtime.learning.regression import Statistics, add, solve, square, within
from deco_runtime.types import Floats

D, K = 24, 4


def drawn(seed: int, n: int, of: int | None = None) -> tuple[Floats, Floats]:
    """Frames φ (n, D) around their class's mean, no longer than 2, and their one-hot labels."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(0, 0.2, (K, D))
    labels = rng.integers(K, size=n) if of is None else np.full(n, of)
    phi = means[labels] + rng.normal(0, 0.1, (n, D))
    return clipped(phi.astype(np.float32), 2.0), np.eye(K, dtype=np.float32)[labels]


def sums(seed: int, n: int, of: int | None = None) -> Statistics:
    return add(Statistics.zero(D, K), *drawn(seed, n, of))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
def test_sigma_is_the_least_that_is_private(epsilon: float) -> None:
    def reached(sigma: float) -> float:
        def normal(x: float) -> float:
            return erfc(-x / sqrt(2)) / 2

        return normal(1 / (2 * sigma) - epsilon * sigma) - exp(epsilon) * normal(-1 / (2 * sigma) - epsilon * sigma)

    sigma = multiple(epsilon, 1e-6)
    assert reached(sigma) <= 1e-6 < reached(0.999 * sigma)
    if epsilon <= 1:  # where the classical bound holds, it asks for more
        assert sigma < sqrt(2 * np.log(1.25e6)) / epsilon


def test_no_noise_for_no_bound_and_what_is_no_bound() -> None:
    assert multiple(inf, 1e-6) == 0
    for epsilon, delta in ((0, 1e-6), (-1, 1e-6), (1, 0), (1, 1), (float("nan"), 0.1)):
        with pytest.raises(UsageError, match="expected ε above 0"):
            multiple(epsilon, delta)


def test_frames_are_no_longer_than_the_bound() -> None:
    phi = np.random.default_rng(0).normal(0, 1, (50, D)).astype(np.float32)
    short = clipped(phi, 2.0)
    assert np.linalg.norm(short, axis=1).max() <= 2.0 + 1e-5
    kept = np.linalg.norm(phi, axis=1) <= 2
    np.testing.assert_array_equal(short[kept], phi[kept])
    assert clipped(np.zeros((1, D), np.float32), 2.0).tolist() == [[0.0] * D]


def test_without_noise_the_classes_are_as_they_were() -> None:
    """Their sums are; A is that of the labelled images' spread around them."""
    known, seen = sums(0, 400), sums(1, 800)
    made = private(seen, known, inf, 1e-6, 2.0, np.random.default_rng(0))
    np.testing.assert_allclose(made.b, seen.b, rtol=1e-6)
    np.testing.assert_allclose(within(made), within(known), atol=1e-5)
    np.testing.assert_allclose(square(made)[:, -1], seen.b.sum(axis=1), rtol=1e-4, atol=1e-3)
    assert complaint(made, known, 100) is None


def test_noise_is_of_the_size_that_it_says() -> None:
    known, seen = sums(0, 400), sums(1, 40_000)
    for together in (1, 3):
        sigma = multiple(1.0, 1e-6) * together * 2.0 * sqrt(1 + 1 / 16)
        found = np.stack([
            private(seen, known, 1.0, 1e-6, 2.0, np.random.default_rng(seed), together).b - seen.b for seed in range(40)
        ])  # fmt: skip
        assert found[:, :-1].std() == pytest.approx(sigma, rel=0.05)
        assert found[:, -1].std() == pytest.approx(sigma / 0.5, rel=0.2)


def test_a_class_that_is_mostly_noise_is_not_sent() -> None:
    known, seen = sums(0, 400), sums(1, 3000, of=2)
    made = private(seen, known, 1.0, 1e-6, 2.0, np.random.default_rng(0))
    assert np.flatnonzero(made.b.any(axis=0)).tolist() == [2]
    assert frames(made) == pytest.approx(3000, abs=100)
    assert complaint(made, known, 100) is None
    few = private(sums(1, 10), known, 1.0, 1e-6, 2.0, np.random.default_rng(0))
    assert frames(few) == 0
    assert np.isfinite(solve(Statistics(known.a + few.a, known.b + few.b))).all()


def test_usual_is_the_length_of_labelled_images() -> None:
    phi, t = drawn(0, 400)
    length = sqrt(float((phi.astype(np.float64) ** 2).sum(axis=1).mean()))
    assert usual(add(Statistics.zero(D, K), phi, t)) == pytest.approx(length, rel=1e-5)


def test_sums_of_classes_alone_make_nearly_the_same_model() -> None:
    known, seen = sums(0, 400), sums(1, 4000)
    made = of_means(seen.b.astype(np.float64), known)
    phi, t = drawn(2, 1000)
    for each in (seen, made):
        w = solve(each)
        right = (phi @ w[:-1] + w[-1]).argmax(axis=1) == t.argmax(axis=1)
        assert right.mean() > 0.95
