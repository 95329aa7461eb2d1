"""When an answer counts as another one: once it was the same for a while. Pure; one object for each stream."""

from __future__ import annotations

from dataclasses import dataclass

Label = str | None
"""A class name, or None for "none of the classes"."""


@dataclass(frozen=True)
class Change:
    """Another class than before is seen, and was so for long enough.

    label: the class. previous: the one before; `previous_seconds`: how long that was there, from its first frame to the
    first frame of this one, or None where nothing was known before (and `previous` says nothing).
    """

    label: Label
    previous: Label
    previous_seconds: float | None


class Debouncer:
    """Tells of a class once all frames of at least so many seconds show it.

    What is shorter than that, a frame that the model got wrong, a hand in front of the camera, counts as the class
    before it. So the classes that are told follow each other without gaps: each lasts from its own first frame to the
    first frame of the next.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known = False  # whether any class was told
        self._told: Label = None
        self._told_since = 0.0
        self._candidate: tuple[Label, float] | None = None  # what is seen now, and since when; None for what was told
        self._last: float | None = None

    def see(self, label: Label, time: float) -> Change | None:
        """One frame. time: seconds, not before the frame before; where it is, the stream began anew."""
        if self._last is not None and time < self._last:
            self._told_since += time - self._last
            self.interrupt()
        self._last = time
        if self._known and label == self._told:
            self._candidate = None
            return None
        if self._candidate is None or self._candidate[0] != label:
            self._candidate = label, time
        since = self._candidate[1]
        if time - since < self._seconds:
            return None
        lasted = since - self._told_since if self._known else None
        change = Change(label, self._told, lasted)
        self._known, self._told, self._told_since, self._candidate = True, label, since, None
        return change

    def interrupt(self) -> None:
        """Nothing was seen for a while: what came before does not count to what comes now."""
        self._candidate = None
