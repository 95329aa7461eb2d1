"""Event files, line by line, however long they are and whatever became of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

MOST_BYTES = 1 << 20
"""Of a line; a longer one is none of ours."""
_START = b'{"event": '
"""How deco-run begins a line."""


@dataclass
class Reading:
    """lines: that were not empty. damaged: of these, lines that are no JSON object with an `event`. cut: whether the
    last one was damaged and has no end, as after a power cut or while the run still writes it."""

    lines: int = 0
    damaged: int = 0
    cut: bool = False


def events(file: IO[bytes], reading: Reading) -> Iterator[dict[str, Any]]:
    """The events of a file, which is read as they are asked for; what it was like is counted in `reading`."""
    while line := file.readline(MOST_BYTES):
        whole = line.endswith(b"\n")
        if not whole and len(line) == MOST_BYTES:
            while (rest := file.readline(MOST_BYTES)) and not rest.endswith(b"\n"):
                pass
            whole = bool(rest)
            line = b"{"  # damaged
        if not line.strip():
            continue
        reading.lines += 1
        event = _parsed(line)
        if event is None:
            reading.damaged += 1
            reading.cut = not whole
            # After a power cut the first line of the next run goes on where the last one ended.
            if (start := line.rfind(_START)) > 0:
                event = _parsed(line[start:])
        if event is not None:
            yield event


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # text that is none, JSON that is none, numbers with too many digits
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
