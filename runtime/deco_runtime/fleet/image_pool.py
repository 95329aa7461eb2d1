"""The condensed images of a fleet under `paper`, see `roll` and `union`: nothing is exact here.

A round's buffers are condensed into the server's at once. Where the guard refuses the model made of that, each is tried
alone, so that one device cannot have those of all others refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from deco_runtime.fleet.images import Images, read
from deco_runtime.fleet.roll import Roll
from deco_runtime.fleet.union import complaint, condense, contradiction, of_images
from deco_runtime.learning import buffer as buffers
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage.bundle import Bundle

MOST_AT_ONCE = 100
"""Buffers of one round, which are all in memory; the others are taken in the next ones."""


class ImagePool(Roll):
    """Raises UsageError for a recipe that does not keep images."""

    UNIT = "condensed images"

    def __init__(self, bundle: Bundle, guarded: Guarded) -> None:
        self._learner, self._first = of_images(guarded.learner), buffers.initial(bundle)
        super().__init__(bundle, guarded)

    def _begin(self) -> None:
        super()._begin()
        self._buffers: dict[str, CondensedBuffer] = {}

    @property
    def handed(self) -> Images:
        """The server's own buffer."""
        return Images(self._learner.memory.x_syn)

    @property
    def frames(self) -> float:
        """Images that devices sent, and the bundle's."""
        return len(self._first.y_syn) + sum(place.frames for place in self.places.values())

    def _offer(self, name: str, number: int, how: str, arrays: Mapping[str, Array], bundle: str) -> str | None:
        if len(self._buffers) >= MOST_AT_ONCE and name not in self._new:
            return "is one too many for this round"
        return super()._offer(name, number, how, arrays, bundle)

    def _look(self, name: str, how: str, arrays: Mapping[str, Array]) -> tuple[str | None, float]:
        buffer = read(arrays, self._first)
        reason = complaint(buffer, self._first) or contradiction(buffer, self._learner, self._first)
        if reason is None:
            self._buffers[name] = buffer
        return reason, len(buffer.y_syn)

    def _judged(self) -> Verdict:
        """All at once, or else one by one; who is refused then is turned down."""
        verdict, good = condense(self.guarded, list(self._buffers.values())), list(self._new)
        assert verdict is not None
        if not verdict.accepted:
            good = []
            for name, buffer in self._buffers.items():
                alone = condense(self.guarded, [buffer]) if len(self._buffers) > 1 else verdict
                assert alone is not None
                if alone.accepted:
                    verdict, good = alone, [*good, name]
                else:
                    self.left_out.append((name, f"gives a model that {alone.reason}"))
                    self._last_turned_down[name] = self._new[name].digest
        self._take(good)
        self._learner.segments += bool(good)
        return verdict
