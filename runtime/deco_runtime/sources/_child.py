"""The capture process: owns a camera or stream, keeps its newest frame, and hands it over when it is asked.

A driver or library can block in opening and in reading for ever, hold the device meanwhile, or crash. No thread can be
ended from outside and none lets go of a device, but a process is killed with all it holds.

Standard input: a line of JSON, the keywords of the job and the view of its pictures, then a byte for each frame that is
wanted; its end is the end of this process. Standard output: messages, each a line of JSON, and behind {"frame":
[height, width]} the pixels. stderr is nobody's: V4L2, FFmpeg and libjpeg complain there, of each frame if need be, and
what matters is in the messages.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from deco_runtime.errors import DecoError, first_line
from deco_runtime.sources.view import View
from deco_runtime.types import Pixels

_SIGN_S = 0.2  # between two signs that pictures come, while none of them is taken
_RELEASE_S = 0.7  # how long the device may take to be let go of in good order: shorter than the other side waits


class Device(Protocol):
    """What a job opens. format: figures for the event stream on what the device delivers."""

    format: dict[str, Any]

    def read(self) -> tuple[Pixels | None, float]:
        """The next picture, None for a damaged one, and its monotonic time. Raises when no further one will come."""

    def skip(self) -> None:
        """Pass over the next picture, at less cost than reading it. Raises when no further one will come."""

    def close(self) -> None: ...


class Picture(NamedTuple):
    """What is seen of a picture, None of a damaged one; its monotonic time; (height, width) of all of it, None if that
    is what is seen."""

    seen: Pixels | None
    time: float
    whole: tuple[int, int] | None


class Outlet:
    """The newest frame on its way to whoever wants it.

    Drop policy: the slot holds the newest frame and nothing else. The capture thread does not wait for a taker: a frame
    still in the slot when the next one arrives is dropped and counted, so that a slow consumer sees the present, and
    not a queue of the past that grows until memory ends.
    """

    def __init__(self, pipe: int) -> None:
        self.stopped = False
        self._pipe = pipe
        self._wanted = False
        self._slot: Picture | None = None
        self._failure: str | None = None
        self._dropped = self._damaged = 0
        self._signed = 0.0
        self._lock = threading.Lock()  # guards the six above and the pipe

    def want(self) -> None:
        """A frame is wanted: the one in the slot, or the next that is offered."""
        with self._lock:
            if self._slot is not None:
                picture, self._slot = self._slot, None
                self._send_frame(picture)
            elif self._failure is not None:
                self._send({"failed": self._failure})
            else:
                self._wanted = True

    def offer(self, picture: Picture) -> None:
        """A new picture, also a damaged one."""
        with self._lock:
            if picture.seen is None:
                self._damaged += 1
                if self._wanted:  # who waits has to know that something comes
                    self._send({"damaged": self._damaged})
            elif self._wanted:
                self._wanted = False
                self._send_frame(picture)
            else:
                self._dropped += self._slot is not None
                self._slot = picture

    def skipped(self) -> None:
        """A picture was passed over: who waits has to know that something comes."""
        with self._lock:
            if self._wanted and time.monotonic() - self._signed >= _SIGN_S:
                self._signed = time.monotonic()
                self._send({"skipped": True})

    def fail(self, words: str) -> None:
        """No further frame will come; the one in the slot still counts."""
        with self._lock:
            self._failure = words
            if self._wanted:
                self._send({"failed": words})

    def say(self, **content: Any) -> None:
        with self._lock:
            self._send(content)

    def _send_frame(self, picture: Picture) -> None:
        pixels, at, whole = picture
        assert pixels is not None
        told = {"frame": pixels.shape[:2], "time": at, "dropped": self._dropped, "damaged": self._damaged}
        self._send(told | ({"whole": whole} if whole else {}), np.ascontiguousarray(pixels).data.cast("B"))

    def _send(self, content: dict[str, Any], payload: memoryview | bytes = b"") -> None:
        for data in (memoryview(json.dumps(content).encode() + b"\n"), memoryview(payload)):
            while data:
                data = data[os.write(self._pipe, data) :]


def pictures(device: Device, view: View, outlet: Outlet) -> Iterator[Picture]:
    """What is seen of the device's pictures, of those that are taken, until it ends or is no longer wanted."""
    while not outlet.stopped:
        pixels, at = device.read()
        if pixels is None or not view.cuts:
            yield Picture(pixels, at, None)
        else:
            height, width = pixels.shape[:2]
            yield Picture(view.of(pixels), at, (height, width))
        for _ in range(view.every - 1):
            if not outlet.stopped:
                device.skip()
                outlet.skipped()


def capture(outlet: Outlet, job: str, arguments: dict[str, Any], view: View) -> None:
    """Open the device and offer its pictures until it ends or is no longer wanted."""
    opened = False
    try:
        module, _, function = job.partition(":")
        open_device = getattr(import_module(module), function)
        outlet.say(ready=True)
        device: Device = open_device(**arguments)
        try:
            coming = pictures(device, view, outlet)
            told, first = device.format, None
            if view.cuts:  # a picture shows whether it can, and how large it is then; what the device says may differ
                first = next((picture for picture in coming if picture.seen is not None), None)
            if first is not None and first.seen is not None:
                told = {**told, "width": first.seen.shape[1], "height": first.seen.shape[0]}
            outlet.say(opened=told)
            opened = True
            for picture in coming if first is None else chain([first], coming):
                outlet.offer(picture)
        finally:
            device.close()
    except BrokenPipeError:  # nobody is there to hear it
        return
    except Exception as error:  # whatever it is, who waits for frames has to hear of it
        words = str(error)
        if not isinstance(error, DecoError):
            words = f"expected frames, found that capture fails with {type(error).__name__}: {first_line(error)}"
        if opened:
            outlet.fail(words)
        else:
            outlet.say(failed=words)


def main() -> None:
    """Run the job that the command line names, with the keywords that standard input begins with."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the program, which ends this process when it is done
        signal.signal(number, signal.SIG_IGN)
    outlet = Outlet(os.dup(1))
    os.dup2(2, 1)  # a library that prints must not spoil the messages
    given = bytearray()
    while not given.endswith(b"\n"):
        given += os.read(0, 1) or b"{}\n"
    told = json.loads(given)
    arguments, view = told.get("arguments", {}), View.from_figures(**told.get("view", {}))
    thread = threading.Thread(target=capture, args=(outlet, sys.argv[1], arguments, view), daemon=True)
    thread.start()
    while os.read(0, 1):
        outlet.want()
    outlet.stopped = True
    thread.join(_RELEASE_S)
    os._exit(0)  # a thread stuck inside OpenCV would abort an interpreter that ends in the usual way
