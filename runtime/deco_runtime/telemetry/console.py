"""Standard error and standard output as ways out that hold up nothing, see `outlet`."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import IO, Any, cast

from deco_runtime.telemetry.outlet import Outlet
from deco_runtime.telemetry.redact import redact


def stderr() -> IO[str]:
    """Standard error as an Outlet, or as it is where it has no file, as in tests."""
    return way_out(sys.stderr)


def say(text: str) -> None:
    """A line on standard error, without what is secret in an address. Whatever becomes of it, the program goes on."""
    stderr().write(f"{redact(text)}\n")


def tell(text: str) -> None:
    """A line of a result on standard output, by a command whose work does not end because nobody can read it."""
    way_out(sys.stdout).write(f"{text}\n")


def way_out(stream: Any) -> IO[str]:
    """The stream as an Outlet, or as it is where it has no file."""
    try:
        handle = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return cast("IO[str]", stream if stream is not None else _outlet(os.open(os.devnull, os.O_WRONLY), "utf-8"))
    return cast("IO[str]", _outlet(handle, stream.encoding))


@cache
def _outlet(handle: int, encoding: str) -> Outlet:
    return Outlet(handle, encoding)
