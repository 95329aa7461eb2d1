"""From camera pixels to network input: the one implementation that training and device share."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util

import cv2
import numpy as np

from deco_runtime.errors import RuntimeMissingError
from deco_runtime.types import Floats, Pixels

AREA = "area"
PILLOW = ("bilinear", "bicubic")
METHODS = (AREA, *PILLOW)
"""How a picture is scaled. area: by OpenCV, which averages areas where it shrinks and interpolates linearly where it
enlarges. The other two are Pillow's, whose filters grow with the shrinking: most public networks were trained with
these, and no function of OpenCV gives the same."""


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the network's input; recorded in the bundle.

    size: side of the square input in pixels.
    mean, std: per channel in the order R, G, B, of pixel values scaled to 0 … 1.
    shorter: what the picture's shorter side is scaled to before the centre of that size is cut out, in pixels and at
    least `size`; None to cut the largest centred square out first and scale that. method: one of METHODS.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    shorter: int | None = None
    method: str = AREA


def check_method(method: str) -> None:
    """Raise RuntimeMissingError where pictures cannot be scaled this way here."""
    if method in PILLOW and util.find_spec("PIL") is None:
        raise RuntimeMissingError(
            f"expected Pillow for pictures scaled by its {method} filter, as this bundle's network was trained with, "
            "but it is not installed; run pip install 'deco-edge[device]' or pip install pillow"
        )


def fitted(pixels: Pixels, preprocessing: Preprocessing) -> Pixels:
    """An image of any size scaled and cut to (size, size, 3) as the network takes it, still uint8 B, G, R."""
    size, shorter, method = preprocessing.size, preprocessing.shorter, preprocessing.method
    if shorter is None:
        return resize(pixels, size, method)
    height, width = pixels.shape[:2]
    # The longer side is rounded down and the middle to the nearest, as torchvision does, and so does timm.
    if height <= width:
        scaled = scale(pixels, shorter * width // height, shorter, method)
    else:
        scaled = scale(pixels, shorter, shorter * height // width, method)
    top, left = (round((side - size) / 2) for side in scaled.shape[:2])
    return scaled[top : top + size, left : left + size]


def resize(pixels: Pixels, size: int, method: str = AREA) -> Pixels:
    """Cut the largest centred square out of an image and scale it to (size, size, 3), still uint8 B, G, R."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return scale(pixels[top : top + side, left : left + side], size, size, method)


def scale(pixels: Pixels, width: int, height: int, method: str) -> Pixels:
    """Scale an image (h, w, 3) to (height, width, 3) uint8 by one of METHODS."""
    if pixels.shape[:2] == (height, width):
        return pixels
    if method == AREA:
        shrinks = pixels.shape[0] * pixels.shape[1] > width * height
        opencv: Pixels = cv2.resize(
            pixels, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        )
        return opencv
    from PIL import Image  # only bundles of such networks need it

    picture = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(picture.resize((width, height), Image.Resampling[method.upper()]))


def normalise(pixels: Pixels, preprocessing: Preprocessing) -> Floats:
    """(…, size, size, 3) uint8 B, G, R → (…, 3, size, size) float32 R, G, B, scaled to 0 … 1, (x − mean) / std."""
    rgb = pixels[..., ::-1].astype(np.float32) / np.float32(255)
    scaled = (rgb - np.asarray(preprocessing.mean, np.float32)) / np.asarray(preprocessing.std, np.float32)
    return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))


def preprocess(pixels: Pixels, preprocessing: Preprocessing) -> Floats:
    """One frame (height, width, 3) uint8 B, G, R of any size → (3, size, size) float32 for the network."""
    return normalise(fitted(pixels, preprocessing), preprocessing)
