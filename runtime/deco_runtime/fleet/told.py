"""What the server's half tells whoever started it: lines through a named pipe in the state directory.

Flower runs the two in processes that are not each other's, and that may be killed at any moment: when the one that
tells has ended, however that was, the other one sees the end of the pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from types import TracebackType

from deco_runtime.errors import StateError

PIPE = "fleet.told"
DONE = "done"
"""The line of one that has done all its rounds."""
_MOST = 1 << 16


class Teller:
    """Writes lines; they are lost where nobody listens."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._handle = directory, -1

    def __enter__(self) -> Teller:
        with contextlib.suppress(OSError):
            self._handle = os.open(self._directory / PIPE, os.O_WRONLY | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def __call__(self, line: str) -> None:
        """One line, without its end."""
        with contextlib.suppress(OSError):
            os.write(self._handle, line.encode()[: _MOST // 16] + b"\n")


class Hearer:
    """Reads them. Raises StateError where there can be no pipe."""

    def __init__(self, directory: Path) -> None:
        path = directory / PIPE
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.mkfifo(path, 0o600)
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise StateError(
                f"expected to make a pipe in {directory}, but the system says: {error.strerror}; choose another --state"
            ) from error
        self._rest = b""

    def hear(self, seconds: float) -> list[str] | None:
        """The lines that come within so many seconds, at the first that do; None where who told has ended."""
        if not select.select([self._handle], [], [], seconds)[0]:
            return []
        try:
            piece = os.read(self._handle, _MOST)
        except BlockingIOError:
            return []
        if not piece:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def close(self) -> None:
        """The pipe itself stays for the next one."""
        os.close(self._handle)
