"""A device's side of a fleet: what of its sums the server has, and what is under way.

    settled     that it goes with what is learned, which may be older or newer
    offered     the difference to send, the same one again until it is confirmed
    confirmed   the server has it
    withdrawn   it has refused it
    merged      the fleet's sums, and behind them what the device has learned since

Each step is a pure function from a `Member` to the next; `kept` and `keep` have it on the disk. A difference is
numbered, and on the disk before it is sent: so whatever is lost or sent twice, no frame is counted twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet.sums import HOW, digest, frames, minus, packed, unpacked
from deco_runtime.learning.arrays import Array, arrays_of, memory_like, whole
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.regression import Statistics, of_classes, together
from deco_runtime.learning.teachable import TeachableLearner
from deco_runtime.storage import checked

FILE = "fleet.deco"
"""In the state directory."""
LEAST = 100.0
"""Frames that a difference is of: fewer could tell what was seen."""


@dataclass(frozen=True)
class Member:
    """name: of the device in its fleet, drawn once. number: of the last difference that was confirmed. base: what the
    fleet has of the sums of the device that has taken up the fleet's so many times, `merges`; next: of the one that
    has done so once more, which may not be on the disk yet. sent: the difference under way, None for none; how: in
    which of HOW. segments: that the device had learned when this was written."""

    name: str
    number: int
    base: Statistics
    next: Statistics | None
    sent: Statistics | None
    how: str
    merges: int
    segments: int


def of_sums(learner: Learner) -> TeachableLearner:
    """The learner. Raises UsageError for one whose learning is not made of sums."""
    if not isinstance(learner, TeachableLearner):
        raise UsageError(
            f"expected a recipe whose devices can be added up, deco+ or slda, but found {learner.recipe.name!r}; "
            "choose one of these"
        )
    return learner


def joins(start: Statistics) -> Member:
    """A device that has not sent anything: the fleet has the labelled images."""
    return Member(secrets.token_hex(8), 0, start, None, None, HOW[0], 0, 0)


def settled(member: Member, now: Statistics, merges: int, segments: int) -> Member:
    """Going with what is learned now: sums, merges with the fleet, and segments.

    A device that has gone back to an older state does not send again what it knows now; what it forgot by that stays
    with the fleet.
    """
    if merges == member.merges + 1 and member.next is not None:
        member = replace(member, base=member.next, merges=merges)
    elif merges != member.merges or segments < member.segments:
        base = now if member.sent is None else minus(now, member.sent)  # which is added to it when confirmed
        member = replace(member, base=base, merges=merges)
    return replace(member, next=None, segments=segments)


def offered(member: Member, now: Statistics, how: str, least: float = LEAST) -> Member:
    """With a difference under way, unless that is of fewer frames than `least`. now: the sums that the device's own
    guard has accepted."""
    if member.sent is not None:
        return member
    new = minus(now, member.base)
    if not frames(new) >= least:  # nan asks for nothing
        return member
    return replace(member, sent=unpacked(packed(new, how), how, *new.b.shape), how=how)


def confirmed(member: Member, number: int) -> Member:
    """The server has all up to this number. What was rounded away in sending is left for the next time.

    Raises StateError for a number that cannot be, of a server that lacks what it had or has what was never sent: what
    it hands out are not the sums that this device is part of.
    """
    if not member.number <= number <= member.number + (member.sent is not None):
        raise StateError(
            f"expected a server that has {member.number} differences of this device, or the next one too, but it says "
            f"{number}: one of the two has gone back to an older state, or it is another fleet; bring back the newer "
            f"one, or move {FILE} away to join anew"
        )
    if number == member.number:
        return member
    assert member.sent is not None
    return replace(member, number=number, base=together(member.base, member.sent), sent=None)


def withdrawn(member: Member, refused: str) -> Member:
    """Without the difference under way, if that is the one of this digest: the server has refused it, so its frames are
    sent with others, under the same number."""
    if member.sent is None or digest(payload(member)) != refused:
        return member
    return replace(member, sent=None)


def merged(member: Member, fleet: Statistics, now: Statistics) -> Statistics:
    """The fleet's sums with those that the device has learned and the fleet lacks. now: the device's, which may have
    classes that people added there; these stay with the device."""
    return together(now, of_classes(minus(fleet, member.base), now.b.shape[1]))


def took(member: Member, fleet: Statistics) -> Member:
    """The device goes by the fleet's sums, once what it has learned is on the disk."""
    return replace(member, next=fleet)


def keep(directory: Path, member: Member, bundle: str) -> None:
    """To the disk. bundle: its hash. Raises StateError where that refuses."""
    parts = {"": member.base, "next_": member.next, "sent_": member.sent}
    arrays = {f"{key}{name}": a for key, part in parts.items() if part for name, a in arrays_of(part).items()}
    values = {name: getattr(member, name) for name in ("name", "number", "how", "merges", "segments")}
    checked.write(directory / FILE, arrays, {"bundle": bundle, **values})


def kept(directory: Path, like: Statistics, bundle: str) -> Member | None:
    """From the disk; None where the device is in no fleet. Raises StateError where it cannot be read."""
    path = directory / FILE
    if not path.exists():
        return None
    size = 3 * sum(array.nbytes for array in arrays_of(like).values())
    try:
        return _member(*checked.read(path, size), like, bundle)
    except StateError:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise StateError(
            f"expected the device's place in its fleet in {path}, but it is damaged ({error}); move it away: what the "
            "device has learned so far is not sent then"
        ) from error


def _member(arrays: Mapping[str, Array], values: Mapping[str, Any], like: Statistics, bundle: str) -> Member:
    if values["bundle"] != bundle:
        raise StateError(
            f"expected the place in a fleet of this bundle, but {FILE} is of another one; give that bundle, or another "
            "--state"
        )
    how = str(values["how"])
    if how not in HOW:
        raise ValueError("it is sent in numbers that are not known")
    base, following, sent = (
        memory_like(arrays, like, key) if f"{key}a" in arrays else None for key in ("", "next_", "sent_")
    )
    if base is None:
        raise ValueError("it has no sums")
    number, merges, segments = (whole(values[name]) for name in ("number", "merges", "segments"))
    return Member(str(values["name"]), number, base, following, sent, how, merges, segments)


def payload(member: Member) -> dict[str, Array]:
    """The difference under way, as it is sent. It is packed of what it was unpacked to, which gives the same."""
    assert member.sent is not None
    return packed(member.sent, member.how)
