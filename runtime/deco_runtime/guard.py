"""The guard: an update of the deployed model is scored before it is published, so that none does harm.

    compared, sign_test       two models on the same images: answers lost and gained, and whether that is chance
    costs, worse              the two rules made of them
    Guard                     judges an update, and keeps what to go back to

A device left alone for a year sees thousands of updates, from streams that nobody looked at: one class for weeks, a
covered lens, things of no known class. docs/algorithm.md argues the rules. numpy only; the engine is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import comb, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.buffer import CondensedBuffer
from deco_runtime.regression import Statistics
from deco_runtime.types import Check, Floats, Ints

Bools = npt.NDArray[np.bool_]

MARGIN = 0.01
"""Share of the guard images, or of the buffer's, that an update may lose."""
CHANCE = 0.05
"""Probability of chance below which a difference counts as real, one-sided."""
Z = 1.645
"""Standard errors that a one-sided 95 % limit lies away."""
FEWER = 0.5
"""Part of the effective number of classes answered at which a model counts as collapsed."""
SURER = 0.25
"""Part of the doubt per error at which a model's confidence counts as exploded."""
PATIENCE = 3
"""Rejections in a row after which learning pauses."""
DOUBLINGS = 10
"""Times that a pause grows: from one update's worth of segments to 1,024, half a day at 30 frames per second."""


@dataclass(frozen=True)
class Verdict:
    """What the guard says to one update. reason: why it is rejected, a clause about the update; None when accepted.

    scores: what was measured, see docs/bundle.md. best: `Kept.best` once the update is published.
    """

    reason: str | None
    scores: dict[str, Any]
    best: Bools

    @property
    def accepted(self) -> bool:
        """The update may be published."""
        return self.reason is None


@dataclass(frozen=True)
class Labelled:
    """The guard images: their logits (g, K) under a model, given a check to call between batches; labels (g,); and the
    classes' names."""

    logits: Callable[[Floats, Check], Floats]
    labels: Ints
    classes: tuple[str, ...]


Memory = CondensedBuffer | Statistics
"""What a learner learns its model from."""
Rehearse = Callable[[Floats, Memory, Check], tuple[Floats, Ints] | None]
"""A model's logits (n, K) for what is in a memory, and what they should say (n,); None for a memory without images."""


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


class Guard:
    """Judges updates on labelled images where there are any, and on the memory's. `judge` changes nothing."""

    def __init__(self, rehearse: Rehearse, frozen: Floats, memory: Memory, labelled: Labelled | None) -> None:
        """frozen: the model (P,) that the bundle starts with, below which none is published. memory: the accepted one.

        rehearse: the learner's.
        """
        self._rehearse, self.frozen, self._labelled = rehearse, frozen, labelled
        self._frozen_logits: Floats | None = None  # when first needed: a start must not wait for it
        self.kept = Kept(memory, np.zeros(0 if labelled is None else len(labelled.labels), bool))

    def judge(self, model: Floats, accepted: Floats, memory: Memory, check: Check = lambda: None) -> Verdict:
        """Whether a model (P,), learned from this memory, may take the place of the accepted one (P,).

        check: called before each batch of images; what it raises ends the judging.
        """
        best = self.kept.best
        if not all(np.isfinite(array).all() for array in (model, *vars(memory).values())):
            return Verdict("is not finite", {}, best)
        new, old = (self._rehearse(each, memory, check) for each in (model, accepted))
        images = reference = None
        if self._labelled is not None:
            if self._frozen_logits is None:
                self._frozen_logits = self._labelled.logits(self.frozen, check)
            images, reference = self._labelled.logits(model, check), self._frozen_logits
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
            best = best if best.any() else before
            reasons = [
                _on_labelled(right, before, best, self._labelled, scores),
                _sure(doubt_per_error(images, right), doubt_per_error(reference, before), scores),
            ]
            best = right if right.sum() >= best.sum() else best
        if new is not None and old is not None:
            reasons.append(_on_buffer(new[0], old[0], new[1], scores))
        reasons.append(_collapsed(images, reference, scores))
        return Verdict(next((reason for reason in reasons if reason), None), scores, best)

    def settle(self, verdict: Verdict, memory: Memory, interval: int) -> Memory:
        """Take note of a verdict; the memory to go on with: this one, or that of the last accepted update.

        interval: segments between two updates. From the third rejection in a row on, nothing is learned for 1, 2, 4, …
        of them: what is hostile mostly passes, and the fewer updates are tried, the fewer pass by chance.
        """
        kept = self.kept
        if verdict.accepted:
            self.kept = Kept(memory, verdict.best)
            return memory
        rejections = kept.rejections + 1
        pause = interval * 2 ** min(rejections - PATIENCE, DOUBLINGS) if rejections >= PATIENCE else 0
        self.kept = replace(kept, rejections=rejections, pause=pause)
        return kept.memory

    def pass_over(self) -> bool:
        """Whether learning pauses for this segment, which is one less of the pause."""
        if not self.kept.pause:
            return False
        self.kept = replace(self.kept, pause=self.kept.pause - 1)
        return True


