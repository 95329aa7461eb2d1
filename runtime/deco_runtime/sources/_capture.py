"""Live pictures through cv2.VideoCapture: opened and read in the capture process, and nowhere else."""

from __future__ import annotations

import time
from typing import Any

import cv2
import numpy as np

from deco_runtime.errors import SourceError
from deco_runtime.sources._opencv import refuse_no_text, stream_backend, to_bgr
from deco_runtime.types import Pixels

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_MJPG = int.from_bytes(b"MJPG", "little")


def open_url(url: str, shown: str) -> Capture:
    """Receive a stream. shown: the URL without its password. Raises SourceError if OpenCV cannot open it."""
    refuse_no_text(url)
    capture = cv2.VideoCapture(url, stream_backend())
    if not capture.isOpened():
        raise SourceError(
            f"expected a video stream at {shown}, found none that OpenCV can open: check the address, "
            "that the sender is running, and the network between"
        )
    return Capture(capture, shown)


class Capture:
    """An open cv2.VideoCapture, picture by picture.

    format: width, height, fps and fourcc, as OpenCV reads them back from the device.
    """

    def __init__(self, capture: cv2.VideoCapture, name: str) -> None:
        self._capture, self._name = capture, name
        fourcc, fps = int(capture.get(cv2.CAP_PROP_FOURCC)), capture.get(cv2.CAP_PROP_FPS)
        self.format: dict[str, Any] = {
            "width": int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)),
            "height": int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)),
            "fps": round(fps, 2) if 0 < fps < 1e6 else None,
            "fourcc": fourcc.to_bytes(4, "little").decode("ascii", "replace") if 0 < fourcc < 1 << 32 else None,
        }
        # Of half a JPEG OpenCV's capture makes a whole picture, with what the last one showed in the lower half, and
        # says nothing. So the JPEGs are taken as they come, and decoded here.
        if fourcc == _MJPG and capture.getBackendName() == "FFMPEG":
            capture.set(cv2.CAP_PROP_FORMAT, -1)
        elif fourcc == _MJPG and capture.getBackendName() == "V4L2":
            capture.set(cv2.CAP_PROP_CONVERT_RGB, 0)

    def read(self) -> tuple[Pixels | None, float]:
        """The next picture, None for a damaged one, and when it was grabbed. Raises SourceError when none will come."""
        if not self._capture.grab():
            raise SourceError(
                f"expected {self._name} to keep delivering frames, found that it ended or the connection "
                "dropped: check the plug or the network"
            )
        arrived = time.monotonic()
        ok, pixels = self._capture.retrieve()
        return (decode(pixels) if ok else None), arrived

    def close(self) -> None:
        self._capture.release()


def decode(delivered: Pixels) -> Pixels | None:
    """What OpenCV delivers, a picture or the (1, n) bytes of a JPEG, as (height, width, 3) uint8 B, G, R.

    None for a JPEG that is cut short or cannot be decoded.
    """
    if len(delivered) > 1 or delivered.size < 4:
        return to_bgr(delivered)
    data = np.ascontiguousarray(delivered).reshape(-1)
    raw = data.tobytes()
    if not raw.startswith(_JPEG_START) or _JPEG_END not in raw:
        return None
    try:
        pixels: Pixels | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    return pixels
