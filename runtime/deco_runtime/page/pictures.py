"""What the page shows as pictures: made when somebody looks, once for all who do."""

from __future__ import annotations

import threading

import cv2
import numpy as np

from deco_runtime.preprocess import Preprocessing, scale
from deco_runtime.telemetry.happenings import FramePredicted
from deco_runtime.types import Floats, Ints, Pixels

WIDEST, QUALITY = 640, 75
"""Of the live frame: pixels, and of 100."""
SMALL = 112
"""Longer side of a small picture, in pixels."""
BUFFER_SIDE, BUFFER_GAP = 48, 2
"""Least side of a condensed image on the page, and what is between two, in pixels."""


def jpeg(pixels: Pixels) -> bytes:
    """An image (height, width, 3) uint8 as a JPEG."""
    return bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def at_most(pixels: Pixels, side: int) -> Pixels:
    """The same with its longer side at most so many pixels."""
    height, width = pixels.shape[:2]
    if max(height, width) <= side:
        return pixels
    factor = side / max(height, width)
    return scale(pixels, max(1, round(width * factor)), max(1, round(height * factor)), "area")


def small(pixels: Pixels) -> bytes:
    """A small picture of a frame, as a JPEG."""
    return jpeg(at_most(pixels, SMALL))


class Frames:
    """The newest frame; encoded once for all viewers, and only if there are any."""

    def __init__(self) -> None:
        self._newest: FramePredicted | None = None
        self._encoded: tuple[FramePredicted | None, bytes] = None, b""
        self._lock = threading.Lock()

    def put(self, event: FramePredicted) -> None:
        """A frame was predicted."""
        self._newest = event

    def newest(self, after: FramePredicted | None = None) -> tuple[FramePredicted, bytes] | None:
        """The newest frame and its JPEG; None where there is none but `after`."""
        event = self._newest
        if event is None or event is after:
            return None
        with self._lock:
            if self._encoded[0] is not event:
                self._encoded = event, jpeg(at_most(event.frame.pixels, WIDEST))
            return event, self._encoded[1]


def condensed(x: Floats, y: Ints, preprocessing: Preprocessing) -> Pixels:
    """Condensed images x (n, 3, S, S), as the network takes them, as one picture: a row for each class of y (n,)."""
    mean, std = (np.asarray(each, np.float32).reshape(3, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    values = np.clip((x * std + mean) * 255, 0, 255).astype(np.uint8)[:, ::-1].transpose(0, 2, 3, 1)
    rows, columns = np.unique(y), int(np.bincount(y).max())
    side = values.shape[1] * max(1, -(-BUFFER_SIDE // values.shape[1]))
    step = side + BUFFER_GAP
    sheet = np.zeros((len(rows) * step, columns * step, 3), np.uint8)
    for row, c in enumerate(rows):
        for column, image in enumerate(values[y == c]):
            place = sheet[row * step : row * step + side, column * step : column * step + side]
            place[:] = cv2.resize(image, (side, side), interpolation=cv2.INTER_NEAREST)
    return sheet
