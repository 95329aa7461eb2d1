"""What people may do to a run while it goes on, by the page or the socket: teach, undo, hold, go back, save; and what
the client of its fleet does.

Each is a job for the owner of what is learned, done between two segments, see `requests`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import sides
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.learner import Learner, joined
from deco_runtime.learning.taught import checked
from deco_runtime.names import canonical
from deco_runtime.running.recent import Recent
from deco_runtime.running.scoring import normalised
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry import happenings as happened
from deco_runtime.types import Check, Floats, Ints, Observed, Pixels

if TYPE_CHECKING:
    from deco_runtime.running.loop import Run

T = TypeVar("T")

BACK: dict[str, tuple[str, ...]] = {"saved": (states.CURRENT,), "previous": (states.PREVIOUS,), "start": ()}
"""Where one may go back to: the last save, the one before it, or what the bundle and people said."""


class Control:
    """Over one run. All of it may be called from any thread but the run's own; what cannot be done raises DecoError."""

    def __init__(self, run: Run, directory: Path, recent: Recent) -> None:
        self._run, self._directory, self.recent = run, directory, recent

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all there are now."""
        return self._run.names

    @property
    def bundle(self) -> Bundle:
        """The run's."""
        return self._run.bundle

    @property
    def recipe(self) -> str:
        """Name of the one that the run learns by."""
        return self._run.learner.recipe.name

    @property
    def held(self) -> bool:
        """Whether a person has learning wait."""
        return self._run.held

    @property
    def can_teach(self) -> bool:
        """Whether this recipe can be taught."""
        return type(self._run.learner).tell is not Learner.tell

    @property
    def buffer(self) -> tuple[Floats, Ints] | None:
        """The condensed images as the network takes them, x (n, 3, S, S), and their classes y (n,); None where the
        recipe has none, or none that are pictures."""
        memory, shape = self._run.learner.memory, self._run.bundle.image_shape
        x, y = getattr(memory, "x_syn", None), getattr(memory, "y_syn", None)
        return (x, y) if x is not None and y is not None and x.shape[1:] == shape else None

    def known(self) -> list[dict[str, Any]]:
        """What is known of each class: its name, and what the learner and the guard say of it, see `Learner.known`."""
        run = self._run
        figures = {**run.learner.known(), "held_out": run.guarded.held_out()}
        told = []
        for c, name in enumerate(run.names):
            own = {key: float(each[c]) for key, each in figures.items() if c < len(each) and np.isfinite(each[c])}
            told.append({"class": name, **own})
        return told

    def judge(self, answer: str | None, right: bool, frames: int) -> None:
        """People say whether so many frames, answered so, were right."""
        self._run.bus.emit(happened.AnswersJudged(answer, right, frames))

    def observe(self, pixels: Pixels) -> Observed:
        """What the learner sees in images (n, size, size, 3) uint8 as the network takes them."""
        run = self._run
        return observed_in(run.learner, pixels, run.bundle)

    def teach(self, name: str, observed: Observed, takes: Ints) -> happened.ClassTaught:
        """People say that frames, observed (n, …) and of these takes (n,), show the class of that name, which may be a
        new one, or "none"."""
        return self._ask(lambda: self._teach(name, observed, takes))

    def teach_recent(self, name: str, numbers: Ints) -> happened.ClassTaught:
        """The same of frames of the last minutes, by their numbers there."""
        observed, takes = self.recent.observed(numbers)
        return self.teach(name, observed, takes)

    def undo(self) -> happened.TeachingUndone:
        """Take back the last teaching."""
        return self._ask(self._undo)

    def hold(self, held: bool) -> None:
        """Have learning wait, or go on; prediction goes on meanwhile."""
        self._run.held = held
        self._run.bus.emit(happened.LearningHeld(held))

    def back(self, to: str) -> happened.WentBack:
        """Go back to one of BACK; what people taught stays."""
        return self._ask(lambda: self._back(to))

    def offer(self, how: str, least: float, epsilon: float | None = None) -> None:
        """Put what the fleet lacks of this device where its client finds it, see `fleet.device`."""
        run, side = self._run, sides.of(type(self._run.learner))
        self._ask(lambda: side.offer(self._directory, run.guarded, run.bundle, how, least, run.save_now, epsilon))

    def take_up(self) -> happened.FleetMerged:
        """Go by the fleet's sums that its client put there."""
        return self._ask(self._take_up)

    def save(self) -> None:
        """Now, not when it is due. Raises StateError where the disk refuses."""
        self._ask(self._run.save_now)

    def _ask(self, job: Callable[[], T]) -> T:
        return self._run.requests.ask(job)

    def _teach(self, name: str, observed: Observed, takes: Ints) -> happened.ClassTaught:
        run = self._run
        told = taught(run.guarded, run.bundle.classes, name, observed, takes, run.check)
        run.bus.emit(told)
        if told.refused is None:
            run.names_changed()
            run.save_now()
        return told

    def _undo(self) -> happened.TeachingUndone:
        run = self._run
        told = undone(run.guarded, run.bundle.classes, run.check)
        run.bus.emit(told)
        run.names_changed()
        run.save_now()
        return told

    def _take_up(self) -> happened.FleetMerged:
        run = self._run
        told = taken_up(self._directory, run.guarded, run.bundle, run.save_now, run.check)
        run.bus.emit(told)
        return told

    def _back(self, to: str) -> happened.WentBack:
        if to not in BACK:
            raise UsageError(f"expected to go back to one of {', '.join(BACK)}, but found {to!r:.40}; choose one")
        run = self._run
        learner, said = run.guarded.learner, run.guarded.learner.taught
        if to == "start":
            run.guarded.reset()
        elif states.load(self._directory, run.bundle, run.guarded, BACK[to])[0] is None:
            raise StateError(f"expected a saved state to go back to, but found no {BACK[to][0]}; save first")
        if not learner.taught.same(said):
            run.guarded.teach(said, run.check, judged=False)
        learner.interrupted()
        told = happened.WentBack(to, learner.segments)
        run.bus.emit(told)
        run.names_changed()
        run.save_now()
        return told


