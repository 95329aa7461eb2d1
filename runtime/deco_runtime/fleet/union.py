"""A fleet under `paper`, whose learning is not made of sums: the server condenses all devices' buffers into its own.

What a device sends are its condensed images, which are learned, not seen, and still show something of what was seen:
there is no secure aggregation of them, and nothing here is exact. `deco+` is what fleets are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deco_runtime.errors import UsageError
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.regression import TINY
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.learning.reports import Verdict
from deco_runtime.types import Check

LARGEST = 10.0
"""How far an image's values may be beyond those of the bundle's, as a factor."""
AGREE = 0.75
"""Share of images that the bundle's model answers as labelled, at least, over that of the bundle's own."""


def of_images(learner: Learner) -> ReplayLearner:
    """The learner. Raises UsageError for one that keeps no condensed images."""
    if not isinstance(learner, ReplayLearner):
        raise UsageError(
            f"expected a recipe that keeps images, as paper, but found {learner.recipe.name!r}; merge its sums"
        )
    return learner


def complaint(buffer: CondensedBuffer, like: CondensedBuffer) -> str | None:
    """Why a device's buffer cannot be taken in, as a clause; None where it can. like: the bundle's, or the server's."""
    if buffer.x_syn.shape[1:] != like.x_syn.shape[1:] or buffer.x_syn.shape[0] != len(buffer.y_syn):
        return "does not fit the bundle"
    if not np.isin(buffer.y_syn, like.y_syn).all():
        return "has classes that the bundle lacks"
    if not np.isfinite(buffer.x_syn).all():
        return "is not finite"
    largest, usual = (float(np.abs(each.x_syn).max(initial=0)) for each in (buffer, like))
    if largest > LARGEST * usual:
        return f"has values {largest / max(usual, TINY):.0f} times as large as the bundle's images"
    return None


def contradiction(buffer: CondensedBuffer, learner: ReplayLearner, like: CondensedBuffer) -> str | None:
    """Why its labels are not to be believed, as a clause; None where they may be. like: the bundle's buffer, of which
    the bundle's model answers nearly as many images as labelled as of an honest device's."""
    share, usual = (_agrees(learner, each) for each in (buffer, like))
    if share < AGREE * usual:
        return f"has labels of which {1 - share:.0%} contradict the bundle's model"
    return None


def _agrees(learner: ReplayLearner, buffer: CondensedBuffer) -> float:
    logits, labels = learner.evaluate_memory(learner.initial(), buffer, lambda: None)
    return float(np.mean(logits.argmax(axis=1) == labels))


def condense(guarded: Unguarded, buffers: Sequence[CondensedBuffer], check: Check = lambda: None) -> Verdict | None:
    """Take all images of these into the guarded learner's own buffer, as if it had seen frames of what they stand for,
    and judge the model made of it. Where the guard rejects that, nothing has changed. None where there are no buffers.

    check: called between the steps; what it raises ends the work. Raises UsageError for a learner without a buffer, and
    for buffers that cannot be taken in: ask `complaint` first.
    """
    learner = of_images(guarded.learner)
    for buffer in buffers:
        if (reason := complaint(buffer, learner.memory)) is not None:
            raise UsageError(f"expected a buffer of this bundle, but found one that {reason}; leave it out")
    if not buffers:
        return None
    x, y = (np.concatenate([getattr(each, name) for each in buffers]) for name in ("x_syn", "y_syn"))
    return guarded.adopt(learner.taken_in(x, y, check), check)
