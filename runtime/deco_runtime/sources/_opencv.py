"""What every use of cv2.VideoCapture shares."""

from __future__ import annotations

import os

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.pictures.decode import decode_jpeg
from deco_runtime.pictures.folder import silence_opencv
from deco_runtime.types import Pixels

# FFmpeg prints a line for every damaged packet; read by OpenCV when it first uses FFmpeg. −8 is AV_LOG_QUIET.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
silence_opencv()

MJPG = int.from_bytes(b"MJPG", "little")


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


def open_stream(name: str, open_s: float | None = None) -> cv2.VideoCapture:
    """A file or stream by FFmpeg where this OpenCV has it, else by whatever it has; it may turn out not to be open.

    open_s: seconds that FFmpeg may take for it, if not its own.
    Frames come upright and as B, G, R: versions of OpenCV differ in what they do when nobody asks (4.11 turns none).
    """
    backend = stream_backend()
    limited = open_s is not None and backend == cv2.CAP_FFMPEG
    limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(1000 * (open_s or 0))] if limited else []
    capture = cv2.VideoCapture(name, backend, limits)
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
    capture.set(cv2.CAP_PROP_CONVERT_RGB, 1)
    return capture


def deliver_jpegs(capture: cv2.VideoCapture) -> None:
    """Have an open stream of JPEGs give these as they are, (1, n) uint8, and not decoded.

    Of half a JPEG, or one with wrong bytes, OpenCV's capture makes a whole picture and says nothing. `to_picture` does.
    """
    if capture.getBackendName() == "FFMPEG":
        capture.set(cv2.CAP_PROP_FORMAT, -1)
    elif capture.getBackendName() == "V4L2":
        capture.set(cv2.CAP_PROP_CONVERT_RGB, 0)


def to_picture(delivered: Pixels) -> Pixels | None:
    """What OpenCV delivers, a picture or the (1, n) bytes of a JPEG, as (height, width, 3) uint8 B, G, R.

    None for a JPEG that is damaged: cut short, or with wrong bytes that its decoder stumbles over.
    """
    if len(delivered) > 1 or delivered.size < 4:
        return to_bgr(delivered)
    try:
        return decode_jpeg(delivered.tobytes())
    except ValueError:
        return None


def stream_backend() -> int:
    """FFmpeg where this OpenCV has it; else whatever it has."""
    has_ffmpeg = cv2.CAP_FFMPEG in cv2.videoio_registry.getStreamBackends()
    return int(cv2.CAP_FFMPEG if has_ffmpeg else cv2.CAP_ANY)
