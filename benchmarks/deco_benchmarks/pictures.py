"""Condensed images as pictures again."""

from __future__ import annotations

import numpy as np
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Floats, Pixels


def to_pixels(x: Floats, preprocessing: Preprocessing) -> Pixels:
    """Undo `normalise`: (n, 3, size, size) float32 → (n, size, size, 3) uint8 B, G, R; values outside are cut off."""
    rgb = np.moveaxis(x, 1, -1) * np.asarray(preprocessing.std, np.float32) + np.asarray(preprocessing.mean, np.float32)
    pixels: Pixels = np.clip(np.rint(rgb * 255), 0, 255).astype(np.uint8)[..., ::-1]
    return np.ascontiguousarray(pixels)
