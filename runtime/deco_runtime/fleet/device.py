"""What a device does for its fleet: whoever owns what is learned calls this, a run or a command while no run is on.

offer      put the next difference on the disk, for the fleet's client to send
take_up    go by the fleet's sums, if the device's own guard lets it
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import Member
from deco_runtime.fleet.noise import Noise
from deco_runtime.fleet.sums import HOW, frames
from deco_runtime.learning.arrays import arrays_of, memory_like
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.regression import Statistics, of_classes
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage import checked
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check

MERGED = "fleet.merged.deco"
"""In the state directory, for as long as it takes: the sums of the fleet, and what it has of this device."""


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


def hand_over(directory: Path, fleet: Statistics, number: int, refused: str = "") -> None:
    """Put the fleet's sums where `take_up` finds them. number: of the device's last difference that they have. refused:
    digest of one that they will never have."""
    checked.write(directory / MERGED, arrays_of(fleet), {"number": number, "refused": refused})


def take_up(
    directory: Path, guarded: Unguarded, bundle: Bundle, save: Callable[[], None], check: Check = lambda: None
) -> tuple[float, Verdict | None]:
    """Go by the fleet's sums that were handed over: the frames they are of, and what the guard says, None without one.

    save, and what is raised: as for `offer`; and StateError where no sums were handed over.
    """
    place, path = _place(directory, guarded, bundle), directory / MERGED
    like = place.base
    try:
        arrays, values = checked.read(path, 2 * sum(array.nbytes for array in arrays_of(like).values()))
        fleet, number, refused = memory_like(arrays, like), int(values["number"]), str(values["refused"])
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise StateError(f"expected a fleet's sums in {path}, but found none ({error}); send again") from error
    place = members.withdrawn(members.confirmed(place, number), refused)
    verdict = guarded.adopt(members.merged(place, fleet, guarded.accepted), check)
    if verdict is None or verdict.accepted:
        # Both are there until what is learned is saved: a power cut leaves either the one or the other.
        members.keep(directory, members.took(place, fleet), bundle.hash)
        save()
        place = _settled(members.took(place, fleet), guarded)
    members.keep(directory, place, bundle.hash)
    path.unlink()
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
