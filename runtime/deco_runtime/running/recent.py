"""The frames of the last minutes, as the learner observed them: for people who say afterwards what they show.

In memory only, bounded, and no pictures; where the page is on, each has a small picture with it, in memory too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deco_runtime.errors import UsageError
from deco_runtime.learning.learner import joined
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.types import Ints, Observed, Pixels

MOST, MOST_BYTES = 600, 8 << 20
"""Frames that are kept, and bytes of what was observed of them."""
PER_SECOND = 4.0
"""That are kept of a camera's."""
APART_S, APART = 3.0, 0.5
"""A pause, and a change of what is observed, ‖a − b‖² / (‖a‖² + ‖b‖²), after which a new take begins; of things that
have nothing in common this is about 1."""


@dataclass(frozen=True)
class Kept:
    """One frame. number: rises by one with each kept one. time: as in `Frame`. take: which run of frames of one stream
    that are alike. picture: JPEG, b"" without a page."""

    number: int
    time: float
    take: int
    label: str | None
    confidence: float
    observed: Observed
    picture: bytes
    stream: int = 0


class Recent(Listener):
    """Keeps some of the frames that were predicted. picture: makes the small picture of one."""

    def __init__(self, picture: Callable[[Pixels], bytes] = lambda _: b"") -> None:
        self.picture = picture
        self._frames: deque[Kept] = deque()
        self._last: dict[int, Kept] = {}  # of each stream
        self._bytes = self._number = self._take = 0
        self._live = True
        self._lock = threading.Lock()

    def hears(self) -> Hears:
        """See `Listener`."""
        return {happened.FramePredicted: self._predicted, happened.SourceOpened: self._opened}

    def _opened(self, event: happened.SourceOpened) -> None:
        self._live = event.live

    def _predicted(self, event: happened.FramePredicted) -> None:
        stream, now = event.frame.stream, event.frame.time
        last = self._last.get(stream)
        if last is not None and 0 <= now - last.time < 1 / PER_SECOND:
            return
        if event.frame.fault is not None or not event.observed:
            return
        size = sum(array.nbytes for array in event.observed.values())
        goes_on = last is not None and 0 <= now - last.time < APART_S and _alike(last.observed, event.observed)
        self._take += not goes_on
        take = last.take if last is not None and goes_on else self._take
        self._number += 1
        answer, picture = (event.label, event.confidence), self.picture(event.frame.pixels)
        kept = Kept(self._number, now, take, *answer, event.observed, picture, stream)
        self._last[stream] = kept
        with self._lock:
            self._frames.append(kept)
            self._bytes += size
            while len(self._frames) > MOST or (self._bytes > MOST_BYTES and len(self._frames) > 1):
                self._bytes -= sum(array.nbytes for array in self._frames.popleft().observed.values())

    def frames(self) -> list[Kept]:
        """Those that are kept, the newest last."""
        with self._lock:
            return list(self._frames)

    def last(self, seconds: float) -> Ints:
        """Numbers of those of the last seconds: until now, or of a recording until its newest frame."""
        frames = self.frames()
        now = time.monotonic() if self._live or not frames else frames[-1].time
        return np.array([each.number for each in frames if each.time >= now - seconds], np.int64)

    def observed(self, numbers: Ints) -> tuple[Observed, Ints]:
        """What was observed of frames with these numbers (n,), and their takes (n,). Raises UsageError where none of
        them is kept any more."""
        wanted = set(numbers.tolist())
        chosen = [each for each in self.frames() if each.number in wanted]
        if not chosen:
            raise UsageError("expected frames of the last minutes, but found none of these; choose later ones")
        return joined([each.observed for each in chosen]), np.array([each.take for each in chosen], np.int64)


def _alike(one: Observed, other: Observed) -> bool:
    """Whether the first thing that was observed of two frames changed little."""
    a, b = (next(iter(each.values())) for each in (one, other))
    if a.shape != b.shape:
        return False
    size = float(np.vdot(a, a)) + float(np.vdot(b, b))
    return float(((a - b) ** 2).sum()) <= APART * max(size, 1e-12)
