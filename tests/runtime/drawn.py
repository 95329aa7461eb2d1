"""Pictures of something that no bundle of digits knows."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from deco_runtime.preprocess import fitted
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Pixels


def box(number: int, side: int = 64) -> Pixels:
    """The outline of a box (side, side, 3), a little different for every number."""
    rng = np.random.default_rng(number)
    picture = np.full((side, side, 3), rng.integers(0, 20), np.uint8)
    x, y = (int(v) for v in rng.integers(4, 14, 2))
    wide, high = (int(v) for v in rng.integers(36, 46, 2))
    cv2.rectangle(picture, (x, y), (x + wide, y + high), (int(rng.integers(200, 255)),) * 3, 5)
    return picture


def cross(number: int, side: int = 64) -> Pixels:
    """Two lines from corner to corner, likewise."""
    rng = np.random.default_rng(number)
    picture = np.full((side, side, 3), rng.integers(0, 20), np.uint8)
    a, b, c, d = (int(v) for v in rng.integers(2, 10, 4))
    colour = (int(rng.integers(200, 255)),) * 3
    cv2.line(picture, (a, b), (side - 1 - c, side - 1 - d), colour, 6)
    cv2.line(picture, (side - 1 - c, b), (a, side - 1 - d), colour, 6)
    return picture


def boxes(bundle: Bundle, first: int, count: int) -> Pixels:
    """As the bundle's network takes them, (count, size, size, 3)."""
    return np.stack([fitted(box(first + i), bundle.preprocessing) for i in range(count)])


def crosses(bundle: Bundle, first: int, count: int) -> Pixels:
    """The same of crosses."""
    return np.stack([fitted(cross(first + i), bundle.preprocessing) for i in range(count)])


def folder_of(place: Path, first: int, count: int) -> Path:
    """A folder of pictures of boxes."""
    place.mkdir(parents=True)
    for i in range(first, first + count):
        cv2.imwrite(str(place / f"{i:03}.png"), box(i))
    return place
