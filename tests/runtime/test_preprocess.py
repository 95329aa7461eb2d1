"""From camera pixels to network input: cut, scaled, colours in order, normalised."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.preprocess import Preprocessing, normalise, preprocess, resize
from deco_runtime.types import Pixels
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

PLAIN = Preprocessing(4, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
IMAGENET = Preprocessing(4, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

images = npst.arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3)))


def coordinates(height: int, width: int) -> Pixels:
    """Every pixel holds its own row in blue and column in green; red is 200."""
    pixels = np.full((height, width, 3), 200, np.uint8)
    pixels[..., 0] = np.arange(height)[:, None]
    pixels[..., 1] = np.arange(width)[None, :]
    return pixels


def test_colours_come_in_the_order_red_green_blue() -> None:
    x = preprocess(np.full((4, 4, 3), (0, 51, 255), np.uint8), PLAIN)
    assert x.shape == (3, 4, 4)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[0], 1.0)  # red, the last of B, G, R
    np.testing.assert_allclose(x[1], 0.2)
    np.testing.assert_allclose(x[2], 0.0)


@pytest.mark.parametrize(
    ("height", "width", "top", "left"),
    [(4, 10, 0, 3), (10, 4, 3, 0), (4, 4, 0, 0), (4, 7, 0, 1), (7, 4, 1, 0), (4, 5, 0, 0)],
)
def test_the_centred_square_is_cut_out(height: int, width: int, top: int, left: int) -> None:
    pixels = coordinates(height, width)
    np.testing.assert_array_equal(resize(pixels, 4), pixels[top : top + 4, left : left + 4])


@pytest.mark.parametrize(("height", "width"), [(32, 60), (60, 32)])
def test_cutting_comes_before_scaling(height: int, width: int) -> None:
    """What lies outside of the square does not bleed in."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    top, left = (height - 32) // 2, (width - 32) // 2
    pixels[top : top + 32, left : left + 32] = 10
    for size in (8, 32, 50):
        scaled = resize(pixels, size)
        assert scaled.shape == (size, size, 3)
        assert scaled.dtype == np.uint8
        assert (scaled == 10).all()


def test_shrinking_a_checkerboard_gives_grey() -> None:
    """Picking single pixels, or interpolating between four of them, would give black, white or stripes."""
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    for size in (32, 16, 8):
        grey = resize(np.dstack([board] * 3), size).astype(int)
        assert np.abs(grey - 127.5).max() <= 1


def test_shrinking_averages_areas() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    areas = pixels.astype(np.float64).reshape(8, 3, 8, 3, 3).mean(axis=(1, 3))
    assert np.abs(resize(pixels, 8) - areas).max() <= 1


def test_enlarging_interpolates() -> None:
    ramp = np.zeros((2, 2, 3), np.uint8)
    ramp[:, 1] = 200
    wide = resize(ramp, 8)[0, :, 0].astype(int)
    assert (wide[0], wide[-1]) == (0, 200)
    assert (np.diff(wide) >= 0).all()
    assert len(set(wide)) > 2  # repeating pixels would give two values


@given(images, st.integers(1, 24))
def test_any_image_of_one_colour_stays_it(pixels: Pixels, size: int) -> None:
    pixels[:] = pixels[0, 0]
    scaled = resize(pixels, size)
    assert scaled.shape == (size, size, 3)
    np.testing.assert_array_equal(scaled, np.broadcast_to(pixels[0, 0], scaled.shape))


@given(images, st.integers(1, 24))
def test_scaling_stays_between_darkest_and_brightest(pixels: Pixels, size: int) -> None:
    kept = pixels.copy()
    scaled = resize(pixels, size)
    assert scaled.shape == (size, size, 3)
    assert pixels.min() <= scaled.min() <= scaled.max() <= pixels.max()
    np.testing.assert_array_equal(pixels, kept)


@given(
    npst.arrays(np.uint8, st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 5), st.just(3))),
    st.tuples(*[st.floats(0, 1)] * 3),
    st.tuples(*[st.floats(0.05, 1)] * 3),
)
def test_normalising_is_the_formula_in_float64(
    pixels: Pixels, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    x = normalise(pixels, Preprocessing(5, mean, std))
    expected = (pixels[..., ::-1] / 255.0 - np.asarray(mean)) / np.asarray(std)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    np.testing.assert_allclose(x, np.moveaxis(expected, 3, 1), rtol=1e-5, atol=1e-5)


def test_a_batch_is_its_images_one_by_one() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    batch = normalise(pixels, IMAGENET)
    assert batch.shape == (5, 3, 4, 4)
    for image, x in zip(pixels, batch, strict=True):
        assert x.tobytes() == normalise(image, IMAGENET).tobytes() == preprocess(image, IMAGENET).tobytes()


def test_preprocessing_is_resizing_then_normalising() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    assert preprocess(frame, IMAGENET).tobytes() == normalise(resize(frame, 4), IMAGENET).tobytes()
