"""Added classes: the discriminants against scipy's normal densities, thresholds against scipy's tails."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.learning.added import COSTS, LARGEST, RIDGE, STEPS, Near, beside, discriminants, odds, threshold
from deco_runtime.learning.regression import Doubles, Statistics, add, of_classes, square, together, within
from deco_runtime.types import Floats, Ints
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.spatial import distance

SIZE, KNOWN, WEIGHT = 5, 3, 4.0


def frames(seed: int, counts: tuple[int, ...], apart: float = 3.0) -> tuple[Floats, Ints]:
    """φ (n, SIZE) of so many frames of each class, around means so far apart, and their labels."""
    rng = np.random.default_rng(seed)
    means = apart * rng.standard_normal((len(counts), SIZE))
    y = np.repeat(np.arange(len(counts)), counts)
    mixed = rng.standard_normal((SIZE, SIZE)) / 2
    return (means[y] + rng.standard_normal((len(y), SIZE)) @ mixed).astype(np.float32), y


def sums(phi: Floats, y: Ints, classes: int, w: Floats | float = 1.0) -> Statistics:
    t = (np.eye(classes)[y] * np.reshape(w, (-1, 1))).astype(np.float32)
    return add(Statistics.zero(SIZE, classes), phi, t)


def by_hand(phi: Floats, y: Ints, w: Doubles, classes: int) -> tuple[Doubles, Doubles, Doubles]:
    """Means (K, SIZE), covariance within classes, and frames of each class (K,), in float64."""
    x = phi.astype(np.float64)
    count = np.array([w[y == c].sum() for c in range(classes)])
    means = np.array([np.average(x[y == c], axis=0, weights=w[y == c]) for c in range(classes)])
    apart = x - means[y]
    return means, (apart * w[:, None]).T @ apart / w.sum(), count


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("new", [(6,), (10, 4)])
def test_the_discriminants_are_log_densities_of_normal_distributions(seed: int, new: tuple[int, ...]) -> None:
    """Differences of two classes' log densities under one covariance, but for what a mean of few frames has too much in
    its square, and for the thresholds of the added ones."""
    phi, y = frames(seed, (40, 30, 50, *new))
    classes = KNOWN + len(new)
    w = np.where(y < KNOWN, 1.0, WEIGHT)
    g = discriminants(sums(phi, y, classes, w.astype(np.float32)), KNOWN, WEIGHT, COSTS[0]).astype(np.float64)
    means, covariance, count = by_hand(phi, y, w, classes)
    ridged = covariance + RIDGE * np.trace(covariance) / SIZE * np.eye(SIZE)
    densities = np.stack([stats.multivariate_normal(mean, ridged).logpdf(phi) for mean in means], axis=1)
    independent = np.where(np.arange(classes) < KNOWN, count, count / WEIGHT)
    densities += np.trace(np.linalg.solve(ridged, covariance)) / (2 * independent)
    found = phi.astype(np.float64) @ g[:-1] + g[-1]
    np.testing.assert_allclose(
        found[:, 1:KNOWN] - found[:, :1], densities[:, 1:KNOWN] - densities[:, :1], rtol=1e-3, atol=2e-3
    )
    lower = (densities[:, KNOWN:] - densities[:, :1]) - (found[:, KNOWN:] - found[:, :1])
    for j in range(len(new)):
        towards = np.linalg.solve(ridged, (means[KNOWN + j] - means[:KNOWN]).T)  # (SIZE, KNOWN)
        zero = np.zeros((1, SIZE))
        level = np.stack([stats.multivariate_normal(mean, ridged).logpdf(zero) for mean in means])
        level += np.trace(np.linalg.solve(ridged, covariance)) / (2 * independent)
        middle = (towards * means[:KNOWN].T).sum(axis=0) + level[KNOWN + j] - level[:KNOWN]
        spread = np.sqrt(np.diag(towards.T @ covariance @ towards))
        exact = exact_threshold(middle, spread, COSTS[0])
        np.testing.assert_allclose(lower[:, j], lower[0, j], atol=5e-3)  # a constant, the least of the grid above it
        assert exact - 5e-3 <= lower[0, j] <= exact + LARGEST / STEPS + 5e-3


def exact_threshold(middle: Doubles, spread: Doubles, cost: float) -> float:
    def lost(t: float) -> float:
        return float(stats.norm.sf(t, middle, spread).mean()) - cost

    return 0.0 if lost(0.0) <= 0 else float(optimize.brentq(lost, 0.0, 1000.0))


@given(
    st.lists(st.tuples(st.floats(-30, 25), st.floats(0.05, 6)), min_size=1, max_size=6), st.sampled_from([*COSTS, 0.3])
)
def test_the_threshold_is_the_least_of_the_grid_that_scipys_tails_allow(
    normal: list[tuple[float, float]], cost: float
) -> None:
    middle, spread = (np.array(each) for each in zip(*normal, strict=True))
    exact, found = exact_threshold(middle, spread, cost), threshold(middle, spread, cost)
    if exact > LARGEST:
        assert found == LARGEST
    else:
        assert exact - 1e-6 <= found <= exact + LARGEST / STEPS + 1e-6
        assert round(found * STEPS / LARGEST, 6).is_integer()


def test_nothing_is_asked_of_known_classes_that_are_not_there() -> None:
    assert threshold(np.zeros(0), np.zeros(0), 1e-3) == 0.0


def test_an_added_class_takes_no_more_than_its_cost_of_the_known() -> None:
    """Of frames that are normally distributed, as many as show it."""
    phi, y = frames(3, (400, 400, 400, 20), apart=0.6)
    for cost in COSTS:
        g = discriminants(sums(phi, y, 4), KNOWN, 1.0, cost)
        means, covariance, _ = by_hand(phi, y, np.ones(len(y)), 4)
        rng = np.random.default_rng(0)
        drawn = np.concatenate([rng.multivariate_normal(mean, covariance, 40_000) for mean in means[:KNOWN]])
        taken = (odds(g, drawn.astype(np.float32), KNOWN)[:, 0] > 0).mean()
        assert taken <= cost * 1.3 + 1e-5


def test_the_weight_of_a_class_says_how_well_its_mean_is_known() -> None:
    """Ten times the same sums: the mean of a tenth of the frames is as far off as theirs."""
    phi, y = frames(1, (30, 30, 30, 8))
    once = sums(phi, y, 4)
    for weight in (1.0, 10.0):
        w = np.where(y < KNOWN, 1.0, weight).astype(np.float32)
        g = discriminants(sums(phi, y, 4, w), KNOWN, weight)
        assert np.isfinite(g).all()
        assert (odds(g, phi, KNOWN)[y == 3] > 0).all()
        assert (odds(g, phi, KNOWN)[y < 3] < 0).mean() > 0.95
    assert once.b.shape == (SIZE + 1, 4)


@pytest.mark.parametrize("seed", range(3))
def test_how_near_a_frame_is_to_an_added_class(seed: int) -> None:
    """Mahalanobis distances against scipy's, and their mean over the frames that the sums are of."""
    phi, y = frames(seed, (40, 30, 50, 12, 9))
    near = Near.of(sums(phi, y, 5), KNOWN)
    means, covariance, _ = by_hand(phi, y, np.ones(len(y)), 5)
    precision = np.linalg.inv(covariance + RIDGE * np.trace(covariance) / SIZE * np.eye(SIZE))
    own = [distance.mahalanobis(x, means[c], precision) ** 2 for x, c in zip(phi, y, strict=True)]
    assert near.usual == pytest.approx(np.mean(own), rel=1e-3)
    far = np.concatenate([phi, 50 * phi])
    apart = np.array([[distance.mahalanobis(x, means[c], precision) ** 2 for c in (3, 4)] for x in far])
    np.testing.assert_allclose(near.share(far), np.mean(own) / np.maximum(apart, np.mean(own)), rtol=1e-2)
    assert near.share(means[3:].astype(np.float32)).diagonal().tolist() == [1, 1]


