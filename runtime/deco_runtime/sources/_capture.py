"""Live pictures through cv2.VideoCapture: opened and read in the capture process, and nowhere else."""

from __future__ import annotations

import time
from typing import Any

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.sources import _address
from deco_runtime.sources._opencv import MJPG, deliver_jpegs, open_stream, refuse_no_text, to_picture
from deco_runtime.types import Pixels


def open_url(url: str, shown: str, open_s: float = 10.0) -> Capture:
    """Receive a stream. shown: the URL without its password. open_s: seconds that OpenCV may take.

    Raises SourceError if OpenCV cannot open it, or it is no live stream, and says what is there instead.
    """
    refuse_no_text(url)
    started = time.monotonic()
    capture = open_stream(url, open_s)
    if capture.isOpened():
        web = url.startswith(("http://", "https://"))
        frames = capture.get(cv2.CAP_PROP_FRAME_COUNT) if web else 0  # a live stream has no number of frames
        if frames > 0:
            capture.release()
            raise SourceError(
                f"expected a live stream at {shown}, found a recording of {frames:.0f} frames: save it as a file, and "
                "give that to --video"
            )
        device = Capture(capture, shown)
        if not web or device.look_ahead():
            return device
    capture.release()
    waited = open_s if time.monotonic() - started >= open_s else None
    raise SourceError(f"expected a video stream at {shown}, found {_address.cause(url, waited)}")


class Capture:
    """An open cv2.VideoCapture, picture by picture.

    format: width, height, fps and fourcc, as OpenCV reads them back from the device.
    """

    def __init__(self, capture: cv2.VideoCapture, name: str) -> None:
        self._capture, self._name = capture, name
        self._ahead: list[tuple[Pixels | None, float]] = []
        fourcc, fps = int(capture.get(cv2.CAP_PROP_FOURCC)), capture.get(cv2.CAP_PROP_FPS)
        self.format: dict[str, Any] = {
            "width": int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)),
            "height": int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)),
            "fps": round(fps, 2) if 0 < fps < 1e6 else None,
            "fourcc": fourcc.to_bytes(4, "little").decode("ascii", "replace") if 0 < fourcc < 1 << 32 else None,
        }
        if fourcc == MJPG:
            deliver_jpegs(capture)

    def look_ahead(self) -> bool:
        """Whether two pictures come, which `read` gives first. FFmpeg takes a single one for a stream as well."""
        try:
            self._ahead = [self.read(), self.read()]
        except SourceError:
            return False
        return True

    def read(self) -> tuple[Pixels | None, float]:
        """The next picture, None for a damaged one, and when it was grabbed. Raises SourceError when none will come."""
        if self._ahead:
            return self._ahead.pop(0)
        self._grab()
        arrived = time.monotonic()
        ok, pixels = self._capture.retrieve()
        return (to_picture(pixels) if ok else None), arrived

    def skip(self) -> None:
        """Pass over the next picture, without decoding it. Raises SourceError when none will come."""
        if self._ahead:
            self._ahead.pop(0)
        else:
            self._grab()

    def _grab(self) -> None:
        if not self._capture.grab():
            raise SourceError(
                f"expected {self._name} to keep delivering frames, found that it ended or the connection "
                "dropped: check the plug or the network"
            )

    def close(self) -> None:
        self._capture.release()
