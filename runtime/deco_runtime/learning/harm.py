"""Whether an update does harm: two models compared on the same images.

    compared, sign_test   takes lost and gained, and whether that is chance
    worse                 the rule made of them
    smallest_harm         what this rule can see, by the number of takes
    on_labelled, sure, on_buffer, collapsed   the reasons to reject an update, each a clause about it, or None

Frames of one take are right or wrong together, so the sample are takes, not images; a single image is a take of one.
numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, comb, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.types import Bools, Check, Floats, Ints

Doubles = npt.NDArray[np.float64]

MARGIN = 0.01
"""Share of the guard's answers, or of the buffer's, that an update may lose."""
CHANCE, CHANCE_OF_A_CLASS = 0.035, 0.01
"""Probability of chance below which a loss of answers counts as real, one-sided: in all, and over the single classes
together. Of updates that change nothing, so at least 95 in 100 are accepted."""
FEWER = 0.5
"""Part of the effective number of classes answered at which a model counts as collapsed."""
SURER = 0.25
"""Part of the doubt per error at which a model's confidence counts as exploded."""


@dataclass(frozen=True)
class Labelled:
    """The guard images: their logits (g, K) under a model, given a check to call between batches; labels (g,); the
    take of each (g,), any numbers; and the classes' names."""

    logits: Callable[[Floats, Check], Floats]
    labels: Ints
    takes: Ints
    classes: tuple[str, ...]


def by_take(takes: Ints, *right: Bools) -> tuple[Doubles, ...]:
    """The share of each take's images (m,) that is right, for each of `right` (g,); takes: (g,)."""
    _, of = np.unique(takes, return_inverse=True)
    size = np.bincount(of)
    return tuple(np.bincount(of, weights=each) / size for each in right)


def compared(before: Doubles, after: Doubles) -> tuple[int, int]:
    """Takes (m,) of which fewer images are right than before, and of which more are: lost, gained."""
    return int(np.count_nonzero(after < before)), int(np.count_nonzero(after > before))


def sign_test(lost: int, gained: int) -> float:
    """Chance that at least `lost` of the changed takes are losses if neither is likelier (exact McNemar test)."""
    changed = lost + gained
    ways = total = comb(changed, lost)
    for k in range(lost, changed):
        ways = ways * (changed - k) // (k + 1)
        total += ways
    chance: float = total / 2**changed
    return chance


def worse(before: Doubles, after: Doubles) -> bool:
    """More than MARGIN of the answers is lost, each take (m,) counting alike, and not by chance."""
    return float((before - after).mean()) > MARGIN and sign_test(*compared(before, after)) < CHANCE


def smallest_harm(takes: int) -> float | None:
    """Smallest share of the answers that an update cannot lose unseen, if all it changes is for the worse; None where
    so few takes show no loss at all."""
    seen = ceil(log2(1 / CHANCE))
    return max(MARGIN, seen / takes) if takes >= seen else None


def effective_classes(answers: Ints, classes: int) -> float:
    """exp of the entropy of the answers' histogram: K for K classes in equal shares, 1 for a single one."""
    share = np.bincount(answers, minlength=classes) / max(len(answers), 1)
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def doubt_per_error(logits: Floats, right: Bools) -> float:
    """Mean of 1 − p(x)_ŷ over the share of wrong answers: 1 for a calibrated model, 0 for blind trust."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponential = np.exp(shifted)
    doubt = 1.0 - 1.0 / exponential.sum(axis=1)
    return float(doubt.mean() / max(float(np.mean(~right)), 1.0 / len(right)))


def on_labelled(right: Bools, before: Bools, best: Bools, given: Labelled, scores: dict[str, Any]) -> str | None:
    """Guard images (g,) answered right, against the bundle's model in all and per class, and against the best model."""
    now, first, top = by_take(given.takes, right, before, best)
    number, where = np.unique(given.takes, return_index=True)
    takes, of_class = len(number), given.labels[where]
    lost, gained = compared(first, now)
    lost_best, gained_best = compared(top, now)
    per_class = [compared(first[of_class == c], now[of_class == c]) for c in range(len(given.classes))]
    chances = [sign_test(*each) for each in per_class]
    worst = int(np.argmin(chances))
    name, (lost_worst, gained_worst) = given.classes[worst], per_class[worst]
    scores |= {
        "images": len(right),
        "takes": takes,
        "accuracy": float(right.mean()),
        "frozen_accuracy": float(before.mean()),
        "best_accuracy": float(best.mean()),
        "lost": lost,
        "gained": gained,
        "worst_class": name,
        "worst_class_lost": lost_worst - gained_worst,
    }
    what = "images" if takes == len(right) else "takes"
    if worse(first, now):
        return f"loses {lost} and gains {gained} of {takes} guard {what} against the bundle's model"
    if worse(top, now):
        return f"loses {lost_best} and gains {gained_best} of {takes} guard {what} against the best model so far"
    if chances[worst] < CHANCE_OF_A_CLASS / len(given.classes):
        of = np.count_nonzero(of_class == worst)
        return f"loses {lost_worst} and gains {gained_worst} of {of} guard {what} of {name!r}"
    return None


def sure(doubt: float, before: float, scores: dict[str, Any]) -> str | None:
    """Confidence that exploded; both as `doubt_per_error` gives them."""
    scores |= {"doubt_per_error": doubt, "frozen_doubt_per_error": before}
    if doubt < SURER * before:
        return f"doubts {doubt / before:.0%} as much per mistake as the bundle's model"
    return None


def on_buffer(new: Floats, old: Floats, y: Ints, scores: dict[str, Any]) -> str | None:
    """The buffer's images taken for what they stand for. Some never were, so only a drop from the accepted θ counts."""
    right, before = ((each.argmax(axis=1) == y).astype(np.float64) for each in (new, old))
    lost, gained = compared(before, right)
    scores |= {"buffer_right": float(right.mean()), "accepted_buffer_right": float(before.mean())}
    if worse(before, right):
        return f"loses {lost} and gains {gained} of the buffer's {len(y)} images"
    return None


def collapsed(images: Floats, reference: Floats, scores: dict[str, Any]) -> str | None:
    """Answers that fall on few classes, against the reference's on the same images."""
    now, before = (effective_classes(each.argmax(axis=1), each.shape[1]) for each in (images, reference))
    scores |= {"effective_classes": now, "reference_effective_classes": before}
    if now < FEWER * before:
        return f"answers with {now:.1f} classes where {before:.1f} are known"
    return None
