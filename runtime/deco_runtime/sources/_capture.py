"""cv2.VideoCapture, twice: played from a file, and live in a thread of its own."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.folder import silence_opencv
from deco_runtime.types import Frame, Pixels

OPEN_S = 10.0
"""Seconds a live source may take to open."""

STALL_S = 5.0
"""Seconds a live source may take from one frame to the next."""

_CLOSE_S = 1.0  # how long close() waits for the capture thread to let go of the device
_GRACE_S = 0.3  # how much later than us FFmpeg gives up: our words come first, and close() sees it happen

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


def open_file(path: Path) -> Playback:
    """Play a video file. Raises SourceError if it is not a video that OpenCV can open."""
    _refuse_no_text(str(path.resolve()))
    # Absolute, because FFmpeg takes a relative name with a colon for a URL.
    capture = cv2.VideoCapture(str(path.resolve()), _stream_backend())
    # FFmpeg opens plain text too: it renders it as if on a terminal.
    is_text = int(capture.get(cv2.CAP_PROP_FOURCC)) == int.from_bytes(b"ansi", "little")
    if not capture.isOpened() or is_text:
        capture.release()
        raise SourceError(_not_a_video(path))
    return Playback(path, capture)


def open_url(url: str, open_s: float = OPEN_S, stall_s: float = STALL_S) -> Live:
    """Receive a stream. Raises SourceError if it cannot be opened within open_s seconds."""
    _refuse_no_text(url)
    shown = re.sub(r"://[^/]*@", "://", url)  # without user and password
    backend = _stream_backend()
    limits = []
    if backend == cv2.CAP_FFMPEG:  # other backends refuse to open when given parameters they lack
        limits += [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int((open_s + _GRACE_S) * 1000)]
        limits += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, int((stall_s + _GRACE_S) * 1000)]
    return Live(
        shown,
        lambda: cv2.VideoCapture(url, backend, limits),
        unopened=f"expected a video stream at {shown}, found none that OpenCV can open: check the address, "
        "that the sender is running, and the network between",
        open_s=open_s,
        stall_s=stall_s,
    )


def open_camera(name: str, device: int | str, unopened: str) -> Live:
    """Start a camera, given by number or, for V4L2, by path; `unopened` is the error if that fails.

    Raises SourceError.
    """

    _refuse_no_text(str(device))

    def start() -> cv2.VideoCapture:
        # For a path V4L2 has to be asked for: FFmpeg would come first and take the device for a file.
        capture = cv2.VideoCapture(device, cv2.CAP_V4L2 if isinstance(device, str) else cv2.CAP_ANY)
        # Most USB cameras reach their frame rate at larger sizes only as JPEG; one that cannot keeps its own.
        capture.set(cv2.CAP_PROP_FOURCC, int.from_bytes(b"MJPG", "little"))
        return capture

    return Live(name, start, unopened)


class Playback:
    """A video file, frame by frame in order, as fast as they are taken.

    length: the number of frames the file announces, if it does.
    """

    live = False
    dropped = 0

    def __init__(self, path: Path, capture: cv2.VideoCapture) -> None:
        self.name = str(path)
        announced = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.length: int | None = int(announced) if announced > 0 else None
        self._path = path
        self._capture = capture
        self._using = threading.Lock()  # close() may come from another thread in the middle of a read
        self._closed = False
        self._delivered = 0
        self._ended = False

    def frames(self) -> Iterator[Frame]:
        """Yield every frame that can be decoded. Raises SourceError if there is none."""
        while True:
            with self._using:
                if self._closed:
                    return
                if not self._capture.grab():
                    break
                ok, pixels = self._capture.retrieve()
            if ok:
                self._delivered += 1
                yield Frame(to_bgr(pixels), time.monotonic())
        self._ended = True
        if not self._delivered:
            raise SourceError(_not_a_video(self._path))

    def note(self) -> str | None:
        if not self._ended or self.length is None or self._delivered >= self.length:
            return None
        return f"expected {self.length} frames, the video ended after {self._delivered}: it may be cut short"

    def close(self) -> None:
        self._closed = True
        with self._using:
            self._capture.release()


class Live:
    """A camera or a stream. One daemon thread owns the cv2.VideoCapture, from opening to release.

    OpenCV can block in opening and in reading for longer than anybody should wait, so nobody does: whoever
    wants a frame waits for the slot, not for OpenCV, and a blocked call is abandoned with its thread.

    name: for people.
    open_capture: opens the device; called in the capture thread.
    unopened: the sentence for the user if that fails.
    open_s, stall_s: longest wait in seconds for opening, and for a frame.

    Raises SourceError if the source is not open after open_s seconds.
    """

    live = True
    length: int | None = None

    def __init__(
        self,
        name: str,
        open_capture: Callable[[], cv2.VideoCapture],
        unopened: str,
        open_s: float = OPEN_S,
        stall_s: float = STALL_S,
    ) -> None:
        self.name = name
        self.dropped = 0
        self._open_capture = open_capture
        self._unopened = unopened
        self._stall_s = stall_s
        # Drop policy: the slot holds the newest frame and nothing else. The capture thread never waits for a
        # taker: a frame still in the slot when the next one arrives is dropped and counted, so that a slow
        # consumer sees the present, and not a queue of the past that grows until memory ends.
        self._slot: Frame | None = None
        self._opened = False
        self._failure: SourceError | None = None
        self._closed = False
        self._news = threading.Condition()  # guards the four above and dropped
        self._thread = threading.Thread(target=self._capture, name="capture", daemon=True)
        self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self._opened or self._failure, open_s)
            failure = self._failure
        if failure or not self._opened:
            self.close()
            raise failure or SourceError(
                f"expected {name} to open within {open_s:g} s, found that it did not answer: "
                "check that it is switched on and connected"
            )

    def frames(self) -> Iterator[Frame]:
        """Yield the newest frame, each at most once. Raises SourceError if the stream stalls or ends."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._slot or self._failure or self._closed, self._stall_s)
                if self._closed:
                    return
                frame, self._slot = self._slot, None
                failure = self._failure
            if frame is None:
                raise failure or self._stalled()
            yield frame

    def note(self) -> str | None:
        return None

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        # The device is released by its owner. Waiting for that, though not for long, lets the next program
        # have it, and keeps the interpreter from ending in the middle of OpenCV's work.
        self._thread.join(_CLOSE_S)

    def _capture(self) -> None:
        try:
            capture = self._open_capture()
            try:
                self._read(capture)
            finally:
                capture.release()
        except SourceError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, who waits for frames has to hear of it
            self._fail(SourceError(f"expected frames from {self.name}, found that OpenCV failed: {error}"))

    def _read(self, capture: cv2.VideoCapture) -> None:
        if not capture.isOpened():
            raise SourceError(self._unopened)
        with self._news:
            self._opened = True
            self._news.notify_all()
        while not self._closed:
            started = time.monotonic()
            if not capture.grab():
                # FFmpeg's own time-out ends a blocked read as if the stream had ended.
                if time.monotonic() - started >= self._stall_s:
                    raise self._stalled()
                raise SourceError(
                    f"expected {self.name} to keep delivering frames, found that it ended or the connection "
                    "dropped: check the plug or the network, and start again"
                )
            arrived = time.monotonic()
            ok, pixels = capture.retrieve()
            if not ok:  # one damaged picture; a stream of nothing else ends as a stall
                continue
            frame = Frame(to_bgr(pixels), arrived)
            with self._news:
                if self._slot is not None:
                    self.dropped += 1
                self._slot = frame
                self._news.notify_all()

    def _fail(self, failure: SourceError) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()

    def _stalled(self) -> SourceError:
        return SourceError(
            f"expected a frame from {self.name} at least every {self._stall_s:g} s, found that the stream "
            "stalled: check the camera and the network, and start again"
        )


def _refuse_no_text(name: str) -> None:
    """Raise SourceError for a name of other bytes than UTF-8, on which OpenCV crashes."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"expected a name in UTF-8, found {name!r}: OpenCV cannot open others, rename the file or its folder"
        ) from error


def _stream_backend() -> int:
    """FFmpeg, the one backend with time-outs, where this OpenCV has it; else whatever it has."""
    has_ffmpeg = cv2.CAP_FFMPEG in cv2.videoio_registry.getStreamBackends()
    return int(cv2.CAP_FFMPEG if has_ffmpeg else cv2.CAP_ANY)


def _not_a_video(path: Path) -> str:
    return (
        f"expected a video that OpenCV can decode, found something else in {path}: "
        "check the file, or convert it, for example with `ffmpeg -i FILE -c:v mjpeg out.avi`"
    )
