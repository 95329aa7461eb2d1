"""Calibration by held-out takes: against frames whose true posterior is known, and what few takes may change."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from deco_runtime.learning.calibrate import (
    IMAGES,
    KEPT,
    MIXED,
    NETWORK,
    REGRESSION,
    SPREAD,
    TAKES,
    WORTH,
    calibrate,
    loss,
    temperature,
    unknown,
)
from deco_runtime.learning.unknown import SIGNS, odds
from hypothesis import given, settings
from hypothesis import strategies as st

CLASSES = 5


def frames(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-posterior (n, K) and labels (n,) of Gaussian frames in equal shares: exactly as sure as it is right."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    z = 1.5 * (1.5 * np.eye(CLASSES)[y] + rng.standard_normal((n, CLASSES)))
    return z.astype(np.float32), y


@pytest.mark.parametrize("scale", [3.0, 0.1])
@pytest.mark.parametrize("prior", [1.0, 5.0])
def test_many_takes_say_how_sure_a_model_is_whatever_was_expected(scale: float, prior: float) -> None:
    z, y = frames(4000)
    notes: list[str] = []
    found = temperature(np.float32(scale) * z, y, np.arange(4000), prior * scale, "it", notes)
    assert found == pytest.approx(scale, rel=0.1)
    assert notes == []


def test_without_held_out_images_the_prior_is_left() -> None:
    nothing = np.zeros((0, CLASSES), np.float32)
    found = calibrate(nothing, nothing, np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (found.mixed_temperature, found.worth) == (MIXED, WORTH)
    assert found.network_temperature == pytest.approx(NETWORK)
    assert found.regression_temperature == pytest.approx(REGRESSION)
    assert found.notes == ()


def test_images_that_are_all_right_do_not_make_a_model_blindly_sure() -> None:
    """Held-out neighbours of the training images, three takes: the fit stays near the prior, far from the edge."""
    y = np.repeat(np.arange(3), 30)
    z = 20 * np.eye(CLASSES, dtype=np.float32)[y]
    notes: list[str] = []
    found = temperature(z, y, y, 2.0, "it", notes)
    assert 1.0 < found < 2.1
    assert notes == []


def test_an_edge_of_the_search_is_told() -> None:
    y = np.arange(4000) % CLASSES
    wrong = 50 * np.eye(CLASSES, dtype=np.float32)[(y + 1) % CLASSES]  # always wrong, and very sure
    notes: list[str] = []
    found = temperature(wrong, y, np.arange(4000), 1.0, "the network", notes)
    assert found == pytest.approx(np.exp(5 * SPREAD))
    assert len(notes) == 1
    assert notes[0].startswith("the temperature of the network ended at 32, the edge of what is tried")


@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=20)
def test_a_take_counts_once_however_long_it_is(takes: int, longer: int, seed: int) -> None:
    """Frames seen again and again in a row say nothing new."""
    z, y = frames(takes, seed)
    many = np.repeat(np.arange(takes), longer)
    assert loss(z[many], y[many], many) == pytest.approx(loss(z, y, np.arange(takes)), rel=1e-5)
    one, again = (calibrate(z[i], z[i] / 10, y[i], i) for i in (np.arange(takes), many))
    assert again.network_temperature == pytest.approx(one.network_temperature, rel=0.08)  # a step of the search
    assert again.worth == pytest.approx(one.worth, abs=0.02)


def test_the_loss_is_the_mean_over_a_take_of_minus_log_p() -> None:
    z, y = frames(6)
    takes = np.array([3, 3, 0, 3, 0, 9])
    log_p = scipy.special.log_softmax(z.astype(np.float64), axis=1)[np.arange(6), y]
    expected = -sum(log_p[takes == take].mean() for take in (0, 3, 9))
    assert loss(z, y, takes) == pytest.approx(expected, rel=1e-5)


def test_the_better_model_is_believed_more() -> None:
    """One of them sees nothing; or both see half of it each, and together all."""
    z, y = frames(2000)
    blind = np.random.default_rng(1).standard_normal(z.shape).astype(np.float32)
    alone = np.arange(2000)
    network, regression = calibrate(2 * z, blind, y, alone), calibrate(blind, z / 10, y, alone)
    assert network.worth < 0.1
    assert network.network_temperature == pytest.approx(2, rel=0.1)
    assert regression.worth > 0.9
    assert regression.regression_temperature == pytest.approx(0.1, rel=0.1)
    noise = np.random.default_rng(2).standard_normal((2, *z.shape)).astype(np.float32)
    both = calibrate(z + noise[0], z + noise[1], y, alone)
    assert 0.4 < both.worth < 0.6
    assert both.mixed_temperature < 0.9  # two that agree are surer than either


NOTHING = np.zeros((0, SIGNS), np.float32)


def signs(n: int, shift: tuple[float, ...] = (0, 0, 0), seed: int = 0) -> np.ndarray:
    """Signs of so many frames, in units of their own."""
    rng = np.random.default_rng(seed)
    return ((rng.standard_normal((n, SIGNS)) + shift) * (100, 0.1, 3) + (5000, -0.7, -12)).astype(np.float32)


def test_95_of_100_known_images_are_kept_and_each_sign_counts_alike() -> None:
    known = signs(1000)
    weights = unknown(known, np.arange(1000), NOTHING)
    assert weights is not None
    assert weights.dtype == np.float32
    assert np.mean(odds(known, weights) < 1) == pytest.approx(KEPT, abs=0.002)
    spread = weights[:SIGNS] * known.std(axis=0)
    np.testing.assert_allclose(spread, spread.mean(), rtol=1e-3)
    assert np.std(np.log(odds(known, weights))) == pytest.approx(2, abs=0.1)
    edge = np.log(odds(known, weights)).mean()  # over a scene, the edge is nearer to the mean of the known images
    assert np.log(odds(known, weights, 0.25)).mean() == pytest.approx(edge / 2, abs=1e-3)


def test_a_long_take_does_not_decide_what_is_kept() -> None:
    """A take of 900 strange frames beside 100 single images: it is one of 101."""
    known = np.vstack([signs(100), signs(900, (3, 3, 3))])
    takes = np.r_[np.arange(100), np.full(900, 100)]
    weights = unknown(known, takes, NOTHING)
    assert weights is not None
    kept = odds(known, weights) < 1
    assert kept[:100].mean() == pytest.approx(KEPT, abs=0.03)
    assert kept[100:].mean() < 0.5


def test_images_of_none_of_the_classes_say_which_sign_tells() -> None:
    """Only the second does."""
    known, none = signs(500), signs(200, (0, 2, 0), 1)
    by_none, without = unknown(known, np.arange(500), none), unknown(known, np.arange(500), NOTHING)
    assert by_none is not None
    assert without is not None
    weights = by_none[:SIGNS] * known.std(axis=0)
    assert weights[1] > 5 * np.abs(weights[[0, 2]]).max()
    assert np.mean(odds(known, by_none) < 1) == pytest.approx(KEPT, abs=0.003)
    fresh = signs(2000, (0, 2, 0), 2)
    assert np.mean(odds(fresh, by_none) > 1) > np.mean(odds(fresh, without) > 1) + 0.2


@pytest.mark.parametrize(("takes", "each"), [(TAKES - 1, 20), (IMAGES - 1, 1), (0, 1)])
def test_few_held_out_takes_or_images_say_nothing(takes: int, each: int) -> None:
    known = signs(takes * each)
    assert unknown(known, np.repeat(np.arange(takes), each), NOTHING) is None


def test_signs_that_never_change_are_no_division_by_zero() -> None:
    weights = unknown(np.ones((60, SIGNS), np.float32), np.arange(60), NOTHING)
    assert weights is not None
    assert np.isfinite(weights).all()
    assert odds(np.ones((1, SIGNS), np.float32), weights)[0] <= 1.01
