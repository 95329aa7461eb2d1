"""All that the report says, in figures: found here, told by `verdicts.py` and shown by `page.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from deco_runtime.types import Ints

from deco_export.data import Data
from deco_export.report import accuracy, curve, duplicates, hurt
from deco_export.report.accuracy import Share
from deco_export.report.album import HELD, TRAIN, Album
from deco_export.report.curve import Curve, Forecast
from deco_export.report.duplicates import Twins
from deco_export.report.gather import Sample, penalty
from deco_export.report.hurt import Disputed


@dataclass(frozen=True)
class Answers:
    """How one model answers the held-out images: in all, all classes counting alike, and of each class."""

    every: Share | None
    balanced: Share | None
    of_class: tuple[Share | None, ...]


@dataclass(frozen=True)
class Findings:
    """classes: K names. images, takes: (K,) those trained on; all_takes: (K,) with those held out. pretrained, start:
    the pre-trained model, and what the bundle starts with by its recipe. confused: (K, K) of the latter.

    disputed: pictures whose class the others do not believe, by their part and place too; agreed: the share of labels
    that they believe; sampled, labelled: of how many of how many images. across, between: twins of two classes, and of
    two parts; compared: among how many pictures. curve, forecast: None where there is too little for one.
    from_scratch: the network was trained on these labels too.
    """

    classes: tuple[str, ...]
    recipe: str
    images: Ints
    takes: Ints
    all_takes: Ints
    pretrained: Answers
    start: Answers
    confused: Ints
    disputed: tuple[tuple[int, int, Disputed], ...]
    agreed: float
    sampled: int
    labelled: int
    across: tuple[Twins, ...]
    between: tuple[Twins, ...]
    compared: int
    curve: Curve | None
    forecast: Forecast | None
    from_scratch: bool


def find(
    loaded: Data,
    album: Album,
    sample: Sample,
    answers: tuple[Ints, Ints],
    recipe: str,
    from_scratch: bool,
    rng: np.random.Generator,
) -> Findings:
    """answers: the class (m,) that the pre-trained model, and what the bundle starts with, give each held-out image."""
    classes, held = len(loaded.classes), loaded.validation
    pretrained, start = (_answers(each, held.labels, held.takes, classes) for each in answers)
    few = penalty(len(sample.y), sample.phi.shape[1])
    said = hurt.left_out(sample.phi, sample.y, sample.takes, classes, few)
    doubts, agreed = hurt.disputed(said, sample.y, sample.takes)
    disputed = tuple((HELD if d.index >= sample.trained else TRAIN, int(sample.index[d.index]), d) for d in doubts)
    twins, compared = duplicates.in_album(album, rng)
    two = [album.given(*pair.a) != album.given(*pair.b) for pair in twins]
    measured = curve.measured(*sample.parts, classes, rng)
    of_train, of_held = (_takes(part.labels, part.takes, classes) for part in (loaded.train, held))
    return Findings(
        loaded.classes,
        recipe,
        np.bincount(loaded.train.labels, minlength=classes),
        of_train,
        of_train + of_held,
        pretrained,
        start,
        accuracy.confused(answers[1], held.labels, classes),
        disputed,
        agreed,
        len(sample.y),
        len(loaded.train) + len(held),
        tuple(pair for pair, other in zip(twins, two, strict=True) if other),
        tuple(pair for pair, other in zip(twins, two, strict=True) if not other),
        compared,
        measured,
        curve.forecast(measured, rng) if measured is not None else None,
        from_scratch,
    )


def _answers(answers: Ints, labels: Ints, takes: Ints, classes: int) -> Answers:
    right = answers == labels
    of_class = accuracy.by_class(right, labels, takes, classes)
    return Answers(accuracy.share(right, takes), accuracy.balanced(of_class), of_class)


def _takes(labels: Ints, takes: Ints, classes: int) -> Ints:
    """(K,) takes of each class."""
    return np.bincount(labels[np.unique(takes, return_index=True)[1]], minlength=classes)