def observed_in(learner: Learner, pixels: Pixels, bundle: Bundle) -> Observed:
    """What a learner sees in images (n, size, size, 3) uint8 as the bundle's network takes them."""
    return joined([learner.observe(x) for x in normalised(pixels, bundle.preprocessing, lambda: None)])


def taught(
    guarded: Unguarded, known: tuple[str, ...], name: str, observed: Observed, takes: Ints, check: Check = lambda: None
) -> happened.ClassTaught:
    """Teach a learner, and what to tell of it. known: names of the bundle's classes. Raises UsageError for a name or a
    recipe with which that cannot be."""
    learner = guarded.learner
    names = known + learner.taught.classes
    wanted = checked(canonical(name))
    wanted = next((each for each in names if canonical(each) == wanted), wanted)
    if not len(takes):
        raise UsageError("expected at least one frame to teach, but found none; choose others")
    verdict = guarded.teach(learner.taught.with_(wanted, known, observed, takes), check)
    refused = None if verdict is None or verdict.accepted else verdict.reason
    now = known + learner.taught.classes
    return happened.ClassTaught(wanted, len(takes), wanted not in names, refused, now, learner.taught.teachings)


def taken_up(
    directory: Path, guarded: Unguarded, bundle: Bundle, save: Callable[[], None], check: Check = lambda: None
) -> happened.FleetMerged:
    """Have a learner go by its fleet's sums, and what to tell of it; raises as `fleet.device.take_up`."""
    frames, verdict = sides.of(type(guarded.learner)).take_up(directory, guarded, bundle, save, check)
    return happened.FleetMerged(round(frames), None if verdict is None or verdict.accepted else verdict.reason)


def undone(guarded: Unguarded, known: tuple[str, ...], check: Check = lambda: None) -> happened.TeachingUndone:
    """Take back a learner's last teaching. Raises UsageError where there is none."""
    learner = guarded.learner
    if not len(learner.taught):
        raise UsageError("expected something that was taught, but found nothing to undo; teach first")
    guarded.teach(learner.taught.without_last(len(known)), check, judged=False)
    return happened.TeachingUndone(known + learner.taught.classes, learner.taught.teachings)
