"""The event stream: one JSON object per line, for whoever watches a device."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from deco_runtime.errors import UsageError

OF_THE_DISK = {errno.EROFS, errno.ENOSPC, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors that say nothing against the name: a disk that is read-only, full or broken must not end what it only logs."""


class EventLog:
    """Appends events to a file; without a file it does nothing.

    Every line has `event`, `time` (wall clock, UTC, ISO 8601) and `monotonic` (seconds, comparable within one run).
    """

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError when the file cannot be written; a disk that cannot write now is warned of instead."""
        self._file: TextIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # File names need not be text; what is not becomes \\udcXX, as JSON writes it.
                self._file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
            except OSError as error:
                if error.errno in OF_THE_DISK:
                    _warn(str(path), error)
                    return
                raise UsageError(
                    f"expected --events to name a file that can be written, but {path}: {error.strerror}; change it"
                ) from error

    def write(self, event: str, **figures: Any) -> None:
        """One event with its figures; numbers that JSON does not know (nan, inf) become null."""
        file = self._file
        if file is None:
            return
        line = {
            "event": event,
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "monotonic": round(time.monotonic(), 3),
            **figures,
        }
        try:
            file.write(json.dumps(_plain(line), ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:  # a full disk; what is learned is worth more than its log
            self._file = None
            with contextlib.suppress(OSError):
                file.close()
            _warn(file.name, error)

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _warn(name: str, error: OSError) -> None:
    print(
        f"warning: expected to write events to {name}, but the system says: {error.strerror}; "
        "goes on without, free space or mend the disk",
        file=sys.stderr,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
