"""The report's figures against independent ones: scikit-learn's, and regressions that really leave pictures out."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import numpy as np
import pytest

metrics = pytest.importorskip("sklearn.metrics")
linear_model = pytest.importorskip("sklearn.linear_model")

from deco_export.report import accuracy, curve, hurt  # noqa: E402
from deco_export.report.gather import drawn, penalty  # noqa: E402
from deco_runtime.learning.regression import with_constant  # noqa: E402
from deco_runtime.learning.vote import one_hot  # noqa: E402


def clusters(
    n: int, classes: int, size: int, apart: float, seed: int, of_take: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """φ (n, size), labels and takes (n,) of classes around means; images of a take lie near each other."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).standard_normal((classes, size)) * apart
    takes = np.arange(n) // of_take
    labels = takes % classes
    of_takes = rng.standard_normal((takes.max() + 1, size))[takes]
    phi = means[labels] + of_takes + (0.2 * rng.standard_normal((n, size)) if of_take > 1 else 0)
    return phi.astype(np.float32), labels.astype(np.int64), takes.astype(np.int64)


def test_accuracy_and_confusions_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(5, 300, p=(0.5, 0.2, 0.15, 0.1, 0.05))
    answers = np.where(rng.random(300) < 0.7, labels, rng.integers(0, 5, 300))
    takes = np.arange(300)
    shares = accuracy.by_class(answers == labels, labels, takes, 7)
    assert shares[5:] == (None, None)
    found = accuracy.balanced(shares)
    assert found is not None
    assert found.value == pytest.approx(metrics.balanced_accuracy_score(labels, answers))
    assert (found.images, found.takes) == (300, 300)
    table = accuracy.confused(answers, labels, 7)
    np.testing.assert_array_equal(table, metrics.confusion_matrix(labels, answers, labels=range(7)))
    assert accuracy.share(np.zeros(0, bool), np.zeros(0, np.int64)) is None
    assert accuracy.balanced([None, None]) is None


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    assert accuracy.wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Newcombe 1998, method 3
    assert accuracy.wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    low, high = accuracy.wilson(0.0, 1)
    assert (low, high) == pytest.approx((0, 0.7935), abs=1e-4)


def test_takes_of_uneven_size_count_as_fewer() -> None:
    assert accuracy.effective(np.repeat(np.arange(8), 30)) == pytest.approx(8)
    uneven = accuracy.effective(np.repeat([0, 1, 2], [100, 1, 1]))
    assert 1 < uneven < 1.1


@pytest.mark.parametrize(("classes", "of_class", "of_take"), [(10, 4, 25), (43, 1, 30), (3, 30, 1)])
def test_the_balanced_interval_holds_what_is_true_of_takes(classes: int, of_class: int, of_take: int) -> None:
    """Images of one take are all right or all wrong, as the interval takes them to be."""
    rng = np.random.default_rng(1)
    truth = rng.uniform(0.6, 1, classes)
    takes = np.repeat(np.arange(classes * of_class), of_take)
    labels = (takes // of_class).astype(np.int64)
    held = 0
    for _ in range(400):
        right = (rng.random(classes * of_class) < np.repeat(truth, of_class))[takes]
        found = accuracy.balanced(accuracy.by_class(right, labels, takes, classes))
        assert found is not None
        held += found.low <= truth.mean() <= found.high
    assert held >= 0.93 * 400


@pytest.mark.parametrize(("n", "size", "of_take"), [(120, 6, 1), (120, 6, 4), (60, 100, 3), (90, 5, 15)])
def test_leaving_out_by_formula_is_really_leaving_out(n: int, size: int, of_take: int) -> None:
    """Takes larger than φ (15 images, 6 columns) too, which are solved another way."""
    phi, y, takes = clusters(n, 3, size, 1.0, 0, of_take)
    strength = 0.05
    found = hurt.left_out(phi, y, takes, 3, strength)
    w = hurt.weights(y, 3)
    z, t = with_constant(phi).astype(np.float64), one_hot(y, 3).astype(np.float64)
    ridge = strength * np.trace((z * w[:, None]).T @ z) / z.shape[1]
    for take in np.unique(takes):
        rest, own = takes != take, takes == take
        model = linear_model.Ridge(ridge, fit_intercept=False, solver="svd")
        model.fit(z[rest], t[rest], sample_weight=w[rest])
        np.testing.assert_allclose(found[own], model.predict(z[own]), atol=2e-5)


def test_a_class_of_one_take_is_left_out_picture_by_picture() -> None:
    phi, y, takes = clusters(60, 3, 5, 2.0, 0)
    takes = np.where(y == 2, 1000, takes)
    single = np.arange(60)
    found, expected = (hurt.left_out(phi, y, each, 3, 0.02) for each in (takes, single))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_all_classes_count_alike_however_many_pictures_they_have() -> None:
    weights = hurt.weights(np.array([0, 0, 0, 2]), 4)
    assert weights.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])


