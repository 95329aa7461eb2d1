"""Live pictures through cv2.VideoCapture: opened and read in the capture process, and nowhere else."""

from __future__ import annotations

import time
from typing import Any

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.sources._opencv import MJPG, deliver_jpegs, open_stream, refuse_no_text, to_picture
from deco_runtime.types import Pixels


def open_url(url: str, shown: str) -> Capture:
    """Receive a stream. shown: the URL without its password. Raises SourceError if OpenCV cannot open it."""
    refuse_no_text(url)
    capture = open_stream(url)
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
        if fourcc == MJPG:
            deliver_jpegs(capture)

    def read(self) -> tuple[Pixels | None, float]:
        """The next picture, None for a damaged one, and when it was grabbed. Raises SourceError when none will come."""
        if not self._capture.grab():
            raise SourceError(
                f"expected {self._name} to keep delivering frames, found that it ended or the connection "
                "dropped: check the plug or the network"
            )
        arrived = time.monotonic()
        ok, pixels = self._capture.retrieve()
        return (to_picture(pixels) if ok else None), arrived

    def close(self) -> None:
        self._capture.release()
