"""The guard: an update of the deployed model is scored before it is published, so that none does harm.

A device left alone for a year sees thousands of updates, from streams that nobody looked at: one class for weeks, a
covered lens, things of no known class. docs/algorithm.md argues the rules, and `harm.py` has them. A learner knows
nothing of any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deco_runtime.learning.added import COSTS, UNJUDGED
from deco_runtime.learning.arrays import Array, Memory, arrays_of, like, memory_like, whole
from deco_runtime.learning.harm import (
    CHANCE,
    MARGIN,
    Labelled,
    by_take,
    collapsed,
    compared,
    doubt_per_error,
    on_buffer,
    on_labelled,
    sign_test,
    sure,
)
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.reports import RetrainReport, SegmentReport, Verdict
from deco_runtime.learning.taught import Taught
from deco_runtime.types import Bools, Check, Floats, Segment

PATIENCE = 3
"""Rejections in a row after which learning pauses."""
ENOUGH = 100
"""Guard images that show what a class that people added takes of the others; with fewer it is answered with caution."""
DOUBLINGS = 10
"""Times that a pause grows: from one update's worth of segments to 1,024, half a day at 30 frames per second."""


@dataclass(frozen=True)
class Kept:
    """What outlasts an update and belongs to the learned state.

    memory: that of the last accepted update, to go back to. best: (g,) guard images that the best published model
    answers right; none before the first. rejections: updates rejected in a row. pause: segments left for which nothing
    is learned.
    """

    memory: Memory
    best: Bools
    rejections: int = 0
    pause: int = 0


