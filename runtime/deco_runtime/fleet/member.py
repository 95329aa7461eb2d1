"""A device's side of a fleet: what of its sums the server has, and what is under way.

    offered     the difference to send, the same one again until it is confirmed
    confirmed   the server has it
    merged      the fleet's sums, and behind them what the device has learned since

Each step is one of pure functions from a `Member` to the next; `kept` and `keep` have it on the disk. A difference is
numbered, and on the disk before it is sent: so whatever is lost or sent twice, no frame is counted twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime.errors import StateError
from deco_runtime.fleet.sums import HOW, frames, minus, packed, plus, unpacked
from deco_runtime.learning.arrays import Array, arrays_of, memory_like, whole
from deco_runtime.learning.regression import Statistics
from deco_runtime.storage import checked

FILE = "fleet.deco"
"""In the state directory."""
LEAST = 100.0
"""Frames that a difference is of: fewer could tell what was seen."""


@dataclass(frozen=True)
class Member:
    """name: of the device in its fleet, drawn once. number: of the last difference that was confirmed. base: what the
    fleet has of the device's sums. sent: the difference under way, None for none; how: in which of HOW. segments: that
    the device had learned then; fewer later means that it has gone back to an older state."""

    name: str
    number: int
    base: Statistics
    sent: Statistics | None
    how: str
    segments: int


def joins(start: Statistics, segments: int) -> Member:
    """A device that has not sent anything: the fleet has the labelled images."""
    return Member(secrets.token_hex(8), 0, start, None, HOW[0], segments)


def rebased(member: Member, now: Statistics, segments: int) -> Member:
    """The device has gone back to an older state: what it forgot by that stays with the fleet, and what it knows now is
    not sent again."""
    return replace(member, base=now, segments=segments) if segments < member.segments else member


def offered(member: Member, now: Statistics, segments: int, how: str, least: float = LEAST) -> Member:
    """With a difference under way, unless that is of fewer frames than `least`. now: the sums that the device's own
    guard has accepted."""
    if member.sent is not None:
        return member
    new = minus(now, member.base)
    if frames(new) < least:
        return member
    arrays = packed(new, how)
    return replace(member, sent=unpacked(arrays, how, *new.b.shape), how=how, segments=segments)


def confirmed(member: Member, number: int) -> Member:
    """The server has all up to this number. What was rounded away in sending is left for the next time."""
    if member.sent is None or number <= member.number:
        return member
    return replace(member, number=number, base=plus(member.base, member.sent), sent=None)


def merged(member: Member, fleet: Statistics, now: Statistics) -> Statistics:
    """The fleet's sums with those that the device has learned and the fleet lacks."""
    return plus(fleet, minus(now, member.base))


def took(member: Member, fleet: Statistics) -> Member:
    """The device goes by the fleet's sums now."""
    return replace(member, base=fleet)


def keep(directory: Path, member: Member, bundle: str) -> None:
    """To the disk. bundle: its hash. Raises StateError where that refuses."""
    under_way = {} if member.sent is None else {f"sent_{name}": a for name, a in arrays_of(member.sent).items()}
    values = {"bundle": bundle, "name": member.name, "number": member.number, "how": member.how,
              "segments": member.segments}  # fmt: skip
    checked.write(directory / FILE, {**arrays_of(member.base), **under_way}, values)


def kept(directory: Path, like: Statistics, bundle: str) -> Member | None:
    """From the disk; None where the device is in no fleet. Raises StateError where it cannot be read."""
    path = directory / FILE
    if not path.exists():
        return None
    size = 4 * sum(array.nbytes for array in arrays_of(like).values())
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
    sent: Statistics | None = memory_like(arrays, like, "sent_") if "sent_a" in arrays else None
    return Member(
        str(values["name"]), whole(values["number"]), memory_like(arrays, like), sent, how, whole(values["segments"])
    )


def payload(member: Member) -> dict[str, Array]:
    """The difference under way, as it is sent. It is packed of what it was unpacked to, which gives the same."""
    assert member.sent is not None
    return packed(member.sent, member.how)


def zero_like(sums: Statistics) -> Statistics:
    """Of no frame."""
    return Statistics(np.zeros_like(sums.a), np.zeros_like(sums.b))
