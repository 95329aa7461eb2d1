"""When a run saves, what it reports of that, and how much it writes to the disk."""

from __future__ import annotations

import time
from pathlib import Path

from deco_runtime.errors import StateError
from deco_runtime.learning.guard import Unguarded
from deco_runtime.running.resume import START, Place
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.happenings import SavePossible, SaveRefused, StateSaved

DAY_S = 86_400.0
LONG_ENOUGH_S = 600.0
"""A shorter run says nothing about a day: its start and its end weigh too much."""


class Saver:
    """Saves at most once in `every` seconds, and goes on when the disk refuses: a later save may work.

    written: bytes given to the disk in this run, those of saves that failed left out. reason: why the last save was
    refused, as a sentence; "" where it was not.
    """

    def __init__(
        self,
        directory: Path,
        bundle: Bundle,
        every: float,
        bus: Bus,
        refused: bool = False,
        there: states.LearnedState | None = None,
    ) -> None:
        """refused: whether it was said already that nothing can be saved. there: what the newest file holds."""
        self._directory, self._bundle, self._every = directory, bundle, every
        self._bus = bus
        self._started = self._tried = time.monotonic()
        self._refused = refused
        self._there = _identity(there) if there else None
        self.written, self.reason = 0, ""

    @property
    def due(self) -> bool:
        """Whether `every` seconds have passed since the last try, or since the start."""
        return time.monotonic() - self._tried >= self._every

    def save(self, learner: Unguarded, source: str, place: Place = START) -> None:
        """Save what is learned up to a place in a replayed source, unless the newest file holds just that: a
        service that starts again and again because its camera is away must not wear out the card.

        Told each time; that saving is possible again, once.
        """
        begun = time.monotonic()
        snapshot = states.LearnedState.of(learner, self._bundle, source, place.frames, place.digest)
        if _identity(snapshot) == self._there:
            return
        try:
            size = states.save(self._directory, snapshot)
        except StateError as error:
            # Going on without saving is better than losing what was learned with the process.
            self._tried = time.monotonic()
            self.reason = str(error)
            self._bus.emit(SaveRefused(self.reason, again=self._refused))
            self._refused = True
            return
        self._tried = time.monotonic()
        self._there = _identity(snapshot)
        self.written += size
        seconds = self._tried - begun
        self._bus.emit(StateSaved(size, seconds, learner.learner.segments, self.written, self.per_day()))
        if self._refused:
            self._bus.emit(SavePossible(self._directory))
        self._refused, self.reason = False, ""

    def per_day(self) -> float | None:
        """Bytes a day at this run's pace so far; None for a run of less than LONG_ENOUGH_S."""
        return per_day(self.written, time.monotonic() - self._started)


def _identity(state: states.LearnedState) -> tuple[object, ...]:
    """What tells two states of one directory apart: nothing is learned without a count or what was taught changing."""
    taught = tuple(state.values.get("classes", ())), len(state.arrays.get("taught_labels", ()))
    return tuple(state.values["counts"].items()), taught, state.source, state.position, state.digest


def per_day(written: int, seconds: float) -> float | None:
    """Bytes a day, from what was written in so many seconds; None where these are too few to tell."""
    return written * DAY_S / seconds if seconds >= LONG_ENOUGH_S else None
