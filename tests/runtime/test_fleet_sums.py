"""What leaves a device: packed and unpacked, added in any order, and what nobody adds up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from deco_runtime.fleet.sums import HOW, complaint, contradiction, frames, minus, packed, unpacked
from deco_runtime.learning.regression import Statistics, add, solve, square, together, upper
from deco_runtime.types import Floats, Ints
from hypothesis import given
from hypothesis import strategies as st

SIZE, CLASSES = 7, 3


def of(seed: int, count: int = 200, scale: float = 1.0) -> tuple[Floats, Floats]:
    """Frames φ (n, D) around a mean, and shares of classes t (n, K) that sum to at most 1."""
    rng = np.random.default_rng(seed)
    phi = (scale * (rng.standard_normal((count, SIZE)) + np.linspace(-1, 1, SIZE))).astype(np.float32)
    t = rng.dirichlet(np.full(CLASSES + 1, 0.3), count)[:, :CLASSES].astype(np.float32)
    return phi, t


def sums(*seeds: int, **more: Any) -> Statistics:
    found = Statistics.zero(SIZE, CLASSES)
    for seed in seeds:
        found = add(found, *of(seed, **more))
    return found


KNOWN = sums(1000)


@given(st.sampled_from(HOW), st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e3]))
def test_what_is_unpacked_is_what_was_packed(how: str, seed: int, scale: float) -> None:
    """To the steps of its numbers; the counts exactly; and packed again it is the very same."""
    sent = sums(seed, scale=scale)
    arrays = packed(sent, how)
    got = unpacked(arrays, how, SIZE + 1, CLASSES)
    step = {"fp32": 0.0, "fp16": 2**-11, "int8": 0.5 / 127}[how] + 1e-6
    whole, found = square(sent), square(got)
    root = np.sqrt(np.diag(whole))
    assert (np.abs(found - whole)[:-1, :-1] <= step * np.outer(root, root)[:-1, :-1]).all()
    n = sent.b[-1].astype(np.float64)
    assert (np.abs(got.b - sent.b) <= step * root[:, None] * np.sqrt(n) + 1e-6 * root.max()).all()
    np.testing.assert_array_equal(got.b[-1], sent.b[-1])
    np.testing.assert_allclose(found[:, -1], got.b.sum(axis=1), rtol=1e-5, atol=1e-5 * root.max())
    again = packed(got, how)
    assert again.keys() == arrays.keys()
    assert all(again[name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_smaller_numbers_are_fewer_bytes() -> None:
    sent = add(Statistics.zero(300, 10), *(np.ones((9, n), np.float32) for n in (300, 10)))
    size = {how: sum(array.nbytes for array in packed(sent, how).values()) for how in HOW}
    assert size["int8"] < 0.55 * size["fp16"] < 0.3 * size["fp32"]


@given(st.permutations(range(5)))
def test_sums_are_the_same_in_any_order(order: list[int]) -> None:
    found = KNOWN
    for seed in order:
        found = together(found, sums(seed))
    expected = square(KNOWN) + sum(square(sums(seed)) for seed in range(5))
    np.testing.assert_allclose(square(found), expected, rtol=1e-5, atol=1e-4)
    back = minus(found, KNOWN)
    np.testing.assert_allclose(square(back), expected - square(KNOWN), rtol=1e-5, atol=1e-3)
    assert frames(back) == pytest.approx(sum(of(seed)[1].sum() for seed in range(5)), rel=1e-5)


@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 1.7]))
def test_what_frames_give_is_added_up(seed: int, scale: float) -> None:
    assert complaint(sums(seed, scale=scale), KNOWN, least=20) is None


def changed(name: str, at: Any, value: float) -> Statistics:
    sent = sums(0)
    array = getattr(sent, name).copy()
    array[at] = value
    return replace(sent, **{name: array})


def in_a(row: int, column: int) -> int:
    """The place of A_ij in the upper triangle."""
    places = np.zeros((SIZE + 1, SIZE + 1), np.int64)
    places[upper(SIZE + 1)] = np.arange((SIZE + 1) * (SIZE + 2) // 2)
    return int(places[row, column])


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (changed("a", 3, np.nan), "not finite"),
        (changed("b", (2, 1), np.inf), "not finite"),
        (changed("b", (-1, 1), -50), "below none"),
        (changed("a", in_a(2, 2), -5), "squares below 0"),
        (changed("a", in_a(2, 4), 1e5), "larger than their squares"),
        (changed("b", (2, 1), 1e5), "larger than its frames"),
        (changed("b", (-1, 1), 1e4), "larger than its frames"),
        (changed("a", in_a(SIZE, SIZE), 1e4), "of no class"),
        (sums(0, count=5), "frames, where at least 20 have to be together"),
        (Statistics.zero(SIZE, CLASSES), "is of 0 frames"),
        (sums(0, scale=20.0), "times as large as labelled images have"),
        (Statistics(-KNOWN.a, -KNOWN.b), "below none"),
    ],
)
def test_what_no_frames_give_is_refused(sent: Statistics, words: str) -> None:
    found = complaint(sent, KNOWN, least=20)
    assert words in str(found)


@pytest.mark.parametrize("how", HOW)
def test_arrays_of_another_kind_are_no_sums(how: str) -> None:
    arrays = packed(sums(0), how)
    with pytest.raises(ValueError, match="not those of the bundle"):
        unpacked(arrays, how, SIZE + 2, CLASSES)
    with pytest.raises(ValueError, match="not those of the bundle"):
        unpacked(arrays, HOW[HOW.index(how) - 1], SIZE + 1, CLASSES)
    for name, array in arrays.items():
        with pytest.raises(ValueError, match="not those of the bundle"):
            unpacked({**arrays, name: array.astype(np.float64)}, how, SIZE + 1, CLASSES)
        with pytest.raises(ValueError, match="not those of the bundle"):
            unpacked({key: each for key, each in arrays.items() if key != name}, how, SIZE + 1, CLASSES)


@given(st.integers(0, 10**6), st.sampled_from([1, 1000]), st.integers(0, 2))
def test_labels_that_contradict_the_labelled_images_are_seen(seed: int, scale: int, only: int) -> None:
    """Of all classes or of one alone, of few frames or of many; and what was voted honestly contradicts nothing."""
    rng = np.random.default_rng(seed)
    means = 3 * np.eye(CLASSES, SIZE)

    def drawn(labels: Ints) -> Statistics:
        phi = means[labels] + rng.normal(0, 1, (len(labels), SIZE))
        return add(Statistics.zero(SIZE, CLASSES), phi.astype(np.float32), np.eye(CLASSES, dtype=np.float32)[labels])

    w = solve(drawn(rng.integers(CLASSES, size=600)))
    for honest in (drawn(rng.integers(CLASSES, size=90)), drawn(np.full(30, only))):
        many = Statistics(honest.a * scale, honest.b * scale)
        assert contradiction(many, w) is None
        assert "100% contradict" in str(contradiction(Statistics(many.a, np.roll(many.b, 1, axis=1)), w))
    half = Statistics(many.a, (many.b + np.roll(many.b, 1, axis=1)) / 2)  # of one class
    assert "50% contradict the labelled images" in str(contradiction(half, w))
