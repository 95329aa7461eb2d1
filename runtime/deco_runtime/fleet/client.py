"""What the client of a fleet does on a device, without Flower: through the run that holds the state, or alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deco_runtime.fleet import device, sides
from deco_runtime.fleet.device import Offer
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import Memory
from deco_runtime.running import control, door
from deco_runtime.running.alone import open_alone
from deco_runtime.storage.bundle import open_bundle


def give(state: Path, bundle_path: Path | None, how: str, least: float, epsilon: float | None = None) -> Offer:
    """The device's next difference of at least so many frames. bundle_path: as for `open_alone`, where no run is on.
    epsilon: as for `device.offer`.

    Raises the DecoError of whatever cannot be used.
    """
    hello = door.ask(state, {"do": "hello"})
    if hello is None:
        it = open_alone(state, bundle_path)
        side = sides.of(type(it.guarded.learner))
        side.offer(state, it.guarded, it.bundle, how, least, it.save, epsilon)
        return side.offered(state, it.bundle)
    door.ask(state, {"do": "offer", "how": how, "least": least, "epsilon": epsilon})
    return sides.of(registry.learner(hello["recipe"])).offered(state, open_bundle(Path(hello["bundle"])))


def take(state: Path, bundle_path: Path | None, fleet: Memory, number: int, refused: str = "") -> dict[str, Any]:
    """Have the device go by the fleet's sums; what came of it, as of `FleetMerged`. number, refused: see `hand_over`.
    Raises as `give`."""
    device.hand_over(state, fleet, number, refused)
    told = door.ask(state, {"do": "take up"})
    if told is None:
        it = open_alone(state, bundle_path)
        merged = control.taken_up(state, it.guarded, it.bundle, it.save)
        told = {"frames": merged.frames, "refused": merged.refused}
    return told
