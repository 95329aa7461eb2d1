"""Who sent what: the server's side of a fleet but for what is sent, which are sums (`pool`) or images (`image_pool`).

    offer     what one device sends: refused with a reason, or taken in
    settle    the round's are judged by the guard of the bundle, as an update of a device is, and kept or dropped

It is a learner with its guard, as a device has it, that sees no frames: its state is as safe as a device's. The number
of each device's last offer is all that is kept of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from deco_runtime.errors import StateError
from deco_runtime.fleet.sums import HOW
from deco_runtime.fleet.sums import digest as digest_of
from deco_runtime.learning.arrays import Array, Memory, whole
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle

MOST_MEMBERS = 1_000_000
"""Of one server; more devices send to servers of their own, which send to one above."""
LONGEST_NAME = 16
"""Letters of ASCII, as a device draws its own: all that is kept of so many devices has to fit into a state file."""


@dataclass(frozen=True)
class Place:
    """Of one device: number and digest of its last offer, what all count (see `Roll.UNIT`), and when the last came, in
    seconds since 1970."""

    number: int
    digest: str
    frames: float
    at: int = 0


class Roll(ABC):
    """places: of each device whose offers are part of what is learned. taken: offers of the round that ended last that
    became part of it; left_out: those that its end refused one by one, as [name, why]."""

    UNIT: ClassVar[str]
    """What is counted of each device."""

    def __init__(self, bundle: Bundle, guarded: Guarded) -> None:
        self._bundle, self.guarded = bundle, guarded
        self.places: dict[str, Place] = {}
        self.refused = self.taken = 0
        self.left_out: list[tuple[str, str]] = []
        self._turned_down: dict[str, str] = {}  # digests, in this round and in the last
        self._last_turned_down: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        """A new round."""
        self._new: dict[str, Place] = {}

    @property
    @abstractmethod
    def handed(self) -> Memory:
        """What is handed to the devices."""

    @property
    @abstractmethod
    def frames(self) -> float:
        """How many of UNIT that is made of."""

    @abstractmethod
    def _look(self, name: str, how: str, arrays: Mapping[str, Array]) -> tuple[str | None, float]:
        """Take in what fits and does no harm: why not, a clause or None, and its count. Raises ValueError for what is
        of another form."""

    @abstractmethod
    def _judged(self) -> Verdict:
        """Make what was taken in part of what is learned, if the guard lets it: what that says. `_take` counts it."""

    @property
    def waiting(self) -> int:
        """Offers of this round that were taken in."""
        return len(self._new)

    def number(self, name: str) -> int:
        """Of a device's last offer that is part of what is learned; 0 for none."""
        return self.places[name].number if name in self.places else 0

    def turned_down(self, name: str) -> str:
        """Digest of what this device offered in the round that ended last, where that was refused for what it is: it
        may take that back, and offer another. "" for none."""
        return self._last_turned_down.get(name, "")

    def offer(self, name: str, number: int, how: str, arrays: Mapping[str, Array], bundle: str) -> str | None:
        """Take in what a device sends. Why it is refused, as a clause; None where it was taken in, now or before.

        number: of it, one more than the device's last. how: the numbers it is sent in. bundle: hash of the device's.
        """
        reason = self._offer(name, number, how, arrays, bundle)
        self.refused += reason is not None
        return reason

    def _offer(self, name: str, number: int, how: str, arrays: Mapping[str, Array], bundle: str) -> str | None:
        if bundle != self._bundle.hash:
            return "is of another bundle"
        if not (0 < len(name) <= LONGEST_NAME and name.isascii() and name.isprintable()):
            return "is of a device without a name"
        if how not in HOW:
            return "is sent in numbers that are not known"
        place = self._new.get(name) or self.places.get(name) or Place(0, "", 0.0)
        digest = digest_of(arrays)
        if (number, digest) == (place.number, place.digest):
            return None
        if name in self._new:
            return "is a second one in this round"
        if number != place.number + 1:
            return f"is number {number}, where {place.number + 1} comes next"
        if digest == place.digest:
            return "has been sent before"
        if len(self.places) + len(self._new) >= MOST_MEMBERS and name not in self.places:
            return "is of one device too many"
        try:
            reason, count = self._look(name, how, arrays)
        except ValueError:
            return "does not fit the bundle"
        if reason is None:
            self._new[name] = Place(number, digest, round(place.frames + count, 1), int(time.time()))
        else:
            self._turned_down[name] = digest
        return reason

    def settle(self) -> Verdict | None:
        """End a round: what the guard says of it. None where nothing was taken in."""
        self._last_turned_down, self._turned_down = self._turned_down, {}
        self.taken, self.left_out = 0, []
        if not self._new:
            return None
        verdict = self._judged()
        self._begin()
        return verdict

    def _take(self, names: Sequence[str]) -> None:
        """What these offered is part of what is learned."""
        self.places |= {name: self._new[name] for name in names}
        self.taken = len(names)

    def save(self, directory: Path) -> None:
        """All of it. Raises StateError where the disk refuses."""
        state = states.LearnedState.of(self.guarded, self._bundle, "fleet", 0)
        places = {name: [it.number, it.digest, it.frames, it.at] for name, it in self.places.items()}
        states.save(directory, replace(state, values={**state.values, "fleet": places}))

    def load(self, directory: Path) -> str | None:
        """Go on from what was saved there, if anything was; a sentence where the newest had to be passed over. Raises
        StateError where it cannot be used."""
        restored, passed_over = states.load(directory, self._bundle, self.guarded)
        if restored is not None:
            try:
                self.places = {name: _place(values) for name, values in restored.values["fleet"].items()}
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise StateError(
                    f"expected a fleet's state in {directory}, but found none, or one of another version; use that, or "
                    "another --state"
                ) from error
            self._begin()
        return passed_over


def _place(values: Sequence[Any]) -> Place:
    number, digest, count, at = values
    return Place(whole(number), str(digest), float(count), whole(at))
