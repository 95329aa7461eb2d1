"""What people told a run: which class frames show, what is right, and that learning should wait or go back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from deco_runtime.story.figures import count, text

KINDS = ("teach", "judged", "hold", "back")
MOST_TOLD = 50


class People:
    """right, wrong: answers that were judged, in frames. taught: frames by class. told: the newest, with its time, in
    words."""

    def __init__(self) -> None:
        self.right = self.wrong = 0
        self.did: Counter[str] = Counter()
        self.told: deque[tuple[str, str]] = deque(maxlen=MOST_TOLD)

    def take(self, event: Mapping[str, Any], time: str) -> None:
        """One event of KINDS."""
        kind = event.get("event")
        frames = count(event, "frames")
        if kind == "judged":
            if event.get("right") is True:
                self.right += frames
            else:
                self.wrong += frames
            return
        if kind == "teach":
            words = _taught(event, frames)
            self.did[(text(event, "action") or "")[:10]] += 1
        elif kind == "hold":
            words = "learning was told to wait" if event.get("held") is True else "learning was told to go on"
        else:
            words = f"what was learned went back to: {text(event, 'to') or '?'}"
        self.told.append((time, words))


def _taught(event: Mapping[str, Any], frames: int) -> str:
    name, action = text(event, "name") or "?", event.get("action")
    what = f"{frames} frames are {'the new class ' if event.get('new') is True else ''}{name}"
    if action == "taught":
        return what
    if action == "refused":
        return f"{what}; refused: {text(event, 'reason') or '?'}"
    return "the last teaching was taken back"