def test_planted_wrong_labels_come_first_and_are_doubted_clearly() -> None:
    phi, y, takes = clusters(500, 5, 20, 1.5, 3)
    wrong = np.random.default_rng(0).choice(500, 15, replace=False)
    given = y.copy()
    given[wrong] = (given[wrong] + 1) % 5
    found, agreed = hurt.disputed(hurt.left_out(phi, given, takes, 5, 0.01), given, takes)
    assert {d.index for d in found[:15]} == set(wrong.tolist())
    assert all(d.clearly and d.says == y[d.index] for d in found[:15])
    assert not any(d.clearly for d in found[15:])
    assert agreed == pytest.approx((500 - len(found)) / 500)


def test_a_take_that_is_labelled_wrong_is_found_whole_and_shown_once() -> None:
    phi, y, takes = clusters(600, 4, 20, 1.5, 5, of_take=10)
    given = np.where(takes == 7, 0, y)
    assert y[takes == 7][0] == 3
    found, _ = hurt.disputed(hurt.left_out(phi, given, takes, 4, 0.01), given, takes)
    assert takes[found[0].index] == 7
    assert (found[0].says, found[0].take, found[0].clearly) == (3, (10, 10), True)
    assert len({int(takes[d.index]) for d in found}) == len(found)


def test_nothing_is_doubted_clearly_by_who_knows_little() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    phi = rng.standard_normal((300, 10)).astype(np.float32)  # says nothing of the classes
    found, agreed = hurt.disputed(hurt.left_out(phi, y, np.arange(300), 3, 0.01), y, np.arange(300))
    assert len(found) > 100
    assert agreed < 0.5
    assert not any(d.clearly for d in found)
    phi, y, takes = clusters(1500, 5, 20, 0.35, 0)  # overlapping classes, of which some are sure all the same
    found, agreed = hurt.disputed(hurt.left_out(phi, y, takes, 5, 0.01), y, takes)
    assert 0.5 < agreed < 0.8
    assert any(d.p > 0.8 for d in found)
    assert not any(d.clearly for d in found)
    phi, y, takes = clusters(30, 10, 10, 3.0, 0)  # three takes of each class
    y = y.copy()
    y[0] = 1
    found, _ = hurt.disputed(hurt.left_out(phi, y, takes, 10, 0.01), y, takes)
    assert found[0].index == 0
    assert not found[0].clearly


def test_parts_are_nested_and_hold_whole_takes_of_every_class() -> None:
    _, y, takes = clusters(400, 4, 2, 1.0, 0, of_take=5)
    parts = curve.nested(y, takes, np.random.default_rng(0))
    for smaller, larger in pairwise(parts):
        assert set(smaller) < set(larger)
    for share, part in zip(curve.SHARES, parts, strict=True):
        for c in range(4):
            own = np.unique(takes[part][y[part] == c])
            assert len(own) == ceil(share * 20)
            assert np.isin(takes, own).sum() == (y[part] == c).sum()
    assert parts[-1].tolist() == list(range(400))


