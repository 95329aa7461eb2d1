"""From camera pixels to network input: the one implementation that training and device share."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from deco_runtime.types import Floats, Pixels


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the network's input; recorded in the bundle.

    size: side of the square input in pixels.
    mean, std: per channel in the order R, G, B, of pixel values scaled to 0 … 1.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def resize(pixels: Pixels, size: int) -> Pixels:
    """Cut the largest centred square out of an image and scale it to (size, size, 3), still uint8 B, G, R.

    Shrinking averages areas (INTER_AREA, no aliasing), enlarging interpolates linearly.
    """
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[top : top + side, left : left + side]
    if side == size:
        return square
    method = cv2.INTER_AREA if side > size else cv2.INTER_LINEAR
    scaled: Pixels = cv2.resize(square, (size, size), interpolation=method)
    return scaled


def normalise(pixels: Pixels, preprocessing: Preprocessing) -> Floats:
    """(…, size, size, 3) uint8 B, G, R → (…, 3, size, size) float32 R, G, B, scaled to 0 … 1, (x − mean) / std."""
    rgb = pixels[..., ::-1].astype(np.float32) / np.float32(255)
    scaled = (rgb - np.asarray(preprocessing.mean, np.float32)) / np.asarray(preprocessing.std, np.float32)
    return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))


def preprocess(pixels: Pixels, preprocessing: Preprocessing) -> Floats:
    """One frame (height, width, 3) uint8 B, G, R of any size → (3, size, size) float32 for the network."""
    return normalise(resize(pixels, preprocessing.size), preprocessing)
