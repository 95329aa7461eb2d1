"""The sums of a fleet's devices, made of differences that are each looked at alone; see `roll`.

The memory it takes does not grow with the devices of a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from deco_runtime.fleet.member import LEAST, of_sums
from deco_runtime.fleet.roll import Roll
from deco_runtime.fleet.sums import complaint, contradiction, frames, unpacked
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.regression import Doubles, Statistics, together
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Floats


class Pool(Roll):
    """Sums of a fleet. Raises UsageError for a recipe whose learning is not made of sums."""

    UNIT = "frames"

    def __init__(self, bundle: Bundle, guarded: Guarded, least: float = LEAST) -> None:
        """least: frames that a difference must be of."""
        self._learner, self._least = of_sums(guarded.learner), least
        self._careful = False  # the last round did harm that no difference did alone
        super().__init__(bundle, guarded)

    def _begin(self) -> None:
        super()._begin()
        sums = self._learner.memory
        self._a, self._b = sums.a.astype(np.float64), sums.b.astype(np.float64)

    @property
    def sums(self) -> Statistics:
        """Those that were accepted so far, with the bundle's labelled images."""
        return self._learner.memory

    @property
    def handed(self) -> Statistics:
        """The same."""
        return self.sums

    @property
    def frames(self) -> float:
        """How many those are of."""
        return frames(self.sums)

    def _look(self, name: str, how: str, arrays: Mapping[str, Array]) -> tuple[str | None, float]:
        start = self._learner.start.statistics
        sums = unpacked(arrays, how, *start.b.shape)
        reason = complaint(sums, start, self._least) or contradiction(sums, self._learner.voter.w)
        reason = reason or self._harm(together(start, sums))
        a, b = self._a + sums.a, self._b + sums.b
        if reason is None and self._careful:
            reason = self._verdict(_single(a, b))
        if reason is None:
            self._a, self._b = a, b
        return reason, frames(sums)

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

    def _judged(self) -> Verdict:
        """Its differences become part of the sums unless the guard says that the model made of them does harm; then
        none of them is confirmed, and in the next round each is looked at beside those before it."""
        guarded = self.guarded
        self._learner.memory = _single(self._a, self._b)
        self._learner.segments += 1
        verdict = guarded.retrain().verdict
        assert verdict is not None
        self._careful = not verdict.accepted
        if verdict.accepted:
            self._take(list(self._new))
        else:
            guarded.kept = replace(guarded.kept, pause=0)  # devices do not wait for each other
        return verdict


def _single(a: Doubles, b: Doubles) -> Statistics:
    return Statistics(a.astype(np.float32), b.astype(np.float32))
