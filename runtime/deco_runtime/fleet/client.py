"""What the client of a fleet does on a device, without Flower: through the run that holds the state, or alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deco_runtime.fleet import device
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import Member
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.regression import Statistics
from deco_runtime.learning.voter import start
from deco_runtime.running import control, door
from deco_runtime.running.alone import open_alone
from deco_runtime.storage.bundle import Bundle, open_bundle


@dataclass(frozen=True)
class Offer:
    """A device's next difference, as `Pool.offer` takes it. arrays: {} where there is nothing to send; number: of this
    one, or else of the last that was confirmed."""

    name: str
    number: int
    how: str
    bundle: str
    arrays: Mapping[str, Array]


def give(state: Path, bundle_path: Path | None, how: str, least: float, epsilon: float | None = None) -> Offer:
    """The device's next difference of at least so many frames. bundle_path: as for `open_alone`, where no run is on.
    epsilon: as for `device.offer`.

    Raises the DecoError of whatever cannot be used.
    """
    hello = door.ask(state, {"do": "hello"})
    if hello is None:
        it = open_alone(state, bundle_path)
        return _offer(device.offer(state, it.guarded, it.bundle, how, least, it.save, epsilon), it.bundle)
    door.ask(state, {"do": "offer", "how": how, "least": least, "epsilon": epsilon})
    bundle = open_bundle(Path(hello["bundle"]))
    place = members.kept(state, start(bundle).statistics, bundle.hash)
    assert place is not None  # the run has just written it
    return _offer(place, bundle)


def take(state: Path, bundle_path: Path | None, fleet: Statistics, number: int, refused: str = "") -> dict[str, Any]:
    """Have the device go by the fleet's sums; what came of it, as of `FleetMerged`. number, refused: see `hand_over`.
    Raises as `give`."""
    device.hand_over(state, fleet, number, refused)
    told = door.ask(state, {"do": "take up"})
    if told is None:
        it = open_alone(state, bundle_path)
        merged = control.taken_up(state, it.guarded, it.bundle, it.save)
        told = {"frames": merged.frames, "refused": merged.refused}
    return told


def _offer(place: Member, bundle: Bundle) -> Offer:
    if place.sent is None:
        return Offer(place.name, place.number, place.how, bundle.hash, {})
    return Offer(place.name, place.number + 1, place.how, bundle.hash, members.payload(place))
