"""A video file, played frame by frame by cv2.VideoCapture."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.sources._opencv import refuse_no_text, stream_backend, to_bgr
from deco_runtime.types import Frame

LabelOf = Callable[[int], int | None]
"""The true class of a frame, by its number in the file from 0; None where it is unknown."""


def open_file(path: Path, label_of: LabelOf = lambda frame: None) -> Playback:
    """Play a video file. Raises SourceError if it is not a video that OpenCV can open."""
    refuse_no_text(str(path.resolve()))
    # Absolute, because FFmpeg takes a relative name with a colon for a URL.
    capture = cv2.VideoCapture(str(path.resolve()), stream_backend())
    # FFmpeg opens plain text too: it renders it as if on a terminal.
    is_text = int(capture.get(cv2.CAP_PROP_FOURCC)) == int.from_bytes(b"ansi", "little")
    if not capture.isOpened() or is_text:
        capture.release()
        raise SourceError(_not_a_video(path))
    return Playback(path, capture, label_of)


class Playback:
    """A video file, frame by frame in order, as fast as they are taken.

    length: the number of frames the file announces, if it does.
    """

    live = False
    dropped = 0

    def __init__(self, path: Path, capture: cv2.VideoCapture, label_of: LabelOf = lambda frame: None) -> None:
        self.name = str(path)
        announced = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.length: int | None = int(announced) if announced > 0 else None
        self._path = path
        self._capture, self._label_of = capture, label_of
        self._using = threading.Lock()  # close() may come from another thread in the middle of a read
        self._closed = False
        self._delivered = 0
        self._ended = False

    def frames(self) -> Iterator[Frame]:
        """Yield every frame that can be decoded. Raises SourceError if there is none."""
        for number in itertools.count():  # frames that cannot be decoded have a number too
            with self._using:
                if self._closed:
                    return
                if not self._capture.grab():
                    break
                ok, pixels = self._capture.retrieve()
            if ok:
                self._delivered += 1
                yield Frame(to_bgr(pixels), time.monotonic(), self._label_of(number))
        self._ended = True
        if not self._delivered:
            raise SourceError(_not_a_video(self._path))

    def note(self) -> str | None:
        if not self._ended or self.length is None or self._delivered >= self.length:
            return None
        return f"expected {self.length} frames, the video ended after {self._delivered}: it may be cut short"

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._closed = True
        with self._using:
            self._capture.release()


def _not_a_video(path: Path) -> str:
    return (
        f"expected a video that OpenCV can decode, found something else in {path}: "
        "check the file, or convert it, for example with `ffmpeg -i FILE -c:v mjpeg out.avi`"
    )
