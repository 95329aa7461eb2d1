"""The event stream: one JSON object per line, for whoever watches a device."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deco_runtime.errors import UsageError
from deco_runtime.telemetry.console import say
from deco_runtime.telemetry.outlet import Outlet
from deco_runtime.telemetry.redact import redact

OF_THE_DISK = {errno.EROFS, errno.ENOSPC, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors that say nothing against the name: a disk that is read-only, full or broken must not end what it only logs."""


class EventLog:
    """Appends events to a file; without a file it does nothing. What cannot be written is dropped and counted.

    Every line has `event`, `time` (wall clock, UTC, ISO 8601) and `monotonic` (seconds, comparable within one run), and
    `lost`, the events dropped so far, unless there were none. What is secret in an address is in none of them.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError when the file cannot be written; a disk that cannot write now is warned of instead."""
        self._out: Outlet | None = None
        self._wanted, self._lost = path is not None, 0
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # File names need not be text; what is not becomes \\udcXX, as JSON writes it.
            self._out = Outlet(_open(path), failed=lambda error: _warn(path, error))
        except OSError as error:
            if error.errno not in OF_THE_DISK:
                raise UsageError(
                    f"expected --events to name a file that can be written, but {path}: {error.strerror}; change it"
                ) from error
            _warn(path, error)

    def write(self, event: str, **figures: Any) -> None:
        """One event with its figures; numbers that JSON does not know (nan, inf) become null."""
        if self._out is None:
            self._lost += self._wanted
            return
        line = {
            "event": event,
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "monotonic": round(time.monotonic(), 3),
            **({"lost": self._out.lost} if self._out.lost else {}),
            **figures,
        }
        self._out.write(json.dumps(_plain(line), ensure_ascii=False, allow_nan=False) + "\n")

    @property
    def lost(self) -> int:
        """Events that were dropped so far."""
        return self._lost + (self._out.lost if self._out is not None else 0)

    def settle(self) -> None:
        """Wait a moment for what is on its way."""
        if self._out is not None:
            self._out.settle()

    def close(self) -> None:
        """End the file; further events are dropped."""
        if self._out is not None:
            self._out.close()
            self._lost += self._out.lost
            self._out = None


def _open(path: Path) -> int:
    """A handle to append to the file by, of a pipe also where nobody reads it yet, or any more."""
    flags = os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    is_pipe = path.exists() and stat.S_ISFIFO(path.stat().st_mode)
    return os.open(path, flags | (os.O_RDWR if is_pipe else os.O_WRONLY), 0o666)


def _warn(path: Path, error: OSError) -> None:
    say(
        f"warning: expected to write events to {path}, but the system says: {error.strerror}; "
        "goes on without, free space or mend the disk"
    )


def _plain(value: Any) -> Any:
    """As it may be written: finite, and without secrets."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
