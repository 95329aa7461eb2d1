"""What every use of cv2.VideoCapture shares."""

from __future__ import annotations

import os

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.folder import silence_opencv
from deco_runtime.types import Pixels

# FFmpeg prints a line for every damaged packet; read by OpenCV when it first uses FFmpeg. −8 is AV_LOG_QUIET.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
silence_opencv()


def to_bgr(pixels: Pixels) -> Pixels:
    """(height, width), (height, width, 1) or (height, width, 4) uint8 → (height, width, 3) uint8 B, G, R."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    if channels == 3:
        return pixels
    bgr: Pixels = cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR if channels == 1 else cv2.COLOR_BGRA2BGR)
    return bgr


def refuse_no_text(name: str) -> None:
    """Raise SourceError for a name of other bytes than UTF-8, on which OpenCV crashes."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"expected a name in UTF-8, found {name!r}: OpenCV cannot open others, rename the file or its folder"
        ) from error


def stream_backend() -> int:
    """FFmpeg where this OpenCV has it; else whatever it has."""
    has_ffmpeg = cv2.CAP_FFMPEG in cv2.videoio_registry.getStreamBackends()
    return int(cv2.CAP_FFMPEG if has_ffmpeg else cv2.CAP_ANY)