def compared(before: Bools, after: Bools) -> tuple[int, int]:
    """Answers (g,) right before and wrong after, and the reverse: lost, gained."""
    return int(np.count_nonzero(before & ~after)), int(np.count_nonzero(after & ~before))


def sign_test(lost: int, gained: int) -> float:
    """Chance that at least `lost` of the changed answers are losses if neither is likelier (exact McNemar test)."""
    changed = lost + gained
    ways = total = comb(changed, lost)
    for k in range(lost, changed):
        ways = ways * (changed - k) // (k + 1)
        total += ways
    chance: float = total / 2**changed
    return chance


def costs(lost: int, gained: int, n: int) -> bool:
    """More is lost than gained, and one cannot be sure (95 %) that it is less than MARGIN of the n images.

    The variance of the paired difference lost − gained is at most lost + gained.
    """
    net = lost - gained
    return net > 0 and net + Z * sqrt(lost + gained) > MARGIN * n


def worse(lost: int, gained: int, n: int) -> bool:
    """More than MARGIN of the n images is lost, and not by chance."""
    return lost - gained > MARGIN * n and sign_test(lost, gained) < CHANCE


def effective_classes(answers: Ints, classes: int) -> float:
    """exp of the entropy of the answers' histogram: K for K classes in equal shares, 1 for a single one."""
    share = np.bincount(answers, minlength=classes) / max(len(answers), 1)
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def doubt_per_error(logits: Floats, right: Bools) -> float:
    """Mean of 1 − p(x)_ŷ over the share of wrong answers: 1 for a model as sure as it is right, 0 for blind trust."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponential = np.exp(shifted)
    doubt = 1.0 - 1.0 / exponential.sum(axis=1)
    return float(doubt.mean() / max(float(np.mean(~right)), 1.0 / len(right)))


def _on_labelled(right: Bools, before: Bools, best: Bools, given: Labelled, scores: dict[str, Any]) -> str | None:
    """Guard images (g,) answered right, against the bundle's model in all and per class, and against the best model."""
    n, classes = len(right), len(given.classes)
    lost, gained = compared(before, right)
    lost_best, gained_best = compared(best, right)
    lost_of, gained_of = (
        np.bincount(given.labels[part], minlength=classes) for part in (before & ~right, right & ~before)
    )
    chances = [sign_test(int(a), int(b)) for a, b in zip(lost_of, gained_of, strict=True)]
    worst = int(np.argmin(chances))
    scores |= {
        "images": n,
        "accuracy": float(right.mean()),
        "frozen_accuracy": float(before.mean()),
        "best_accuracy": float(best.mean()),
        "lost": lost,
        "gained": gained,
        "worst_class": given.classes[worst],
        "worst_class_lost": int(lost_of[worst] - gained_of[worst]),
    }
    if costs(lost, gained, n):
        return f"loses {lost} and gains {gained} of {n} guard images against the bundle's model"
    if worse(lost_best, gained_best, n):
        return f"loses {lost_best} and gains {gained_best} of {n} guard images against the best model so far"
    if chances[worst] < CHANCE / classes:
        of = int(np.count_nonzero(given.labels == worst))
        name = given.classes[worst]
        return f"loses {lost_of[worst]} and gains {gained_of[worst]} of {of} guard images of {name!r}"
    return None


def _sure(doubt: float, before: float, scores: dict[str, Any]) -> str | None:
    """Confidence that exploded; both as `doubt_per_error` gives them."""
    scores |= {"doubt_per_error": doubt, "frozen_doubt_per_error": before}
    if doubt < SURER * before:
        return f"doubts {doubt / before:.0%} as much per mistake as the bundle's model"
    return None


def _on_buffer(new: Floats, old: Floats, y: Ints, scores: dict[str, Any]) -> str | None:
    """The buffer's images taken for what they stand for. Some never were, so only a drop from the accepted θ counts."""
    right, before = new.argmax(axis=1) == y, old.argmax(axis=1) == y
    lost, gained = compared(before, right)
    scores |= {"buffer_right": float(right.mean()), "accepted_buffer_right": float(before.mean())}
    if worse(lost, gained, len(y)):
        return f"loses {lost} and gains {gained} of the buffer's {len(y)} images"
    return None


def _collapsed(images: Floats, reference: Floats, scores: dict[str, Any]) -> str | None:
    """Answers that fall on few classes, against the reference's on the same images."""
    now, before = (effective_classes(each.argmax(axis=1), each.shape[1]) for each in (images, reference))
    scores |= {"effective_classes": now, "reference_effective_classes": before}
    if now < FEWER * before:
        return f"answers with {now:.1f} classes where {before:.1f} are known"
    return None
