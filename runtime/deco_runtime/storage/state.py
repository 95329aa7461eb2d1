"""What must survive a power cut: all that a learner has learned, bound to bundle and recipe.

A state directory holds `learned.deco` and `learned.previous.deco`, see `checked`; the one before is kept, so at every
instant one good file is there. One run at a time holds the directory, by a lock that ends with its process, however
that ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deco_runtime.errors import StateError, first_line
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import Array, whole
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.taught import MOST_BYTES
from deco_runtime.storage import checked
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.lock import lock
from deco_runtime.storage.untrusted import ALWAYS_FINE

SCHEMA = 8
SUFFIX = "-state"
"""Behind the name of a bundle: the directory of its state, unless another one is asked for."""
CURRENT, PREVIOUS = "learned.deco", "learned.previous.deco"


@dataclass(frozen=True)
class LearnedState:
    """Everything learned, at one segment boundary.

    bundle: its hash. recipe: the name of the one it was learned by. arrays, values: what the learner, and the guard
    around it, gave; nobody here knows what they mean. source, position: the replayable stream and how many of its
    frames lie behind this state, so that an interrupted run goes on where it was; position 0 when the stream was
    finished. digest: of these frames, as in `resume.Place`; "" for none.
    """

    bundle: str
    recipe: str
    arrays: dict[str, Array]
    values: dict[str, Any]
    source: str
    position: int
    digest: str = ""

    @classmethod
    def of(cls, learner: Unguarded, bundle: Bundle, source: str, position: int, digest: str = "") -> LearnedState:
        """A snapshot of the learner."""
        recipe = learner.learner.recipe.name
        return cls(bundle.hash, recipe, learner.arrays(), learner.values(), source, position, digest)


def beside(bundle: Path) -> Path:
    """The directory of a bundle's state, unless another one is asked for."""
    whole = bundle.resolve()
    return whole.with_name(whole.name + SUFFIX)


def hold(directory: Path) -> tuple[str | None, str | None]:
    """Make the directory if there is none, and keep other runs out of it until this process ends.

    Returns why nothing can be saved there, None when it can: a disk that is read-only now may be mended later, and
    meanwhile predicting is worth more than nothing; and why other runs are not kept out, None when they are. A place
    that is none, a mistyped one, raises StateError, and so does one that another run holds.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _, missing = lock(directory)  # the handle stays open, and with it the lock
    except BlockingIOError:
        raise StateError(
            f"expected to be the only run with the learned state in {directory}, but another one has it; "
            "stop that one, or choose another --state"
        ) from None
    except OSError as error:
        raise StateError(
            f"expected a place for learned state at {directory}, but: {error.strerror}; choose another --state"
        ) from error
    unwritable = unlocked = None
    if not os.access(directory, os.W_OK):
        unwritable = (
            f"expected to save in {directory}, but it may not be written: the disk is read-only, or permissions forbid "
            "it; learns in memory until that is mended, and loses it when the run ends"
        )
    if missing is not None:
        unlocked = (
            f"expected to lock {directory}, but the system says: {missing}; goes on without, so see that no other run "
            "has this --state"
        )
    return unwritable, unlocked


def save(directory: Path, state: LearnedState) -> int:
    """Replace the state in the directory; returns the bytes written.

    Raises StateError when the disk refuses; what was there before is still there then.
    """
    meta = {
        "schema": SCHEMA,
        "bundle": state.bundle,
        "recipe": state.recipe,
        "values": state.values,
        "source": state.source,
        "position": state.position,
        "digest": state.digest,
    }
    current, previous = directory / CURRENT, directory / PREVIOUS

    def put_aside(size: int) -> None:
        # A damaged one must not take the place of the good one before it.
        if checked.intact(current, size):
            os.replace(current, previous)

    return checked.write(current, state.arrays, meta, first=put_aside)


def load(
    directory: Path, bundle: Bundle, fresh: Unguarded, names: Sequence[str] = (CURRENT, PREVIOUS)
) -> tuple[LearnedState | None, str | None]:
    """Bring a learner to where the newest good state in the directory was taken; that state (None when there is none),
    and a sentence when one had to be passed over.

    fresh: a learner of this bundle. names: of files, in the order in which they are tried. Raises StateError when the
    state belongs to another bundle or recipe or another version, or when files are there but none of them can be used:
    learned state is never silently thrown away.
    """
    complaints = []
    for name in names:
        path = directory / name
        if not os.path.lexists(path):
            continue
        try:
            state = _read(path, bundle, fresh)
            fresh.restore(state.arrays, state.values)
        except (StateError, MemoryError):
            raise
        except Exception as error:  # numpy, zipfile and json raise a dozen kinds
            complaints.append(f"{path} is damaged ({first_line(error)})")
            continue
        note = f"{complaints[0]}; went on from the one before" if complaints else None
        return state, note
    if complaints:
        raise StateError(
            f"expected learned state in {directory}, but {' and '.join(complaints)}; "
            "move the directory away to start anew"
        )
    return None, None


def _read(path: Path, bundle: Bundle, fresh: Unguarded) -> LearnedState:
    learner = fresh.learner
    size = 2 * sum(array.nbytes for array in learner.arrays().values()) + MOST_BYTES
    if path.stat().st_size > 2 * size + ALWAYS_FINE:  # another recipe's may be as large, and must be told from damage
        size = max(size, *(registry.state_bytes(kind, bundle) for kind in registry.learners().values()))
    arrays, meta = checked.read(path, size)
    if meta["schema"] != SCHEMA:
        raise StateError(
            f"expected learned state of schema {SCHEMA}, but {path} is of schema {meta['schema']!r:.40}; "
            "use the deco-edge version that wrote it, or another --state"
        )
    if meta["bundle"] != bundle.hash:
        raise StateError(
            f"expected learned state of the bundle {bundle.path}, but {path} belongs to another one; "
            "give that bundle, or another --state"
        )
    if meta["recipe"] != learner.recipe.name:
        raise StateError(
            f"expected learned state of --recipe {learner.recipe.name}, but {path} was learned with "
            f"{meta['recipe']!r:.40}; give that recipe, or another --state"
        )
    position, values = whole(meta["position"]), dict(meta["values"])
    return LearnedState(
        bundle.hash, learner.recipe.name, arrays, values, str(meta["source"]), position, str(meta["digest"])
    )
