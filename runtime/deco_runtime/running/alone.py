"""Learned state that no run holds, opened as a run would take it up, for a command that changes it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deco_runtime.errors import BundleError, StateError
from deco_runtime.learning.guard import Unguarded
from deco_runtime.running.assemble import open_fresh
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.story import learned


@dataclass(frozen=True)
class Alone:
    """guarded: what was learned, with the bundle's guard. restored: the state it is from, None for a fresh one."""

    directory: Path
    bundle: Bundle
    guarded: Unguarded
    restored: states.LearnedState | None

    def save(self) -> None:
        """Raises StateError where the disk refuses."""
        was = self.restored
        place = (was.source, was.position, was.digest) if was else ("", 0, "")
        # What was learned without a guard is judged by the next run that has one.
        unjudged = was is not None and "guard" not in was.values
        it = Unguarded(self.guarded.learner) if unjudged else self.guarded
        states.save(self.directory, states.LearnedState.of(it, self.bundle, *place))


def open_alone(directory: Path, bundle_path: Path | None) -> Alone:
    """Hold a state directory, and bring back what is in it. bundle_path: None for that of the directory's name.

    Raises BundleError where no such bundle is found, StateError where a run holds it, where it cannot be written, or
    where what is in it cannot be used.
    """
    whole = directory.resolve()
    if bundle_path is None:
        bundle_path = whole.with_name(whole.name.removesuffix(states.SUFFIX))
        if not whole.name.endswith(states.SUFFIX) or not bundle_path.exists():
            raise BundleError(
                f"expected the bundle that {directory} is of, but found none of the name without {states.SUFFIX!r}; "
                "give --bundle"
            )
    bundle = open_bundle(bundle_path)
    unwritable, _ = states.hold(directory)
    if unwritable:
        raise StateError(unwritable)
    found = None
    with suppress(StateError):  # `load` says what is wrong with it
        found = learned.read(directory)
    guarded = open_fresh(bundle, found.recipe if found else bundle.recipe.name)
    restored, _ = states.load(directory, bundle, guarded)
    return Alone(directory, bundle, guarded, restored)
