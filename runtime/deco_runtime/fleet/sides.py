"""Which side of a fleet's device goes with a learner: `device`, which sends sums, or `images`, its condensed images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deco_runtime.fleet import device, images
from deco_runtime.fleet.device import Offer
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check


class Side(Protocol):
    """See the functions of `device`, and of `images`."""

    def offer(
        self,
        directory: Path,
        guarded: Unguarded,
        bundle: Bundle,
        how: str,
        least: float,
        save: Callable[[], None],
        epsilon: float | None = None,
    ) -> object:
        """Put what is to be sent next on the disk, if there is any."""

    def offered(self, directory: Path, bundle: Bundle) -> Offer:
        """What `offer` left there."""

    def take_up(
        self,
        directory: Path,
        guarded: Unguarded,
        bundle: Bundle,
        save: Callable[[], None],
        check: Check = lambda: None,
    ) -> tuple[float, Verdict | None]:
        """Go by what the fleet handed over."""


def of(kind: type[Learner]) -> Side:
    """The side of a learner; that of sums says of others that they are in no fleet."""
    return images if issubclass(kind, ReplayLearner) else device
