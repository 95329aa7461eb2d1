"""A device's side of a fleet: what of its sums the server has, and what is under way.

    settled     that it goes with what is learned, which may be older or newer
    offered     the difference to send, the same one again until it is confirmed
    confirmed   the server has it
    withdrawn   it has refused it
    forgone     what is learned now will not be sent
    merged      the fleet's sums, and behind them what the device has learned since

Each step is a pure function from a `Member` to the next; `kept` and `keep` have it on the disk. A difference is
numbered, and on the disk before it is sent: so whatever is lost or sent twice, no frame is counted twice. Under noise
(see `noise`) a frame is in one difference only, whatever becomes of that.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet.noise import Noise
from deco_runtime.fleet.sums import HOW, digest, frames, minus, packed, unpacked
from deco_runtime.learning.arrays import Array, arrays_of, memory_like, whole
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.regression import Statistics, of_classes, together
from deco_runtime.learning.teachable import TeachableLearner
from deco_runtime.storage import checked

FILE = "fleet.deco"
"""In the state directory."""
PARTS = ("base", "next", "sent", "true", "apart")
"""Sums of a device, of which those that are there are kept."""
LEAST = 100.0
"""Frames that a difference is of: fewer could tell what was seen."""


@dataclass(frozen=True)
class Member:
    """name: of the device in its fleet, drawn once. number: of the last difference that was confirmed. base: what the
    fleet has, or will never have, of the sums of the device that has taken up the fleet's so many times, `merges`;
    next: of the one that has done so once more, which may not be on the disk yet. sent: the difference under way, None
    for none; how: in which of HOW. offers: differences that were ever made.

    true: sent without its noise, None where it has none. apart: what the fleet has beyond base, noise, and less than
    nothing of frames that it will never have; None for nothing."""

    name: str
    number: int
    base: Statistics
    next: Statistics | None
    sent: Statistics | None
    how: str
    merges: int
    offers: int
    true: Statistics | None = None
    apart: Statistics | None = None

    @property
    def under_way(self) -> Statistics | None:
        """Frames of the difference under way, without noise."""
        return self.sent if self.true is None else self.true

    @property
    def had(self) -> Statistics:
        """What the fleet has of base."""
        return self.base if self.apart is None else together(self.base, self.apart)


def of_sums(learner: Learner) -> TeachableLearner:
    """The learner. Raises UsageError for one whose learning is not made of sums."""
    if not isinstance(learner, TeachableLearner):
        raise UsageError(
            f"expected a recipe whose devices can be added up, deco+ or slda, or their images condensed, paper, but "
            f"found {learner.recipe.name!r}; choose one of these"
        )
    return learner


def joins(start: Statistics) -> Member:
    """A device that has not sent anything: the fleet has the labelled images."""
    return Member(secrets.token_hex(8), 0, start, None, None, HOW[0], 0, 0)


def settled(member: Member, now: Statistics, merges: int, offers: int) -> Member:
    """Going with what is learned now: sums, and what the learner counts of merges with the fleet and offers to it.

    A device that has gone back to an older state does not send again what it knows now; what it forgot by that stays
    with the fleet.
    """
    if merges == member.merges + 1 and member.next is not None:
        member = replace(member, base=member.next, merges=merges)
    elif merges != member.merges or offers < member.offers:
        member = replace(member, base=_all_but(now, member.under_way), merges=merges)
    return replace(member, next=None, offers=max(offers, member.offers))


def _all_but(now: Statistics, under_way: Statistics | None) -> Statistics:
    """The sums without the difference under way, which is added to them when it is confirmed."""
    return now if under_way is None else minus(now, under_way)


def offered(member: Member, now: Statistics, how: str, least: float = LEAST, noise: Noise | None = None) -> Member:
    """With a difference under way, unless that is of fewer frames than `least`. now: the sums that the device's own
    guard has accepted. noise: put on a new difference, once."""
    if member.sent is not None:
        return member
    new = minus(now, member.base)
    if not (frames(new) if noise is None else noise.left(new)) >= least:  # nan asks for nothing
        return member
    made = new if noise is None else noise.on(new, np.random.default_rng())
    sent = unpacked(packed(made, how), how, *new.b.shape)
    return replace(member, sent=sent, how=how, true=None if noise is None else new, offers=member.offers + 1)


def forgone(member: Member, now: Statistics) -> Member:
    """What is learned now will not be sent, but for the difference under way; the device keeps it."""
    base = _all_but(now, member.under_way)
    return replace(member, base=base, apart=minus(member.had, base))


def confirmed(member: Member, number: int) -> Member:
    """The server has all up to this number. What was rounded away in sending is left for the next time.

    Raises StateError for a number that cannot be, of a server that lacks what it had or has what was never sent: what
    it hands out are not the sums that this device is part of.
    """
    check_number(member.number, member.sent is not None, number)
    if number == member.number:
        return member
    assert member.sent is not None
    return replace(_passed(member, member.sent), number=number)


def check_number(last: int, under_way: bool, number: int) -> None:
    """Raise StateError unless a server may say this number. last: of what is confirmed."""
    if not last <= number <= last + under_way:
        raise StateError(
            f"expected a server that has {last} differences of this device, or the next one too, but it says {number}: "
            "one of the two has gone back to an older state, or it is another fleet; bring back the newer one, or move "
            f"{FILE} away to join anew"
        )


def withdrawn(member: Member, refused: str) -> Member:
    """Without the difference under way, if that is the one of this digest: the server has refused it, so its frames are
    sent with others, under the same number. Those that noise was put on are lost to the fleet: sent again under other
    noise they would be looked at twice."""
    if member.sent is None or digest(payload(member)) != refused:
        return member
    return replace(member, sent=None) if member.true is None else _passed(member, None)


def _passed(member: Member, as_known: Statistics | None) -> Member:
    """The frames under way are not to be sent any more, which the fleet has as these sums, or not at all."""
    true, apart = member.true, member.apart
    if true is not None:
        beyond = minus(Statistics(0 * true.a, 0 * true.b) if as_known is None else as_known, true)
        apart = beyond if apart is None else together(apart, beyond)
    assert member.under_way is not None
    base = together(member.base, member.under_way)
    return replace(member, base=base, sent=None, true=None, apart=apart)


def merged(member: Member, fleet: Statistics, now: Statistics) -> Statistics:
    """The fleet's sums with those that the device has learned and the fleet lacks. now: the device's, which may have
    classes that people added there; these stay with the device."""
    return together(now, of_classes(minus(fleet, member.had), now.b.shape[1]))


def took(member: Member, fleet: Statistics) -> Member:
    """The device goes by the fleet's sums, once what it has learned is on the disk."""
    return replace(member, next=fleet if member.apart is None else minus(fleet, member.apart))


