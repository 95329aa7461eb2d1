"""What goes out: one JSON object; docs/guide/outputs.md says what each key means."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Kind = Literal["frame", "change", "lost", "back"]
"""An answer to a frame; another answer than before, for a while now; the camera is lost, or is there again."""


@dataclass(frozen=True)
class Message:
    """kind: the `event` of the JSON. stream: number of the camera. time: with its zone. figures: the other keys."""

    kind: Kind
    stream: int
    time: datetime
    figures: dict[str, Any]

    def json(self) -> bytes:
        """In one line without its end, UTF-8."""
        time = self.time.isoformat(timespec="milliseconds")
        line = {"event": self.kind, "time": time, "stream": self.stream, **self.figures}
        # A class may be named after a folder whose name is no text: \\udcXX, as JSON writes it.
        return json.dumps(line, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")
