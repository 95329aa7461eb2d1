"""What image libraries say on stderr, which is the only place where they say that a picture is damaged.

libjpeg makes a whole picture of whatever it is given. Where bytes are missing or wrong it goes on with its best guess,
writes one line to stderr, and OpenCV hands the guess on as if nothing had been.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TypeVar

from deco_runtime.host.scratch import nameless

T = TypeVar("T")

_LIBRARY = re.compile(
    rb"Corrupt JPEG|Premature end of JPEG|Inconsistent progression|Invalid SOS|Unknown Adobe|Warning: unknown JFIF"
    rb"|libpng |OpenCV|_?TIFF|imdecode_|imread_|\[ *(WARN|ERROR|INFO|DEBUG)|> |\s*$"
)
"""How a line begins that is for us. Any other is of another thread, and is passed on."""

_lock = threading.Lock()  # the process has one stderr


def overhear(call: Callable[[], T]) -> tuple[T, str]:
    """What `call` returns, and what libraries wrote to stderr meanwhile, which nobody else sees.

    Raises what `call` raises. Works with a closed stderr too.
    """
    with _lock:
        try:
            own: int | None = os.dup(2)
        except OSError:
            own = None
        ear = _ear()
        os.dup2(ear, 2)
        try:
            result = call()
        finally:
            if own is None:
                os.close(2)
            else:
                os.dup2(own, 2)
                os.close(own)
            lines = _take(ear)
            others = b"".join(line for line in lines if not _LIBRARY.match(line))
            if others:
                with suppress(OSError):
                    os.write(2, others)
    return result, b"".join(line for line in lines if _LIBRARY.match(line)).decode(errors="replace")


@cache
def _ear() -> int:
    """A file that is there until the process ends."""
    with nameless() as file:
        ear = os.dup(file.fileno())
    standard = []  # where these streams are closed, theirs are the first numbers to be given out
    while ear <= 2:
        standard.append(ear)
        ear = os.dup(ear)
    for number in standard:
        os.close(number)
    return ear


def _take(ear: int) -> list[bytes]:
    """The lines in the file, which is empty afterwards."""
    size = os.lseek(ear, 0, os.SEEK_CUR)
    if not size:
        return []
    os.lseek(ear, 0, os.SEEK_SET)
    lines = os.read(ear, size).splitlines(keepends=True)
    os.ftruncate(ear, 0)
    os.lseek(ear, 0, os.SEEK_SET)
    return lines
