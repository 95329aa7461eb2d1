"""The server's side of a fleet: the sums of all devices, made of differences that are each looked at alone.

    offer     one device's difference: refused with a reason, or added up
    settle    the round's sums are judged by the guard of the bundle, as an update of a device is, and kept or dropped

A pool is a learner with its guard, as a device has it, that sees no frames: its state is as safe as a device's. The
memory it takes does not grow with the devices of a round, and the number of each one's last difference is all that is
kept of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime.errors import StateError
from deco_runtime.fleet.member import LEAST, of_sums
from deco_runtime.fleet.sums import HOW, complaint, contradiction, frames, unpacked
from deco_runtime.fleet.sums import digest as sums_digest
from deco_runtime.learning.arrays import Array, whole
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.regression import Doubles, Statistics, together
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Floats

MOST_MEMBERS = 1_000_000
"""In one pool; more devices send to pools of their own, which send to one above."""
LONGEST_NAME = 16
"""Letters of ASCII, as a device draws its own: all that is kept of so many devices has to fit into a state file."""


@dataclass(frozen=True)
class Place:
    """Of one device: number and digest of its last difference, frames of all, and when the last came, in seconds since
    1970."""

    number: int
    digest: str
    frames: float
    at: int = 0


class Pool:
    """Sums of a fleet. Raises UsageError for a recipe whose learning is not made of sums."""

    def __init__(self, bundle: Bundle, guarded: Guarded, least: float = LEAST) -> None:
        """least: frames that a difference must be of."""
        self._bundle, self.guarded, self._learner, self._least = bundle, guarded, of_sums(guarded.learner), least
        self.places: dict[str, Place] = {}
        self.refused = 0
        self._careful = False  # the last round did harm that no difference did alone
        self._turned_down: dict[str, str] = {}  # digests, in this round and in the last
        self._last_turned_down: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        sums = self._learner.memory
        self._a, self._b = sums.a.astype(np.float64), sums.b.astype(np.float64)
        self._new: dict[str, Place] = {}

    @property
    def sums(self) -> Statistics:
        """Those that were accepted so far, with the bundle's labelled images."""
        return self._learner.memory

    @property
    def frames(self) -> float:
        """How many those are of."""
        return frames(self.sums)

    @property
    def waiting(self) -> int:
        """Differences of this round that were taken in."""
        return len(self._new)

    def number(self, name: str) -> int:
        """Of a device's last difference that is part of the sums; 0 for none."""
        return self.places[name].number if name in self.places else 0

    def turned_down(self, name: str) -> str:
        """Digest of what this device offered in the round that ended last, where that was refused for what it is: it
        may take these frames back, and offer them with others. "" for none."""
        return self._last_turned_down.get(name, "")

    def offer(self, name: str, number: int, how: str, arrays: Mapping[str, Array], bundle: str) -> str | None:
        """Take in a device's difference. Why it is refused, as a clause; None where it was taken in, now or before.

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
        digest = sums_digest(arrays)
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
        start = self._learner.start.statistics
        try:
            sums = unpacked(arrays, how, *start.b.shape)
        except ValueError:
            return "does not fit the bundle"
        reason = complaint(sums, start, self._least) or contradiction(sums, self._learner.voter.w)
        reason = reason or self._harm(together(start, sums))
        a, b = self._a + sums.a, self._b + sums.b
        if reason is None and self._careful:
            reason = self._verdict(_single(a, b))
        if reason is None:
            self._a, self._b = a, b
            self._new[name] = Place(number, digest, round(place.frames + frames(sums), 1), int(time.time()))
        else:
            self._turned_down[name] = digest
        return reason

    def _harm(self, memory: Statistics) -> str | None:
        """What a model does that is made of this alone."""
        return self.guarded.harm(self._solved(memory))

    def _verdict(self, memory: Statistics) -> str | None:
        """Why the round would be refused if it ended with these sums: then what came last is left out, else one device
        whose harm no check sees alone would have every round refused."""
        return self.guarded.judge(self._solved(memory)).reason

    def _solved(self, memory: Statistics) -> Floats:
        before = self._learner.memory
        self._learner.memory = memory
        try:
            return self._learner.solve(lambda: None)[0]
        finally:
            self._learner.memory = before

    def settle(self) -> Verdict | None:
        """End a round: its differences become part of the sums unless the guard says that the model made of them does
        harm; then none of them is confirmed, and in the next round each is looked at beside those before it. None where
        nothing was taken in."""
        self._last_turned_down, self._turned_down = self._turned_down, {}
        if not self._new:
            return None
        guarded, new = self.guarded, self._new
        self._learner.memory = _single(self._a, self._b)
        self._learner.segments += 1
        verdict = guarded.retrain().verdict
        assert verdict is not None
        self._careful = not verdict.accepted
        if verdict.accepted:
            self.places |= new
        else:
            guarded.kept = replace(guarded.kept, pause=0)  # devices do not wait for each other
        self._begin()
        return verdict

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


def _single(a: Doubles, b: Doubles) -> Statistics:
    return Statistics(a.astype(np.float32), b.astype(np.float32))


def _place(values: Sequence[Any]) -> Place:
    number, digest, frames_of_all, at = values
    return Place(whole(number), str(digest), float(frames_of_all), whole(at))