@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000))
def test_odds_and_what_is_put_beside(n: int, new: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((n, SIZE)).astype(np.float32)
    g = rng.standard_normal((SIZE + 1, KNOWN + new)).astype(np.float32)
    values = np.c_[phi, np.ones(n)].astype(np.float64) @ g.astype(np.float64)
    against = values[:, KNOWN:] - values[:, :KNOWN].max(axis=1, keepdims=True)
    np.testing.assert_allclose(odds(g, phi, KNOWN), against, atol=1e-4)
    said = rng.standard_normal((n, KNOWN)).astype(np.float32)
    both = beside(said, odds(g, phi, KNOWN))
    assert both.dtype == np.float32
    assert both[:, :KNOWN].tobytes() == said.tobytes()
    np.testing.assert_allclose(both[:, KNOWN:], said.max(axis=1, keepdims=True) + against, atol=1e-4)
    likelier = (against > 1e-3).any(axis=1)
    assert (both.argmax(axis=1)[likelier] >= KNOWN).all()


# --- the sums, of more classes and of fewer


@given(st.integers(0, 1000), st.integers(0, 3))
def test_sums_of_more_classes_and_back_are_the_same_bits(seed: int, more: int) -> None:
    phi, y = frames(seed, (4, 3, 5))
    it = sums(phi, y, KNOWN)
    wide = of_classes(it, KNOWN + more)
    assert wide.b.shape == (SIZE + 1, KNOWN + more)
    assert not wide.b[:, KNOWN:].any()
    again = of_classes(wide, KNOWN)
    assert (again.a.tobytes(), again.b.tobytes()) == (it.a.tobytes(), it.b.tobytes())
    assert of_classes(it, KNOWN) is it


@pytest.mark.parametrize("seed", range(3))
def test_with_a_class_goes_what_its_frames_have_in_common(seed: int) -> None:
    """n μμᵀ with the constant, of a class that is as far from the others as can be; its scatter stays."""
    phi, y = frames(seed, (40, 30, 50, 6, 3))
    cut = of_classes(sums(phi, y, 5), KNOWN)
    z = np.c_[phi, np.ones(len(phi))].astype(np.float64)
    a = z.T @ z
    for c in (3, 4):
        mean = z[y == c].mean(axis=0)
        a -= (y == c).sum() * np.outer(mean, mean)
    np.testing.assert_allclose(square(cut), a, atol=1e-4 * np.abs(a).max())
    np.testing.assert_array_equal(cut.b, sums(phi, y, 5).b[:, :KNOWN])
    _, covariance, _ = by_hand(phi, y, np.ones(len(y)), 5)
    np.testing.assert_allclose(within(cut) * cut.b[-1].sum(), covariance * len(y), rtol=1e-4, atol=5e-3)


def test_sums_of_both_are_sums_of_all_frames() -> None:
    phi, y = frames(0, (7, 8, 9))
    both = together(sums(phi[:10], y[:10], KNOWN), sums(phi[10:], y[10:], KNOWN))
    at_once = sums(phi, y, KNOWN)
    np.testing.assert_allclose(both.a, at_once.a, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(both.b, at_once.b, rtol=1e-4, atol=1e-3)
