"""The program's side of `_child.py`: starts a capture process, hears it without ever blocking, and ends it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from typing import IO, Any

import numpy as np

from deco_runtime.host.job import PYTHON
from deco_runtime.sources.view import WHOLE, View
from deco_runtime.types import Frame

CLOSE_S = 1.0
"""Seconds that a capture process may take to let go of its device before it is killed."""

_DEATH_S = 1.0  # one in the middle of a driver's system call cannot even be killed; nobody waits for it for longer


class CaptureProcess:
    """One process that captures, from opening to release.

    `dropped` and `damaged` count its frames so far; `whole` is (height, width) of the last picture of which a view has
    shown a part, None where pictures are shown as they are.
    """

    def __init__(self, job: str, arguments: dict[str, Any], view: View = WHOLE) -> None:
        """job: "module:function" that opens a `_child.Device` with these keywords. view: how it is looked at."""
        self.dropped = self.damaged = 0
        self.whole: tuple[int, int] | None = None
        # The same modules as here: -c and -m alike would put the current directory first, with whatever lies in it.
        program = f"import sys; sys.path[:] = {sys.path!r}; from deco_runtime.sources._child import main; main()"
        self._process = subprocess.Popen(
            [*PYTHON, "-c", program, job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the program
        )
        with contextlib.suppress(OSError):  # whoever waits for messages hears that the process died
            assert self._process.stdin is not None
            # Not as an argument, which every user of the machine can read: a URL may hold a password.
            given = {"arguments": arguments, "view": view.figures()}
            self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._widen_pipe()
        self._ending = threading.Lock()  # close() may come from another thread
        self._messages: queue.Queue[dict[str, Any] | Frame | None] = queue.Queue()
        threading.Thread(target=self._listen, name="capture", daemon=True).start()

    def _widen_pipe(self) -> None:
        """Have a frame of 640×480 pixels fit into it whole, where Linux lets us: less waiting for a busy processor."""
        assert self._process.stdout is not None
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)

    def want(self) -> None:
        """Ask for the newest frame; it comes as a message."""
        with contextlib.suppress(OSError, ValueError):  # whoever waits for it hears that the process died
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")

    def message(self, seconds: float) -> dict[str, Any] | Frame | None:
        """The next message, {"ready"}, {"opened"}, {"failed"}, {"damaged"}, {"skipped"} or a frame; None if none comes
        in time."""
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        return {"failed": self._death()} if message is None else message

    def end(self) -> bool:
        """Have the device let go of, and the process gone in bounded time; whether it is. May be called again."""
        with self._ending:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_DEATH_S)
            return self._process.poll() is not None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream, contextlib.suppress(OSError, ValueError):
            while (message := self._read(stream)) is not None:
                self._messages.put(message)
        self._messages.put(None)

    def _read(self, stream: IO[bytes]) -> dict[str, Any] | Frame | None:
        line = stream.readline()
        if not line.endswith(b"\n"):
            return None
        told: dict[str, Any] = json.loads(line)
        self.damaged = told.get("damaged", self.damaged)
        if "frame" not in told:
            return told
        height, width = told["frame"]
        pixels = np.empty((height, width, 3), np.uint8)
        rest = pixels.data.cast("B")
        while rest:
            count = stream.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                return None
            rest = rest[count:]
        self.dropped = told["dropped"]
        if "whole" in told:
            self.whole = told["whole"][0], told["whole"][1]
        return Frame(pixels, told["time"])

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_S)
        code = self._process.returncode
        how = f"died of signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return f"expected capture to go on, found that its process {how}: check the camera, its driver, and free memory"
