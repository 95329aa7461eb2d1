"""What a device does for its fleet: whoever owns what is learned calls this, a run or a command while no run is on.

This is the side of devices whose learning is made of sums; the other one is `images`, see `sides`.

offer      put the next difference on the disk, for the fleet's client to send
take_up    go by the fleet's sums, if the device's own guard lets it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import Member
from deco_runtime.fleet.noise import Noise
from deco_runtime.fleet.sums import HOW, frames
from deco_runtime.learning.arrays import Array, Memory, arrays_of, memory_like
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.regression import Statistics, of_classes
from deco_runtime.learning.reports import Verdict
from deco_runtime.learning.voter import start
from deco_runtime.storage import checked
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check

MERGED = "fleet.merged.deco"
"""In the state directory, for as long as it takes: what the fleet has learned, and what it has of this device."""

M = TypeVar("M", bound=Memory)


@dataclass(frozen=True)
class Offer:
    """What a device sends, as `Roll.offer` takes it. arrays: {} where there is nothing to send; number: of this one, or
    else of the last that was confirmed."""

    name: str
    number: int
    how: str
    bundle: str
    arrays: Mapping[str, Array]


def offer(
    directory: Path,
    guarded: Unguarded,
    bundle: Bundle,
    how: str,
    least: float,
    save: Callable[[], None],
    epsilon: float | None = None,
) -> Member:
    """The device's place with a difference under way, if there is one of at least so many frames.

    save: has what is learned on the disk, since what is sent must not be lost here. epsilon: of the noise that is put
    on what is sent from now on, see `noise`; None for none. Raises UsageError for a recipe that is not made of sums,
    for numbers that are not known and for no ε, StateError where the disk refuses or what is on it cannot be used.
    """
    if how not in HOW:
        raise UsageError(
            f"expected numbers of {', '.join(HOW)}, but found {how!r:.40}; use the same version as the server"
        )
    place, noise, learner = _place(directory, guarded, bundle), None, members.of_sums(guarded.learner)
    if epsilon is not None:
        noise = Noise(epsilon, learner.start.statistics)
        if learner.longest > noise.most:
            # No noise hides frames that were added up as they are: they stay here, also those that nobody judged yet.
            # In this order, since a state that is bound must not be found beside a place that has these to send.
            learner.memory = guarded.accepted
            place = members.forgone(place, _own(guarded))
            members.keep(directory, place, bundle.hash)
            learner.longest = noise.most
    place = members.offered(place, _own(guarded), how, least, noise)
    learner.offers = place.offers
    save()
    members.keep(directory, place, bundle.hash)
    return place


def offered(directory: Path, bundle: Bundle) -> Offer:
    """What `offer` left. Raises StateError where it cannot be read."""
    place = members.kept(directory, start(bundle).statistics, bundle.hash)
    assert place is not None  # it has just been written
    if place.sent is None:
        return Offer(place.name, place.number, place.how, bundle.hash, {})
    return Offer(place.name, place.number + 1, place.how, bundle.hash, members.payload(place))


def hand_over(directory: Path, fleet: Memory, number: int, refused: str = "") -> None:
    """Put what the fleet has learned where `take_up` finds it. number: of the device's last offer that is in it.
    refused: digest of one that will never be."""
    checked.write(directory / MERGED, arrays_of(fleet), {"number": number, "refused": refused})


def handed(directory: Path, like: M) -> tuple[M, int, str]:
    """What `hand_over` was given. Raises StateError where there is nothing that is like this."""
    path = directory / MERGED
    try:
        arrays, values = checked.read(path, 2 * sum(array.nbytes for array in arrays_of(like).values()))
        return memory_like(arrays, like), int(values["number"]), str(values["refused"])
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise StateError(f"expected a fleet's sums in {path}, but found none ({error}); send again") from error


def take_up(
    directory: Path, guarded: Unguarded, bundle: Bundle, save: Callable[[], None], check: Check = lambda: None
) -> tuple[float, Verdict | None]:
    """Go by the fleet's sums that were handed over: the frames they are of, and what the guard says, None without one.

    save, and what is raised: as for `offer`; and StateError where no sums were handed over.
    """
    place = _place(directory, guarded, bundle)
    fleet, number, refused = handed(directory, place.base)
    place = members.withdrawn(members.confirmed(place, number), refused)
    verdict = guarded.adopt(members.merged(place, fleet, guarded.accepted), check)
    if verdict is None or verdict.accepted:
        # Both are there until what is learned is saved: a power cut leaves either the one or the other.
        members.keep(directory, members.took(place, fleet), bundle.hash)
        save()
        place = _settled(members.took(place, fleet), guarded)
    members.keep(directory, place, bundle.hash)
    (directory / MERGED).unlink()
    return frames(fleet), verdict


def _own(guarded: Unguarded) -> Statistics:
    """Those of the bundle's classes that the guard has accepted."""
    return of_classes(guarded.accepted, guarded.learner.bundle_classes)


def _place(directory: Path, guarded: Unguarded, bundle: Bundle) -> Member:
    start = members.of_sums(guarded.learner).start.statistics
    return _settled(members.kept(directory, start, bundle.hash) or members.joins(start), guarded)


def _settled(place: Member, guarded: Unguarded) -> Member:
    learner = guarded.learner
    found = members.settled(place, _own(guarded), learner.merges, learner.offers)
    learner.offers = found.offers  # what went back once is not taken for older again
    return found