def keep(directory: Path, member: Member, bundle: str) -> None:
    """To the disk. bundle: its hash. Raises StateError where that refuses."""
    parts = {"" if name == "base" else f"{name}_": getattr(member, name) for name in PARTS}
    arrays = {f"{key}{name}": a for key, part in parts.items() if part for name, a in arrays_of(part).items()}
    values = {name: getattr(member, name) for name in ("name", "number", "how", "merges", "offers")}
    checked.write(directory / FILE, arrays, {"bundle": bundle, **values})


def kept(directory: Path, like: Statistics, bundle: str) -> Member | None:
    """From the disk; None where the device is in no fleet. Raises StateError where it cannot be read."""
    path = directory / FILE
    if not path.exists():
        return None
    size = len(PARTS) * sum(array.nbytes for array in arrays_of(like).values())
    try:
        return _member(*checked.read(path, size), like, bundle)
    except StateError:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> StateError:
    """What to say of a file that cannot be read."""
    return StateError(
        f"expected the device's place in its fleet in {path}, but it is damaged ({error}); move it away: what the "
        "device has learned so far is not sent then"
    )


def check_bundle(values: Mapping[str, Any], bundle: str) -> None:
    """Raise StateError for a place in the fleet of another bundle."""
    if values["bundle"] != bundle:
        raise StateError(
            f"expected the place in a fleet of this bundle, but {FILE} is of another one; give that bundle, or another "
            "--state"
        )


def _member(arrays: Mapping[str, Array], values: Mapping[str, Any], like: Statistics, bundle: str) -> Member:
    check_bundle(values, bundle)
    how = str(values["how"])
    if how not in HOW:
        raise ValueError("it is sent in numbers that are not known")
    base, following, sent, true, apart = (
        memory_like(arrays, like, key) if f"{key}a" in arrays else None
        for key in ("", *(f"{name}_" for name in PARTS[1:]))
    )
    if base is None or (true is not None and sent is None):
        raise ValueError("it has no sums")
    number, merges, offers = (whole(values[name]) for name in ("number", "merges", "offers"))
    return Member(str(values["name"]), number, base, following, sent, how, merges, offers, true, apart)


def payload(member: Member) -> dict[str, Array]:
    """The difference under way, as it is sent. It is packed of what it was unpacked to, which gives the same."""
    assert member.sent is not None
    return packed(member.sent, member.how)
