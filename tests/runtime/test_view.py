"""What of pictures is looked at: the geometry against numpy's own, and the ways of writing it."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from deco_runtime.commands.view_options import views
from deco_runtime.errors import SourceError, UsageError
from deco_runtime.sources.view import ROTATIONS, WHOLE, Roi, Rotation, View
from deco_runtime.types import Pixels
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

sides = st.integers(1, 40)


def picture(width: int, height: int) -> Pixels:
    """No two pixels are alike."""
    return np.arange(height * width * 3, dtype=np.uint16).reshape(height, width, 3).astype(np.uint8)


@st.composite
def rectangles(draw: st.DrawFn, limit: int = 40) -> tuple[int, int, int, int]:
    left, top = draw(st.integers(0, limit - 1)), draw(st.integers(0, limit - 1))
    return left, top, draw(st.integers(1, limit)), draw(st.integers(1, limit))


@given(sides, sides, st.sampled_from(ROTATIONS), rectangles())
def test_pixels_are_those_of_a_slice_of_the_turned_picture(
    width: int, height: int, rotate: Rotation, rectangle: tuple[int, int, int, int]
) -> None:
    pixels = picture(width, height)
    turned = np.rot90(pixels, {0: 0, 90: 3, 180: 2, 270: 1}[rotate])
    x, y, w, h = rectangle
    view = View(Roi.parse(f"{x},{y},{w},{h}"), rotate)
    if x + w > turned.shape[1] or y + h > turned.shape[0]:
        with pytest.raises(SourceError) as error:
            view.of(pixels)
        said = one_sentence(str(error.value))
        assert f"found one of {turned.shape[1]}×{turned.shape[0]}" in said
        return
    seen = view.of(pixels)
    np.testing.assert_array_equal(seen, turned[y : y + h, x : x + w])
    assert seen.flags.c_contiguous
    assert seen.dtype == np.uint8


@given(sides, sides, *[st.integers(0, 100)] * 2, *[st.integers(1, 100)] * 2, st.booleans())
def test_shares_are_rounded_to_the_nearest_pixel_and_hold_one_at_least(
    width: int, height: int, x: int, y: int, w: int, h: int, percent: bool
) -> None:
    w, h = min(w, 100 - x), min(h, 100 - y)
    words = [f"{value}%" if percent else f"{value / 100:.2f}" for value in (x, y, w, h)]
    if not w or not h:
        with pytest.raises(UsageError, match="a width and a height above 0"):
            Roi.parse(",".join(words))
        return
    roi = Roi.parse(",".join(words))
    left, top, right, bottom = roi.box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    for first, last, share, size in ((left, right, (x, w), width), (top, bottom, (y, h), height)):
        start, end = Fraction(share[0], 100) * size, Fraction(sum(share), 100) * size
        if last - first > 1:
            assert abs(first - start) <= Fraction(1, 2)
            assert abs(last - end) <= Fraction(1, 2)
    assert Roi.parse(str(roi)) == roi
    seen = View(roi).of(picture(width, height))
    np.testing.assert_array_equal(seen, picture(width, height)[top:bottom, left:right])


@given(st.tuples(*[st.decimals(0, 1, places=9)] * 2), st.tuples(*[st.decimals("0.000000001", 1, places=9)] * 2))
def test_shares_are_read_back_as_they_are_shown(place: tuple[Any, Any], size: tuple[Any, Any]) -> None:
    """The capture process reads them so."""
    size = tuple(min(share, 1 - start) for share, start in zip(size, place, strict=True))
    if min(size) > 0:
        roi = Roi(*map(Fraction, (*place, *size)), shares=True)
        assert Roi.parse(str(roi)) == roi


@given(st.one_of(st.none(), rectangles().map(lambda r: Roi(*map(Fraction, r)))), st.sampled_from(ROTATIONS), sides)
def test_a_view_is_its_figures_and_its_name_tells_it(roi: Roi | None, rotate: Rotation, every: int) -> None:
    view = View(roi, rotate, every)
    assert View.from_figures(**json.loads(json.dumps(view.figures()))) == view
    assert (view.named("v.avi") == "v.avi") == (view == WHOLE) == (not view.figures())


def test_the_whole_view_hands_on_the_picture_itself() -> None:
    pixels = picture(4, 3)
    assert WHOLE.of(pixels) is pixels
    assert View(every=5).of(pixels) is pixels


def test_two_ways_of_writing_a_share_are_one_name() -> None:
    written = ("25%,0,50%,100%", "0.25,0,.5,1", "25%,0.0%, 0.50,100.0%")
    assert {View(Roi.parse(text)).named("v") for text in written} == {"v, roi 25%,0%,50%,100%"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "four numbers"),
        ("1,2,3", "four numbers"),
        ("1,2,3,4,5", "four numbers"),
        ("a,b,c,d", "four numbers"),
        ("-1,0,10,10", "four numbers"),
        ("1e3,0,10,10", "four numbers"),
        ("٣,0,10,10", "four numbers"),
        ("1/2,0,10,10", "four numbers"),
        ("nan,0,10,10", "four numbers"),
        ("0,0,9999999999,1", "four numbers"),
        ("0,0,0,10", "a width and a height above 0"),
        ("0.0,0,0.5,0", "a width and a height above 0"),
        ("0.5,0,0.6,1", "shares of a picture"),
        ("10,10,50%,50%", "shares of a picture"),
        ("0,0,100.5,100", "shares of a picture"),
        ("x" * 500, "four numbers"),
    ],
)
def test_a_roi_that_is_none_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        Roi.parse(text)
    said = str(error.value)
    assert said.startswith("expected ")
    assert words in said
    assert " for --roi, but found " in said
    assert len(said) < 250


def test_one_for_all_or_one_for_each() -> None:
    a, b = Roi.parse("0,0,1,1"), Roi.parse("0,0,2,2")
    assert views(2, [], [], 3) == [View(every=3)] * 2
    assert views(2, [a], ["90"], 1) == [View(a, 90)] * 2
    assert views(2, [a, b], ["0", "180"], 1) == [View(a), View(b, 180)]
    with pytest.raises(UsageError, match="expected one --roi for all pictures, but found 2; leave some out"):
        views(1, [a, b], [], 1)
    with pytest.raises(UsageError, match="one --rotate for all pictures, or 3, one for each camera in its order, but"):
        views(3, [], ["90", "0"], 1)
