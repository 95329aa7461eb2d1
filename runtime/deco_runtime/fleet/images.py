"""What a device under `paper` does for its fleet, as `device` under sums: it sends its condensed images.

The fleet's are taken in as frames are, by the device's own code (see `union`), so what it has learned since is not
lost; nothing here is exact. The bundle's own images are nobody's news. An offer is numbered, and on the disk before it
is sent; the same images are taken in once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import device
from deco_runtime.fleet.device import Offer
from deco_runtime.fleet.member import FILE, check_bundle, check_number, damaged
from deco_runtime.fleet.sums import digest
from deco_runtime.fleet.union import complaint, condense, of_images
from deco_runtime.learning import buffer as buffers
from deco_runtime.learning.arrays import Array, whole
from deco_runtime.learning.arrays import like as checked_like
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage import checked
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Check, Floats

HOW = "fp32"
"""Numbers that images are sent in, whatever the server asks for."""


@dataclass(frozen=True)
class Images:
    """x: (n, …) float32, those of a condensed buffer, in the order of the bundle's, whose labels they have."""

    x: Floats


@dataclass(frozen=True)
class Sender:
    """name: of the device in its fleet, drawn once. number: of the last offer that was confirmed. sent: the one under
    way, None for none; last: digest of the newest that there was. segments: that were learned when that was made.
    heard: digest of the fleet's images that were looked at last."""

    name: str
    number: int
    sent: Floats | None
    last: str
    segments: int
    heard: str


def read(arrays: Mapping[str, Array], like: CondensedBuffer) -> CondensedBuffer:
    """A buffer like another one, of images that were sent. Raises ValueError unless there are as many of such."""
    x = arrays.get("x")
    if x is None or x.dtype != np.float32 or x.shape != like.x_syn.shape:
        raise ValueError("its images are not those of the bundle")
    return CondensedBuffer.start(x, like.y_syn)


def offer(
    directory: Path,
    guarded: Unguarded,
    bundle: Bundle,
    how: str,
    least: float,
    save: Callable[[], None],
    epsilon: float | None = None,
) -> None:
    """Put the device's buffer on the disk, once segments of at least so many frames were learned since the last one and
    it is another. Raises as `device.offer`, and UsageError for any ε."""
    if epsilon is not None:
        raise UsageError(
            "expected no --noise for the recipe paper, whose images are sent as they are, but found one; leave it out, "
            "or learn by deco+"
        )
    learner, first = of_images(guarded.learner), buffers.initial(bundle).x_syn
    place = _place(directory, bundle, first)
    since = learner.segments - place.segments
    if since < 0:  # it has gone back to an older state
        place, since = replace(place, segments=learner.segments), 0
    if place.sent is None and since * learner.recipe.segment >= least:
        x = learner.reshaped(guarded.accepted, learner.bundle_classes).x_syn
        if (new := digest({"x": x})) not in (place.last, digest({"x": first})):
            place = replace(place, sent=x, last=new, segments=learner.segments)
    save()
    _keep(directory, place, bundle)


def offered(directory: Path, bundle: Bundle) -> Offer:
    """What `offer` left."""
    place = _place(directory, bundle, buffers.initial(bundle).x_syn)
    if place.sent is None:
        return Offer(place.name, place.number, HOW, bundle.hash, {})
    return Offer(place.name, place.number + 1, HOW, bundle.hash, {"x": place.sent})


def take_up(
    directory: Path, guarded: Unguarded, bundle: Bundle, save: Callable[[], None], check: Check = lambda: None
) -> tuple[float, Verdict | None]:
    """Take the fleet's images that were handed over into the device's own buffer. What the guard says, None where
    nothing was new, beside 0, for the frames that nobody has counted. Raises as `device.take_up`."""
    first = buffers.initial(bundle)
    place = _place(directory, bundle, first.x_syn)
    fleet, number, refused = device.handed(directory, Images(first.x_syn))
    check_number(place.number, place.sent is not None, number)
    if number > place.number or (place.sent is not None and place.last == refused):
        place = replace(place, number=number, sent=None)
    verdict, new = None, digest({"x": fleet.x})
    if new not in (place.heard, digest({"x": first.x_syn})):
        buffer = read({"x": fleet.x}, first)
        reason = complaint(buffer, first)
        verdict = Verdict(reason, {}, np.zeros(0, bool)) if reason else condense(guarded, [buffer], check)
        place = replace(place, heard=new)
        if verdict is None or verdict.accepted:
            save()
    _keep(directory, place, bundle)
    (directory / device.MERGED).unlink()
    return 0.0, verdict


def _keep(directory: Path, place: Sender, bundle: Bundle) -> None:
    arrays = {} if place.sent is None else {"sent_x": place.sent}
    values = {name: getattr(place, name) for name in ("name", "number", "last", "segments", "heard")}
    checked.write(directory / FILE, arrays, {"bundle": bundle.hash, **values})


def _place(directory: Path, bundle: Bundle, like: Floats) -> Sender:
    """From the disk; of a device that joins where there is none. like: the bundle's images. Raises StateError where it
    cannot be read."""
    path = directory / FILE
    if not path.exists():
        return Sender(secrets.token_hex(8), 0, None, "", 0, "")
    try:
        arrays, values = checked.read(path, like.nbytes)
        check_bundle(values, bundle.hash)
        sent = checked_like(arrays["sent_x"], like) if "sent_x" in arrays else None
        number, segments = (whole(values[name]) for name in ("number", "segments"))
        return Sender(str(values["name"]), number, sent, str(values["last"]), segments, str(values["heard"]))
    except StateError:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise damaged(path, error) from error