class Unguarded:
    """A learner whose updates are all published that are finite, as in the paper: what a run drives and saves."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._first = learner.arrays(), learner.values()

    @property
    def pause(self) -> int:
        """Segments left for which nothing is learned."""
        return 0

    def learn(self, segment: Segment, check: Check = lambda: None) -> SegmentReport:
        """As `Learner.learn`."""
        return self.learner.learn(segment, check)

    def retrain(self, check: Check = lambda: None) -> RetrainReport:
        """As `Learner.retrain`."""
        return self.learner.retrain(check)

    def teach(self, taught: Taught, check: Check = lambda: None, judged: bool = True) -> Verdict | None:
        """Go by `taught` in place of what people said before, and publish a model made with it. What the guard says,
        None without one unless the model is not finite; where that is a rejection, or `check` raises, nothing has
        changed. judged: False for what is taken back, which is not asked about."""
        with self._telling(taught) as done:
            new = self.learner.retaught(check)
            if not np.isfinite(new).all():
                return Verdict("is not finite", {}, np.zeros(0, bool))
            done()
        self.learner.model = new
        return None

    def held_out(self) -> Floats:
        """Share of each class's guard images that the published model answers right (K,), as far as it was judged; nan
        where there are none."""
        return np.zeros(0, np.float32)

    @contextmanager
    def _telling(self, taught: Taught) -> Iterator[Callable[[], None]]:
        """The learner goes by `taught`, and by what it did before again unless what is yielded was called."""
        learner, kept = self.learner, list[bool]()
        before, memory, scene, drawn = learner.taught, learner.memory, learner.scene, learner.rng.bit_generator.state
        try:
            learner.tell(taught)
            yield lambda: kept.append(True)
        finally:
            if not kept:
                learner.tell(before)
                learner.memory, learner.scene, learner.rng.bit_generator.state = memory, scene, drawn

    @property
    def accepted(self) -> Memory:
        """The memory that the published model is made of, or a later one where nobody judges."""
        return self.learner.memory

    def adopt(self, memory: Memory, check: Check = lambda: None) -> Verdict | None:
        """Go on from another memory, with a model made of it. What the guard says, None without one unless the model is
        not finite; where that is a rejection, or `check` raises, nothing has changed."""
        learner, before = self.learner, self.learner.memory
        done = False
        try:
            learner.memory = memory
            report = self.retrain(check)
            done = report.accepted
            learner.merges += done
        finally:
            if not done:
                learner.memory = before
        return report.verdict if done or report.verdict else Verdict("is not finite", {}, np.zeros(0, bool))

    def reset(self) -> None:
        """Go back to what the learner started with, in place of all that was learned and taught."""
        self.restore(*self._first)

    def arrays(self) -> dict[str, Array]:
        """All that must be saved, by name."""
        return self.learner.arrays()

    def values(self) -> dict[str, Any]:
        """The same of numbers, as JSON has them."""
        return self.learner.values()

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """As `Learner.restore`; what a guard kept is passed over."""
        self.learner.restore(arrays, values)


class Guarded(Unguarded):
    """A learner whose updates are judged, on labelled images where there are any and on the memory's, and whose memory
    is sent back too when one is rejected."""

    def __init__(self, learner: Learner, labelled: Labelled | None) -> None:
        """The learner's model is the one below which none is published: that of the bundle."""
        super().__init__(learner)
        self._bundle_model, self._bundle_labelled = learner.model, labelled
        self._right = self._judged = np.zeros(0, bool)  # guard images that the published model answers right
        self._take_up()
        self.kept = Kept(learner.memory, self._none_right())

    def _take_up(self) -> None:
        """What people said: of it the guard has images too, and the model to compare with is of the classes there are
        now. A model is brought to its answers when they are first needed: a start must not wait for that."""
        learner = self.learner
        self._frozen = learner.initial() if len(learner.taught) else self._bundle_model
        self._labelled = self._bundle_labelled and with_taught(self._bundle_labelled, learner)
        self._frozen_logits: Floats | None = None

    def _none_right(self) -> Bools:
        return np.zeros(0 if self._labelled is None else len(self._labelled.labels), bool)

    @property
    def pause(self) -> int:
        return self.kept.pause

    def learn(self, segment: Segment, check: Check = lambda: None) -> SegmentReport:
        """Take in one segment, unless learning pauses."""
        if not self.kept.pause:
            return self.learner.learn(segment, check)
        self.kept = replace(self.kept, pause=self.kept.pause - 1)
        self.learner.interrupted()
        self.learner.segments += 1
        return SegmentReport()

    def retrain(self, check: Check = lambda: None) -> RetrainReport:
        """Publish an update unless it is rejected; then the memory is that of the last accepted one again."""
        report = self.learner.retrain(check, self.judge)
        assert report.verdict is not None
        self._settle(report.verdict)
        return replace(report, rejections=self.kept.rejections, pause=self.kept.pause)

    def teach(self, taught: Taught, check: Check = lambda: None, judged: bool = True) -> Verdict | None:
        """As `Unguarded.teach`: rejected where the bundle's guard images say that what is known so far loses by it."""
        labelled, steps, right = self._bundle_labelled, range(taught.step, taught.step + 1), None
        if labelled is not None and judged:
            right = labelled.logits(self.learner.model, check).argmax(axis=1) == labelled.labels
            if taught.classes and self.learner.CAUTIOUS:  # new classes are answered less and less readily
                steps = range(0 if len(right) >= ENOUGH else UNJUDGED, len(COSTS))
        for step in steps:
            verdict = self._teach(taught.at_step(step), check, right)
            if verdict.accepted:
                break
        return verdict

    def _teach(self, taught: Taught, check: Check, right: Bools | None) -> Verdict:
        """right: the bundle's guard images that are answered right without it; None for what is not judged."""
        learner, kept, labelled = self.learner, self.kept, self._bundle_labelled
        one = kept.memory is learner.memory
        with self._telling(taught) as done:
            new = learner.retaught(check)
            verdict = Verdict(None if np.isfinite(new).all() else "is not finite", {}, kept.best)
            if labelled is not None and right is not None and verdict.accepted:
                now, scores = labelled.logits(new, check).argmax(axis=1) == labelled.labels, dict[str, Any]()
                reason = on_labelled(now, right, right, labelled, scores)
                lost = int(np.count_nonzero(right)) - int(np.count_nonzero(now))
                if reason is None and taught.classes and lost > max(1, MARGIN * len(right)):
                    reason = f"loses {lost} of {len(right)} guard images"
                verdict = Verdict(reason, scores, kept.best)
            if verdict.accepted:
                done()
        if verdict.accepted:
            learner.model = new
            self._take_up()
            back = learner.memory if one else learner.reshaped(kept.memory, learner.classes)
            self.kept = Kept(back, self._none_right())
        return verdict

    @property
    def accepted(self) -> Memory:
        return self.kept.memory

    def adopt(self, memory: Memory, check: Check = lambda: None) -> Verdict | None:
        before = self.kept
        verdict = super().adopt(memory, check)
        if verdict is not None and not verdict.accepted:
            self.kept = before  # others' sums are no reason for this device to learn less
        return verdict

    def held_out(self) -> Floats:
        labelled, right = self._labelled, self._right
        if labelled is None or len(right) != len(labelled.labels):
            return np.zeros(0, np.float32)
        count, hits = (np.bincount(labelled.labels, weights=each, minlength=len(labelled.classes))
                       for each in (np.ones(len(right)), right))  # fmt: skip
        share: Floats = np.where(count > 0, hits / np.maximum(count, 1), np.nan).astype(np.float32)
        return share

    def reset(self) -> None:
        super().reset()
        self.kept = Kept(self.learner.memory, self._none_right())

    def vet(self) -> Verdict:
        """Judge what was learned without a guard, and go back to what the bundle starts with if it does harm."""
        learner = self.learner
        verdict = self.judge(learner.model, accepted=self._frozen)
        self._settle(verdict)
        if not verdict.accepted:
            learner.model = self._frozen
            learner.offers = 0  # nothing that a fleet was given is in what is left
        return verdict

    def harm(self, model: Floats, check: Check = lambda: None) -> str | None:
        """Why a model does harm beside that of the bundle, on the labelled images alone; None where it does none that
        can be seen."""
        if not np.isfinite(model).all():
            return "is not finite"
        if self._labelled is None:
            return None
        answers = self._labelled.logits(model, check), self._reference(self._labelled, check)
        right, before = (logits.argmax(axis=1) == self._labelled.labels for logits in answers)
        return on_labelled(right, before, before, self._labelled, {})

    def judge(self, model: Floats, check: Check = lambda: None, accepted: Floats | None = None) -> Verdict:
        """Whether a model (P,), made of the learner's memory, may take the place of the accepted one (P,), by default
        the learner's. Changes nothing.

        check: called before each batch of images; what it raises ends the judging.
        """
        best, memory = self.kept.best, self.learner.memory
        accepted = self.learner.model if accepted is None else accepted
        if not all(np.isfinite(array).all() for array in (model, *arrays_of(memory).values())):
            return Verdict("is not finite", {}, best)
        new, old = (self.learner.evaluate_memory(each, memory, check) for each in (model, accepted))
        images = reference = None
        if self._labelled is not None:
            images, reference = self._labelled.logits(model, check), self._reference(self._labelled, check)
        elif new is not None and old is not None:
            images, reference = new[0], old[0]
        if images is None or reference is None:
            return Verdict(None, {}, best)
        if not (np.isfinite(images).all() and (new is None or np.isfinite(new[0]).all())):
            return Verdict("gives answers that are not finite", {}, best)
        scores: dict[str, Any] = {}
        reasons = []
        if self._labelled is not None:
            right, before = (each.argmax(axis=1) == self._labelled.labels for each in (images, reference))
            self._judged = right
            best = best if best.any() else before
            reasons = [
                on_labelled(right, before, best, self._labelled, scores),
                sure(doubt_per_error(images, right), doubt_per_error(reference, before), scores),
            ]
            # The luckiest of many updates would be no fair measure of the next one.
            lost, gained = compared(*by_take(self._labelled.takes, best, right))
            best = right if sign_test(gained, lost) < CHANCE else best
        if new is not None and old is not None:
            reasons.append(on_buffer(new[0], old[0], new[1], scores))
        reasons.append(collapsed(images, reference, scores))
        return Verdict(next((reason for reason in reasons if reason), None), scores, best)

    def _reference(self, labelled: Labelled, check: Check) -> Floats:
        """Logits (g, K) of the model to compare with, for these guard images."""
        if self._frozen_logits is None:
            self._frozen_logits = labelled.logits(self._frozen, check)
        return self._frozen_logits

    def _settle(self, verdict: Verdict) -> None:
        """Take note of a verdict; a rejected memory gives way to that of the last accepted update.

        From the third rejection in a row on, nothing is learned for 1, 2, 4, … times β segments: what is hostile mostly
        passes, and the fewer updates are tried, the fewer pass by chance.
        """
        learner = self.learner
        if verdict.accepted:
            self.kept, self._right = Kept(learner.memory, verdict.best), self._judged
            return
        rejections = self.kept.rejections + 1
        interval = learner.recipe.retrain_interval
        pause = interval * 2 ** min(rejections - PATIENCE, DOUBLINGS) if rejections >= PATIENCE else 0
        self.kept = replace(self.kept, rejections=rejections, pause=pause)
        learner.memory = self.kept.memory

    def arrays(self) -> dict[str, Array]:
        """Those of the learner and, where it has gone on since, the memory of the last accepted update."""
        apart = self.kept.memory is not self.learner.memory
        back = {f"guard_{name}": array for name, array in arrays_of(self.kept.memory).items()} if apart else {}
        return {**super().arrays(), **back, "guard_best": self.kept.best.astype(np.uint8)}

    def values(self) -> dict[str, Any]:
        """Those of the learner, and the guard's counts."""
        return {**super().values(), "guard": {"rejections": self.kept.rejections, "pause": self.kept.pause}}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Go on from what `arrays` and `values` gave; where these have no guard's part, see `vet`. Raises as
        `Learner.restore`."""
        learner, kept = self.learner, None
        taught = Taught.of(arrays, values.get("classes", ()), learner.bundle_classes)
        now = learner.reshaped(learner.memory, learner.bundle_classes + len(taught.classes))
        if "guard" in values:
            images = len(self._bundle_labelled.labels) + np.count_nonzero(taught.guards) if self._bundle_labelled else 0
            best = like(arrays["guard_best"], np.zeros(images, np.uint8)) > 0
            counts = [whole(values["guard"][name]) for name in ("rejections", "pause")]
            apart = any(name.startswith("guard_") and name != "guard_best" for name in arrays)
            kept = Kept(memory_like(arrays, now, "guard_") if apart else None, best, *counts)
        said = len(learner.taught)
        learner.restore(arrays, values)
        self._take_up()
        if kept is not None:
            self.kept = kept if kept.memory is not None else replace(kept, memory=learner.memory)
        elif len(taught) or said:
            self.kept = Kept(learner.reshaped(self.kept.memory, learner.classes), self._none_right())


def with_taught(labelled: Labelled, learner: Learner) -> Labelled:
    """The guard images, and those frames of what people taught that it has."""
    taught = learner.taught
    observed, labels, takes = taught.part(taught.guards)
    if not len(labels):
        return replace(labelled, classes=labelled.classes + taught.classes)

    def logits(model: Floats, check: Check) -> Floats:
        own = labelled.logits(model, check)
        return np.concatenate([own, learner.answer(model, observed)])

    return Labelled(
        logits,
        np.append(labelled.labels, labels),
        np.append(labelled.takes, takes + 1 + labelled.takes.max()),
        labelled.classes + taught.classes,
    )
