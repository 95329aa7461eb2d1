"""A video file, played frame by frame by cv2.VideoCapture."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.pictures.containers import jpeg_size
from deco_runtime.sources import FPS_UNKNOWN
from deco_runtime.sources._opencv import MJPG, deliver_jpegs, open_stream, refuse_no_text, to_picture
from deco_runtime.sources.view import WHOLE, View
from deco_runtime.types import Frame

LabelOf = Callable[[int], int | None]
"""The true class of a frame, by its number in the file from 0; None where it is unknown."""


def open_file(path: Path, label_of: LabelOf = lambda frame: None, view: View = WHOLE) -> Playback:
    """Play a video file. Raises SourceError if it is not a video that OpenCV can open."""
    refuse_no_text(str(path.resolve()))
    name = str(path.resolve())  # absolute, because FFmpeg takes a relative name with a colon for a URL
    capture = open_stream(name)
    # FFmpeg opens plain text too: it renders it as if on a terminal.
    is_text = int(capture.get(cv2.CAP_PROP_FOURCC)) == int.from_bytes(b"ansi", "little")
    if not capture.isOpened() or is_text:
        capture.release()
        raise SourceError(_not_a_video(path))
    if _is_of_jpegs(name, capture):
        deliver_jpegs(capture)
    return Playback(path, capture, label_of, view)


def _is_of_jpegs(name: str, capture: cv2.VideoCapture) -> bool:
    """Whether each frame of an open file is a JPEG of the whole picture, as it is shown.

    In interlaced video each is of every other line, and of video that is stored lying each has to be turned; these are
    left to FFmpeg.
    """
    if int(capture.get(cv2.CAP_PROP_FOURCC)) != MJPG or capture.get(cv2.CAP_PROP_ORIENTATION_META) != 0:
        return False
    probe = open_stream(name)
    if not probe.isOpened():
        return False
    deliver_jpegs(probe)
    ok, first = probe.read()
    probe.release()
    size = tuple(int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH))
    return ok and len(first) == 1 and jpeg_size(first.tobytes()) == size


class Playback:
    """A video file, frame by frame in order, as fast as they are taken.

    length: the number of frames the file announces, if it does, of those that are taken.
    """

    live = False
    dropped = 0

    def __init__(
        self,
        path: Path,
        capture: cv2.VideoCapture,
        label_of: LabelOf = lambda frame: None,
        view: View = WHOLE,
    ) -> None:
        self.name = view.named(str(path))
        self._announced = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        self.length: int | None = -(-self._announced // view.every) or None
        self._path, self._view = path, view
        fps = capture.get(cv2.CAP_PROP_FPS)
        self._fps = fps if 0 < fps <= 1000 else FPS_UNKNOWN  # NaN too is none
        self._capture, self._label_of = capture, label_of
        self._using = threading.Lock()  # close() may come from another thread in the middle of a read
        self._closed = False
        self._read = self._delivered = self._damaged = 0
        self._ended = False

    def frames(self) -> Iterator[Frame]:
        """Yield every frame that can be decoded. Raises SourceError if there is none."""
        for number in itertools.count():  # frames that cannot be decoded have a number too
            with self._using:
                if self._closed:
                    return
                if not self._capture.grab():
                    break
                self._read += 1
                if number % self._view.every:
                    continue
                ok, pixels = self._capture.retrieve()
            picture = to_picture(pixels) if ok else None
            if picture is None:
                self._damaged += 1
                continue
            self._delivered += 1
            yield Frame(self._view.of(picture), number / self._fps, self._label_of(number))
        self._ended = True
        if self._damaged and not self._delivered:
            raise SourceError(
                f"expected a video with whole frames, found that all {self._damaged} in {self._path} are damaged: "
                "copy or record it again"
            )
        if not self._delivered:
            raise SourceError(_not_a_video(self._path))

    def note(self) -> str | None:
        said = []
        if self._damaged:
            said.append(f"left out {self._damaged} damaged frame{'s' * (self._damaged > 1)}")
        if self._ended and self._read < self._announced:
            said.append(f"expected {self._announced} frames, the video ended after {self._read}: it may be cut short")
        return "; ".join(said) or None

    def figures(self) -> dict[str, Any]:
        return {"damaged": self._damaged}

    def fingerprints(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        self._closed = True
        with self._using:
            self._capture.release()


def _not_a_video(path: Path) -> str:
    return (
        f"expected a video that OpenCV can decode, found something else in {path}: "
        "check the file, or convert it, for example with `ffmpeg -i FILE -c:v mjpeg out.avi`"
    )
