"""A way out for text that never holds up or ends whoever tells something.

A terminal can be stopped with Ctrl-S, a pipe's reader can sleep or be gone, a disk can be full or hang in a driver. So
a thread of its own writes, what waits for it is bounded, and what cannot be written is dropped and counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

MOST_BYTES = 1 << 20
"""That wait to be written; beyond, what comes is dropped."""
END_S = 2.0
"""Seconds that the end of a program waits for what is still on its way."""

_AGAIN_S = 0.05  # until a full pipe is tried again


class Outlet:
    """Lines to an open file, by its number. Like a text file for those who print, but nothing here raises or waits.

    encoding: of the text; what it does not know becomes a backslash and digits. lost: lines that were not written so
    far. failed: called with the error of the first write that fails, from another thread.
    """

    def __init__(self, handle: int, encoding: str = "utf-8", failed: Callable[[OSError], None] | None = None) -> None:
        self.encoding, self.lost = encoding, 0
        self.error: OSError | None = None
        self._handle, self._failed = handle, failed
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._torn = False  # the last line was written in part
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Have the text written, or drop it where too much waits already; returns its length."""
        data = text.encode(self.encoding, "backslashreplace")
        with self._changed:
            if self._waiting and self._size + len(data) > MOST_BYTES:
                self.lost += _lines(data)
                return len(text)
            self._waiting.append(data)
            self._size += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="outlet", daemon=True)
                self._thread.start()
        return len(text)

    def flush(self) -> None:
        """Nothing: what is given is on its way."""

    def fileno(self) -> int:
        return self._handle

    def isatty(self) -> bool:
        return os.isatty(self._handle)

    def settle(self, seconds: float = END_S) -> bool:
        """Wait at most so long until all is written or dropped; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def close(self, seconds: float = END_S) -> None:
        """Settle, count what is left as lost, and close the file unless a write still hangs in it."""
        if self.settle(seconds):
            os.close(self._handle)
        else:
            self.lost += sum(map(_lines, list(self._waiting)))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            written = self._put(data)
            with self._changed:
                self.lost += 0 if written else _lines(data)
                self._size -= len(self._waiting.popleft())
                self._changed.notify_all()

    def _put(self, data: bytes) -> bool:
        rest = memoryview(b"\n" + data if self._torn else data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._handle, rest) :]
                except BlockingIOError:
                    time.sleep(_AGAIN_S)
                else:
                    self._torn = True  # until the rest is there too
        except OSError as error:
            first, self.error = self.error is None, error
            if first and self._failed is not None:
                self._failed(error)
            return False
        self._torn = False
        return True


def _lines(data: bytes) -> int:
    return max(1, data.count(b"\n"))
