"""The votes of learners that answer from a representation: what each frame shows, by what the bundle starts with and by
the order of the frames.

    fit, start   the labelled images' statistics and what held-out ones say of them: at the export, and from the bundle
    Voter        the likelihoods of a segment's frames, which the chain is decoded from

Never by what follows the stream: a model that votes for itself drifts to the classes it saw last.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from deco_runtime.learning import added, calibrate
from deco_runtime.learning.added import discriminants
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.chain import alike, in_common
from deco_runtime.learning.origin import Bundle, Labelled, fitted
from deco_runtime.learning.prior import prior
from deco_runtime.learning.regression import (
    PENALTY,
    Start,
    Statistics,
    mixed,
    of_classes,
    penalty,
    scores,
    share,
    solve,
    spread,
)
from deco_runtime.learning.unknown import SIGNS, Known, odds
from deco_runtime.learning.vote import softmax
from deco_runtime.types import Bools, Floats

FILE = fitted("deco+")


class Voter:
    """What a bundle starts with, as votes. states: S, the classes and, where the bundle knows, one for unknown things.

    w: (D + 1, K), the start regression, and s: (K,), its share in an answer. apart: see `chain.in_common`.
    """

    def __init__(
        self,
        start: Start,
        classes: int,
        first: Statistics | None = None,
        weight: float = 1.0,
        cost: float = added.COSTS[added.UNJUDGED],
        like: Statistics | None = None,
    ) -> None:
        """classes: K. first: of the labelled images alone, where the statistics of `start` are also of what people
        taught since, each frame of it `weight` times, and perhaps of classes behind those of the bundle, which may take
        `cost` of the others. like: the statistics of `start` without frames of those classes, which say nothing of how
        much others differ."""
        first = start.statistics if first is None else first
        self.start, self.classes, self.known = replace(start, statistics=first), classes, first.b.shape[1]
        own = of_classes(start.statistics, self.known)
        self.w = solve(own, penalty(own, self.start))
        self.s = share(own, self.start)
        self.g = discriminants(start.statistics, self.known, weight, cost) if classes > self.known else None
        self._near = added.Near.of(start.statistics, self.known) if classes > self.known else None
        self.states = classes + (start.unknown is not None)
        self.apart = spread(first)
        self._known = Known.of(own if like is None else like, self.w) if start.unknown is not None else None

    def odds(self, phi: Floats, logits: Floats, common: float = 1.0) -> Floats:
        """As `unknown.odds` (n,); 0 where the bundle does not say. What an added class makes likely is known, unless it
        is far from that class too: else all that is unlike the others would be taken for it."""
        if self._known is None or self.start.unknown is None:
            return np.zeros(len(phi), np.float32)
        found = odds(self._known.signs(phi, logits), self.start.unknown, common)
        if self.g is None or self._near is None:
            return found
        against = added.odds(self.g, phi, self.known) * self._near.share(phi)
        likelier = np.exp(np.minimum(against, added.LARGEST))
        left: Floats = found / (1 + likelier.sum(axis=1, dtype=np.float32))
        return left

    def likelihood(self, phi: Floats, logits: Floats, cut: Bools | None = None) -> Floats:
        """What the votes are made of, (n, S) float32: how likely each class makes a frame, and last, where the bundle
        knows, something unknown, up to a factor; of frames in a row, softened by how alike they are. cut: as in
        `Segment`."""
        said, r = mixed(self.w, self.s, phi, logits, self.start), in_common(phi, self.apart, cut)
        if self.g is not None:
            said = added.beside(said, added.odds(self.g, phi, self.known))
        softer = alike(r)
        p = softmax(said / np.float32(softer * self.start.mixed_temperature))
        if self._known is None:
            return p
        strange = self.odds(phi, logits, r) ** np.float32(1 / softer)
        return np.concatenate([p, strange[:, None] / self.classes], axis=1)  # p(frame | c) is K·p(c | frame)·p(frame)


def fit(labelled: Labelled) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a `Start`, and sentences about fits that ended where their search does."""
    statistics, train = labelled.statistics, labelled.train
    few = len(train.labels) < labelled.size
    small = prior(train.all(labelled.size, labelled.classes)[0], train.labels, train.takes) if few else 0.0
    w = solve(statistics, PENALTY + small)
    known, held = Known.of(statistics, w), labelled.held_out
    phi, logits = held.all(labelled.size, labelled.classes)
    others = labelled.none.all(labelled.size, labelled.classes)
    strange = calibrate.unknown(known.signs(phi, logits), held.takes, known.signs(*others))
    found = calibrate.calibrate(logits, scores(w, phi), held.labels, held.takes)
    notes = list(found.notes)
    if strange is None:
        notes.append(
            "nothing will be answered unknown: too few takes were held out to tell how strange a known frame may be; "
            "label more, or raise --val"
        )
    return {
        "a": statistics.a,
        "b": statistics.b,
        "network_temperature": np.asarray(found.network_temperature, np.float32),
        "regression_temperature": np.asarray(found.regression_temperature, np.float32),
        "mixed_temperature": np.asarray(found.mixed_temperature, np.float32),
        "worth": np.asarray(found.worth, np.float32),
        "prior": np.asarray(small, np.float32),
        "unknown": strange if strange is not None else np.zeros(0, np.float32),
    }, notes


def start(bundle: Bundle) -> Start:
    """What `fit` found. Raises BundleError where the bundle's file is not that."""
    b = bundle.array(FILE, "b", np.float32, (bundle.represented + 1, len(bundle.classes)))
    a = bundle.array(FILE, "a", np.float32, (len(b) * (len(b) + 1) // 2,))
    keys = ("network_temperature", "regression_temperature", "mixed_temperature", "worth", "prior")
    network, regression, both, worth, small = (float(bundle.array(FILE, key, np.float32, ())) for key in keys)
    if min(network, regression, both) <= 0:
        raise bundle.broken(FILE, "temperatures above 0")
    if not 0 <= worth <= 1:
        raise bundle.broken(FILE, "a worth from 0 to 1")
    if small < 0:
        raise bundle.broken(FILE, "a prior of at least 0")
    unknown = bundle.array(FILE, "unknown", np.float32, (None,))
    if len(unknown) not in (0, SIGNS + 2):
        raise bundle.broken(FILE, f"none or {SIGNS + 2} weights of the signs of unknown things")
    weights = unknown if len(unknown) else None
    return Start(Statistics(a, b), network, regression, both, worth, weights, small)
