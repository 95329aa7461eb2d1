"""The scenes of several streams, for a learner that knows of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deco_runtime.learning.learner import Learner
from deco_runtime.types import Floats


class Scenes:
    """What each stream showed at the end of its last segment, see `Learner.scene`.

    Of one stream it stays in the learner, and so in its state. Of several the learner has one only while it learns from
    that stream: none is saved, and each stream begins anew with the next run.
    """

    def __init__(self, learner: Learner, several: bool) -> None:
        self._learner, self._several = learner, several
        self._scenes: dict[int, Floats | None] = {}

    @contextmanager
    def of(self, stream: int) -> Iterator[None]:
        """The learner goes on from where this stream was."""
        if not self._several:
            yield
            return
        learner = self._learner
        scene = self._scenes.get(stream)
        # People may have added a class since.
        learner.scene = scene if scene is not None and len(scene) == learner.states else None
        try:
            yield
        finally:
            self._scenes[stream], learner.scene = learner.scene, None
