"""A live source: a capture process that is replaced, for as long as it takes, whenever no frames come from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

from deco_runtime.errors import SourceError
from deco_runtime.sources import _address
from deco_runtime.sources._faults import Inspector
from deco_runtime.sources._process import CaptureProcess
from deco_runtime.sources.view import WHOLE, View
from deco_runtime.telemetry.redact import redact
from deco_runtime.types import Frame, Notice

START_S = 60.0
"""Seconds a capture process may take to start: minutes would be a hang even from a slow card."""

OPEN_S = 10.0
"""Seconds a live source may take to open."""

STALL_S = 5.0
"""Seconds a live source may take from one frame to the next."""

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
"""Seconds before a lost source is tried again: doubled after each failure, up to the last."""

_TICK_S = 0.2  # between two signs of life while there is no frame


def open_url(url: str, open_s: float = OPEN_S, stall_s: float = STALL_S, view: View = WHOLE) -> Live:
    """Receive a stream. Raises SourceError if it cannot be opened within open_s seconds: that takes up to
    _address.ASK_S seconds more, to find out why."""
    url = _address.clean(url)
    shown = redact(url)
    arguments = {"url": url, "shown": shown, "open_s": open_s}
    return Live(shown, "deco_runtime.sources._capture:open_url", arguments, open_s + _address.ASK_S + 1, stall_s, view)


class _StalledError(SourceError):
    """Nothing came for too long."""


class Live:
    """A camera or a stream, captured in a process of its own (`_child.py` says why).

    The first opening must succeed: what is wrong then is mostly the address. Later a source that ends, stalls or dies
    is opened again and again, with pauses of FIRST_PAUSE_S doubled up to LAST_PAUSE_S. The pause begins small again
    only after the source has delivered for LAST_PAUSE_S: one that delivers for moments must not fill a log.

    name: for people.
    job, arguments: what the capture process runs, as in CaptureProcess.
    open_s, stall_s: longest wait in seconds for opening, and for a frame.
    view: how its pictures are looked at.

    Raises SourceError if the source cannot be opened, or is not open after open_s seconds.
    """

    live = True
    length: int | None = None

    def __init__(
        self,
        name: str,
        job: str,
        arguments: dict[str, Any],
        open_s: float = OPEN_S,
        stall_s: float = STALL_S,
        view: View = WHOLE,
    ) -> None:
        self.name = name
        self._job, self._arguments, self._view = job, arguments, view
        self._open_s, self._stall_s = open_s, stall_s
        self._format: dict[str, Any] = {}
        self._inspector = Inspector(name)
        self._stalls = self._reconnects = self._dropped_before = self._damaged_before = 0
        self._pause = FIRST_PAUSE_S
        self._open_since = time.monotonic()
        self._lost_at: float | None = None
        self._closed = threading.Event()
        self._process: CaptureProcess | None = None
        try:
            for _ in self._open():
                pass
        except SourceError:
            self.close()
            raise

    @property
    def dropped(self) -> int:
        process = self._process  # another thread may be replacing it
        return self._dropped_before + (process.dropped if process else 0)

    def figures(self) -> dict[str, Any]:
        process = self._process
        damaged = self._damaged_before + (process.damaged if process else 0)
        counts = {"stalls": self._stalls, "reconnects": self._reconnects, "damaged": damaged}
        faults = {f"{fault}_frames": count for fault, count in self._inspector.counts.items()}
        return {**self._format, **self._view.figures(), **counts, **faults}

    def frames(self) -> Iterator[Frame | Notice]:
        """Yield the newest frame, each at most once, and notices, several a second when there is no frame."""
        while not self._closed.is_set():
            try:
                if self._process is None:
                    yield from self._open()
                frame = yield from self._next()
            except SourceError as error:
                if self._closed.is_set():
                    return
                self._end()
                self._stalls += isinstance(error, _StalledError)
                if self._lost_at is None:
                    self._lost_at = time.monotonic()
                    if self._lost_at - self._open_since >= LAST_PAUSE_S:
                        self._pause = FIRST_PAUSE_S
                    words = f"warning: {error}; it is tried again until it is back"
                    yield Notice("lost", words, {"reason": str(error), "stalled": isinstance(error, _StalledError)})
                yield from self._wait(self._pause)
                self._pause = min(2 * self._pause, LAST_PAUSE_S)
                continue
            if frame is None:
                return
            if self._lost_at is not None:
                self._reconnects += 1
                self._open_since = time.monotonic()
                seconds = round(self._open_since - self._lost_at, 1)
                self._lost_at = None
                words = f"{self.name} is back after {seconds:g} s"
                yield Notice("reconnected", words, {"seconds": seconds, **self._format})
            yield from self._inspector.look(frame, self._process.whole if self._process else None)

    def note(self) -> str | None:
        return None

    def fingerprints(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        self._closed.set()
        process = self._process
        if process:
            process.end()

    def _open(self) -> Iterator[Notice]:
        """Start a capture process and wait until it has opened the device."""
        self._process = process = CaptureProcess(self._job, self._arguments, self._view)
        limit = time.monotonic() + START_S
        while not self._closed.is_set():
            message = process.message(_TICK_S)
            if isinstance(message, dict):
                if "failed" in message:
                    raise SourceError(message["failed"])
                if "opened" in message:
                    self._format = message["opened"]
                    return
                limit = time.monotonic() + self._open_s
            elif time.monotonic() >= limit:
                raise _StalledError(
                    f"expected {self.name} to open within {self._open_s:g} s, found that it did not answer: "
                    "check its address, that it is switched on and connected"
                )
            yield Notice("waiting")
        process.end()  # close() may have come before there was a process to end

    def _next(self) -> Generator[Notice, None, Frame | None]:
        """The newest frame, or None when the source is closed."""
        assert self._process is not None
        self._process.want()
        before = self._process.damaged
        limit = time.monotonic() + self._stall_s
        while not self._closed.is_set():
            message = self._process.message(min(_TICK_S, self._stall_s))
            if self._closed.is_set():
                break
            if isinstance(message, Frame):
                return message
            if message is not None and "failed" in message:
                raise SourceError(message["failed"])
            if message is not None and "skipped" in message:
                limit = time.monotonic() + self._stall_s
            if time.monotonic() >= limit:
                if damaged := self._process.damaged - before:
                    raise SourceError(
                        f"expected whole frames from {self.name}, found that all {damaged} of the last "
                        f"{self._stall_s:g} s came damaged: check its cable or the network, or have it send smaller or "
                        "fewer pictures"
                    )
                raise _StalledError(
                    f"expected a frame from {self.name} at least every {self._stall_s:g} s, found that the stream "
                    "stalled: check the camera and the network"
                )
            yield Notice("waiting")
        return None

    def _end(self) -> None:
        """Be rid of the capture process. One that cannot be killed stays, and no second one is started beside it."""
        if self._process and self._process.end():
            self._dropped_before += self._process.dropped
            self._damaged_before += self._process.damaged
            self._process = None

    def _wait(self, seconds: float) -> Iterator[Notice]:
        until = time.monotonic() + seconds
        yield Notice("waiting")
        while not self._closed.wait(min(_TICK_S, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
            yield Notice("waiting")
