"""Corruptions: nothing at 0, more with severity, alike at every image size."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")

from deco_benchmarks.corruptions import CORRUPTIONS, corrupt
from deco_benchmarks.datasets import load


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Eight real digits, in colour, 32 pixels."""
    grey = load("digits", 32, seed=0).train.pixels[:8]
    return np.stack([cv2.applyColorMap(g[..., 0], cv2.COLORMAP_JET) for g in grey])


def distance(name: str, images: np.ndarray, severity: float) -> float:
    """Root mean square difference to the originals, in grey levels."""
    rng = np.random.default_rng(0)
    made = np.stack([CORRUPTIONS[name](image, severity, rng) for image in images])
    assert made.dtype == np.uint8
    assert made.shape == images.shape
    return float(np.sqrt(np.mean((made.astype(float) - images) ** 2)))


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_more_severity_is_more_change(name: str, images: np.ndarray) -> None:
    found = [distance(name, images, severity) for severity in (0.01, 1, 2, 3, 4, 5)]
    assert found == sorted(found)
    assert found[1] > 1
    assert found[5] > 1.5 * found[1]


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"jpeg"}))
def test_a_level_is_alike_at_another_size(name: str, images: np.ndarray) -> None:
    large = np.stack([cv2.resize(image, (128, 128), interpolation=cv2.INTER_CUBIC) for image in images])
    assert distance(name, large, 3) == pytest.approx(distance(name, images, 3), rel=0.6)


def test_each_image_has_its_own_severity_and_zero_is_none(images: np.ndarray) -> None:
    severity = np.array([0, 0, 1, 2, 3, 4, 5, 0.0])
    made = corrupt(images, severity, np.random.default_rng(0))
    same = (made == images).reshape(8, -1).all(axis=1)
    assert same.tolist() == (severity == 0).tolist()
    assert np.array_equal(made, corrupt(images, severity, np.random.default_rng(0)))
    assert not np.array_equal(made, corrupt(images, severity, np.random.default_rng(1)))