@pytest.mark.parametrize("b", [0.1, 0.3, 0.6])
def test_the_power_of_a_known_law_is_found(b: float) -> None:
    counts = np.array([40.0, 80, 160, 320])
    found, spread = curve.power(counts, 0.8 * counts**-b)
    assert found == pytest.approx(b)
    assert spread == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("b", [0.15, 0.5])
def test_a_curve_that_follows_a_law_is_continued_by_it(b: float) -> None:
    rng = np.random.default_rng(0)
    counts, m = np.array([100.0, 200, 400, 800]), 4000
    hard = rng.random(m)  # an image is right from so many takes on
    right = np.stack([np.stack([hard > 0.5 * (n / 100) ** -b] * curve.DRAWS) for n in counts])
    made = curve.Curve(counts, right, np.arange(m) % 4, np.arange(m), 4)
    found = curve.forecast(made, rng)
    assert found.power == pytest.approx(b, abs=0.12)
    assert found.low <= 2**-b <= found.high
    assert found.high - found.low < 0.3


def test_few_held_out_takes_leave_a_wide_range_and_fewer_none() -> None:
    phi, y, takes = clusters(240, 3, 8, 0.5, 0)
    many, few, none = ((phi[:n], y[:n], takes[:n]) for n in (120, 15, 9))
    rng = np.random.default_rng(0)
    train = phi[120:], y[120:], takes[120:]
    wide, narrow = (curve.measured(train, held, 3, rng) for held in (few, many))
    assert wide is not None
    assert narrow is not None
    spread = [curve.forecast(each, rng) for each in (wide, narrow)]
    assert spread[0].high - spread[0].low >= spread[1].high - spread[1].low - 0.02
    assert curve.measured(train, none, 3, rng) is None
    one_take = phi[120:], y[120:], y[120:]
    assert curve.measured(one_take, many, 3, rng) is None


def test_the_class_that_learns_most_is_named() -> None:
    counts, labels = np.array([10.0, 20, 40, 80]), np.repeat([0, 1, 2], 20)
    wrong = {0: (0.4, 0.4, 0.4, 0.4), 1: (0.8, 0.7, 0.6, 0.5), 2: (0.1, 0.0, 0.0, 0.0)}
    right = np.zeros((4, curve.DRAWS, 60), bool)
    for c, shares in wrong.items():
        for s, share in enumerate(shares):
            right[s, :, 20 * c : 20 * c + round(20 * (1 - share))] = True
    found = curve.forecast(curve.Curve(counts, right, labels, np.arange(60), 3), np.random.default_rng(0))
    assert found.most == (1,)


def test_the_balanced_error_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.choice(3, 90, p=(0.6, 0.3, 0.1)), rng.integers(0, 3, 90)
    found = curve.error(answers == labels, labels, np.ones(90))
    assert float(found) == pytest.approx(1 - metrics.balanced_accuracy_score(labels, answers))


def test_a_sample_holds_as_many_takes_as_it_can() -> None:
    takes = np.repeat([5, 6, 7], [100, 2, 1])
    rng = np.random.default_rng(0)
    assert sorted(takes[drawn(takes, 3, rng)]) == [5, 6, 7]
    assert np.bincount(takes[drawn(takes, 10, rng)])[5:].tolist() == [7, 2, 1]
    assert drawn(takes, 500, rng).tolist() == list(range(103))
    assert len(drawn(np.zeros(0, np.int64), 5, rng)) == 0


def test_the_penalty_has_no_jump_where_images_become_more_than_axes() -> None:
    assert penalty(100, 100) == pytest.approx(penalty(101, 100), rel=0.02)
    assert penalty(10, 100) == penalty(100, 100) > penalty(1000, 100) > 0.01
