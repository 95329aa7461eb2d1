"""Image corruptions with a severity, as a camera meets them: for streams that drift away from the training data.

After Hendrycks & Dietterich 2019, made with OpenCV and numpy. A severity is any number from 0 (the image as it is) on;
1 to 5 are their usual levels. Sizes in pixels grow with the image, so that a level looks alike at 32 and at 224 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from deco_runtime.types import Pixels

Corruption = Callable[[Pixels, float, np.random.Generator], Pixels]
"""(one image (H, W, 3) uint8 B, G, R; severity > 0; generator) → the corrupted image, same shape and type."""


def noise(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """Gaussian noise of a deviation of 8 grey levels per level of severity."""
    return _pixels(image + rng.normal(0, 8 * severity, image.shape))


def blur(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """Gaussian blur of a deviation of 1.2 % of the image's side per level."""
    return _pixels(cv2.GaussianBlur(image, (0, 0), 0.012 * severity * min(image.shape[:2])))


def low_light(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """A fraction 1/(1 + severity/2) of the light, with the noise of a sensor at its limit: 1.5 levels per severity."""
    return _pixels(image / (1 + severity / 2) + rng.normal(0, 1.5 * severity, image.shape))


def contrast(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """Every value drawn towards the image's mean, to 1/(1 + 0.6 · severity) of its distance."""
    mean = image.mean(axis=(0, 1))
    return _pixels(mean + (image - mean) / (1 + 0.6 * severity))


def jpeg(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """Compression at a quality of 100/(1 + severity²/2), 67 at level 1, 7 at level 5; blocks are always 8 pixels."""
    quality = max(1, round(100 / (1 + severity**2 / 2)))
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)


def haze(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """A smooth random veil of light grey, on average severity/(severity + 4) opaque."""
    height, width = image.shape[:2]
    coarse = rng.random((4, 4), np.float32)
    veil = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 1)[..., None]
    opaque = np.minimum(2 * veil * severity / (severity + 4), 0.95)
    return _pixels(image * (1 - opaque) + 220 * opaque)


def _pixels(values: np.ndarray) -> Pixels:
    pixels: Pixels = np.rint(values).clip(0, 255).astype(np.uint8)
    return pixels


CORRUPTIONS: dict[str, Corruption] = {c.__name__: c for c in (noise, blur, low_light, contrast, jpeg, haze)}


def corrupt(pixels: Pixels, severity: np.ndarray, rng: np.random.Generator) -> Pixels:
    """Each image (n, H, W, 3) under one of CORRUPTIONS, drawn at random, at its severity (n,); 0 leaves it alone."""
    kinds = list(CORRUPTIONS.values())
    drawn = rng.integers(0, len(kinds), len(pixels))
    result = pixels.copy()
    for i in np.flatnonzero(severity > 0):
        result[i] = kinds[drawn[i]](pixels[i], float(severity[i]), rng)
    return result
