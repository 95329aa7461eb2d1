"""The event stream: one JSON object per line, for whoever watches a device."""

from __future__ import annotations

import json
import math
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from deco_runtime.errors import UsageError


class EventLog:
    """Appends events to a file; without a file it does nothing.

    Every line has `event`, `time` (wall clock, UTC, ISO 8601) and `monotonic` (seconds, comparable within one run).
    """

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError when the file cannot be written."""
        self._file: TextIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise UsageError(
                    f"expected --events to name a file that can be written, but {path}: {error.strerror}; change it"
                ) from error

    def write(self, event: str, **figures: Any) -> None:
        """One event with its figures; numbers that JSON does not know (nan, inf) become null."""
        if self._file is None:
            return
        line = {
            "event": event,
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "monotonic": round(time.monotonic(), 3),
            **figures,
        }
        self._file.write(json.dumps(_plain(line), ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
