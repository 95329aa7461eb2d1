"""Things of no class: the signs against their formulas in float64, the odds, and what deco+ makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.regression import Start, Statistics, add, scores, solve
from deco_runtime.learning.unknown import LARGEST, RIDGE, Known, odds
from deco_runtime.learning.voter import Voter
from deco_runtime.types import Floats, Ints, Segment
from fake_engine import LinearEngine

CLASSES, SIZE = 4, 12
MEANS = 4 * np.eye(CLASSES, SIZE, dtype=np.float32)


def draw(y: Ints, seed: int = 0) -> Floats:
    """Frames (n, SIZE): of class c around MEANS[c], and for −1 around another place, as far from the middle."""
    rng = np.random.default_rng(seed)
    centre = np.where((y >= 0)[:, None], MEANS[y], 4 * np.eye(SIZE, dtype=np.float32)[-1])
    return (centre + rng.standard_normal((len(y), SIZE))).astype(np.float32)


def labelled(n: int = 400, classes: int = CLASSES) -> tuple[Floats, Ints, Statistics]:
    y = np.arange(n) % classes
    x = draw(y)
    return x, y, add(Statistics.zero(SIZE, CLASSES), x, np.eye(CLASSES, dtype=np.float32)[y])


def test_the_signs_are_the_relative_mahalanobis_distance_and_what_neither_model_is_sure_of() -> None:
    x, y, statistics = labelled()
    unseen = draw(np.array([0, 1, 2, 3, -1, -1]), 1)
    logits = np.random.default_rng(2).standard_normal((6, CLASSES)).astype(np.float32)
    found = Known.of(statistics, solve(statistics)).signs(unseen, logits)
    means = np.stack([x[y == c].mean(axis=0) for c in range(CLASSES)]).astype(np.float64)
    within = np.mean([np.outer(d, d) for d in x - means[y]], axis=0)
    centre = means.mean(axis=0)
    whole = within + np.mean([np.outer(d, d) for d in means - centre], axis=0)

    def squared(frames: Floats, at: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        ridged = covariance + RIDGE * np.trace(covariance) / SIZE * np.eye(SIZE)
        return scipy.spatial.distance.cdist(frames, np.atleast_2d(at), "mahalanobis", VI=scipy.linalg.inv(ridged)) ** 2

    expected = squared(unseen, means, within).min(axis=1) - squared(unseen, centre, whole)[:, 0]
    np.testing.assert_allclose(found[:, 0], expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(found[:, 1], -scores(solve(statistics), unseen).max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found[:, 2], -logits.max(axis=1))


def test_a_class_without_an_image_attracts_nothing() -> None:
    _, _, three = labelled(300, 3)
    found = Known.of(three, solve(three)).signs(draw(np.array([0, 1, 2, 3, 3])), np.zeros((5, CLASSES), np.float32))
    assert np.isfinite(found).all()
    assert found[3:, 0].min() > found[:3, 0].max()


def test_fewer_images_than_values_still_tell() -> None:
    _, _, few = labelled(8)
    y = np.repeat([0, 1, 2, 3, -1], 50)
    found = Known.of(few, solve(few)).signs(draw(y, 3), np.zeros((250, CLASSES), np.float32))[:, 0]
    assert np.mean(found[y < 0][:, None] > found[y >= 0]) > 0.7  # the area under the curve


def test_the_odds_grow_with_the_signs_and_are_bounded() -> None:
    signs = np.array([[0, 0, 0], [1, 2, 3], [1e6, 0, 0], [-1e6, 0, 0]], np.float32)
    weights = np.array([1, 0.5, 0.25, -1, -0.2], np.float32)
    np.testing.assert_allclose(np.log(odds(signs, weights)), [-1, 1.75, LARGEST, -LARGEST], rtol=1e-5)


def test_the_mean_of_a_known_scene_is_within_the_edge_95_times_of_100_whatever_its_frames_have_in_common() -> None:
    """Scenes of 1,000 known frames of correlation r; without r, of so long scenes none would ever be unknown."""
    rng, weights = np.random.default_rng(0), np.array([2, 0, 0, -2 * 1.645, 0], np.float32)
    for r in (1.0, 0.6, 0.2):
        mean = np.sqrt(r) * rng.standard_normal(20_000) + np.sqrt((1 - r) / 1_000) * rng.standard_normal(20_000)
        signs = np.zeros((20_000, 3), np.float32)
        signs[:, 0] = mean
        assert np.mean(odds(signs, weights, r) < 1) == pytest.approx(0.95, abs=0.01)


def learner(unknown: Floats | None) -> DecoPlus:
    _, _, statistics = labelled()
    engine, start = LinearEngine(CLASSES, MEANS.ravel() / 4), Start(statistics, 1.0, 0.1, 1.0, 0.5, unknown)
    return DecoPlus(engine, Voter(start, CLASSES), DecoPlus.RECIPE, np.random.default_rng(0))


def fitted() -> Floats:
    """Weights of the first sign alone, from where it is on most known frames."""
    _, _, statistics = labelled()
    known = Known.of(statistics, solve(statistics)).signs(
        draw(np.arange(400) % CLASSES, 5), np.zeros((400, CLASSES), np.float32)
    )[:, 0]
    slope = 2 / known.std()
    return np.array([slope, 0, 0, -slope * np.quantile(known, 0.95), -slope * known.mean()], np.float32)


def images(y: Ints, seed: int = 7) -> Floats:
    return draw(y, seed).reshape(len(y), 3, 2, 2)


def segment(it: DecoPlus, y: Ints, seed: int = 7) -> Segment:
    return Segment(it.observe(images(y, seed)), np.zeros(len(y), np.int64), np.ones(len(y), np.float32), y)


def test_unknown_frames_are_answered_so_counted_and_not_learned_from() -> None:
    it, y = learner(fitted()), np.repeat([0, -1, 2, -1], 32)
    before, given = it.memory.b[-1], segment(it, y)
    assert it.answer(it.model, given.observed).shape == (128, CLASSES)
    unknown = it.strangeness(given.observed)
    assert unknown.shape == (128,)
    assert np.mean(unknown[y < 0] > 0.5) > 0.75
    assert np.mean(unknown[y >= 0] > 0.5) < 0.12
    report = it.learn(given)
    assert report.figures["unknown"] == pytest.approx(64, abs=3)
    assert report.kept == pytest.approx(0.5, abs=0.03)
    assert report.active == [0, 2]
    assert report.pseudo_accuracy == pytest.approx(1, abs=0.04)
    np.testing.assert_allclose(it.memory.b[-1] - before, [32, 0, 32, 0], atol=2)
    assert it.scene is not None
    assert it.scene.shape == (CLASSES + 1,)
    assert it.scene[-1] > 0.9


def test_most_frames_may_be_unknown_and_what_is_learned_stays_that_of_the_known_ones() -> None:
    rng = np.random.default_rng(1)
    scenes = np.where(rng.random(40) < 0.1, rng.integers(0, CLASSES, 40), -1)
    scenes[:4] = np.arange(CLASSES)
    y = np.repeat(scenes, 32)
    mixed, alone = learner(fitted()), learner(fitted())
    for part in np.split(y, 10):
        mixed.learn(segment(mixed, part))
    for part in scenes[scenes >= 0]:
        alone.learn(segment(alone, np.repeat(part, 32)))
    for it in (mixed, alone):
        it.retrain()
    labels = np.arange(400) % CLASSES
    right = [np.mean(it.predict(images(labels, 9)).argmax(axis=1) == labels) for it in (mixed, alone)]
    assert right[0] > right[1] - 0.005


def test_without_weights_nothing_is_unknown() -> None:
    it = learner(None)
    given = segment(it, np.repeat([0, -1], 8))
    unknown = it.strangeness(given.observed)
    assert unknown.shape == (16,)
    assert not unknown.any()
    report = it.learn(given)
    assert (report.figures, report.kept) == ({"unknown": 0}, 1.0)
