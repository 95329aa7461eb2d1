"""What the report is made of: what the learners are fitted to, and one more look at the held-out images.

φ of all of them may be more than memory holds, so all that is computed of it is computed of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.prior import PRIORS
from deco_runtime.learning.regression import PENALTY
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Floats, Ints

from deco_export.data import Data
from deco_export.images import Inputs, asked, batches
from deco_export.representation import Representation

MOST, MOST_HELD = 5000, 1500
"""Images in the sample, and held-out ones among them."""


@dataclass(frozen=True)
class Sample:
    """phi (n, D), labels y and takes (n,) of labelled images, those trained on first, then the held-out ones. index:
    (n,) the place of each in its own set. trained: how many are trained on. whole: whether all images are here."""

    phi: Floats
    y: Ints
    takes: Ints
    index: Ints
    trained: int
    whole: bool

    @property
    def parts(self) -> tuple[tuple[Floats, Ints, Ints], tuple[Floats, Ints, Ints]]:
        """φ, labels and takes of those trained on, and of those held out."""
        of = slice(self.trained), slice(self.trained, None)
        first, second = ((self.phi[part], self.y[part], self.takes[part]) for part in of)
        return first, second


def penalty(images: int, size: int) -> float:
    """λ of a regression on so many images with φ of this size: of few as `prior` expects it, of more the less, as
    `regression.penalty` goes on; without a jump, where a curve would have a bend."""
    return PENALTY + PRIORS[0] * min(1.0, size / max(images, 1))


def drawn(takes: Ints, most: int, rng: np.random.Generator) -> Ints:
    """Indices, sorted, of at most so many images (n,): one of each take at random, then a second one of each …"""
    order = rng.permutation(len(takes))
    order = order[np.argsort(takes[order], kind="stable")]
    _, start, size = np.unique(takes[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(start, size)
    return np.sort(order[np.lexsort((rng.random(len(order)), rank))[:most]])


class Watched:
    """A representation whose φ of a sample are kept as they come by, in the pass that the learners are fitted in."""

    def __init__(self, made: Representation, loaded: Data, rng: np.random.Generator) -> None:
        self._made, self._kept = made, np.zeros((0, made.size), np.float32)
        self.held = drawn(loaded.validation.takes, MOST_HELD, rng)
        self.train = drawn(loaded.train.takes, MOST - len(self.held), rng)
        self.represented = replace(made, parts=self._parts)

    def phi(self) -> Floats:
        """φ (n, D) of those that are trained on."""
        if len(self._kept) < len(self.train):  # no learner has looked at them all
            for _ in self._parts():
                pass
        return self._kept

    def _parts(self) -> Iterator[tuple[Floats, Floats]]:
        kept, done = [self._kept[:0]], 0
        for phi, logits in self._made.parts():
            kept.append(phi[self.train[(self.train >= done) & (self.train < done + len(phi))] - done])
            done += len(phi)
            yield phi, logits
        self._kept = np.concatenate(kept)


def gather(
    loaded: Data,
    watched: Watched,
    engine: Engine,
    learner: Learner,
    preprocessing: Preprocessing,
    tick: Callable[[int], None],
) -> tuple[Sample, Ints]:
    """The sample, and the class (m,) that the learner, as it starts, gives each held-out image.

    tick: told how many of these were looked at.
    """
    train, held, of_train, of_held = loaded.train, loaded.validation, watched.train, watched.held
    inputs, chosen = Inputs(held, preprocessing), np.isin(np.arange(len(held)), of_held)
    kept, answers = [watched.phi()], [np.zeros(0, np.int64)]
    for part in batches(len(held), asked(preprocessing.size)):
        x = inputs[part]
        observed = learner.observe(x)
        phi = observed["phi"] if "phi" in observed else engine.represent(x)[0]
        kept.append(phi[chosen[part]])
        answers.append(learner.answer(learner.model, observed).argmax(axis=1))
        tick(part.start + len(x))
    apart = train.takes.max() + 1  # no take is of both
    sample = Sample(
        np.concatenate(kept),
        np.concatenate([train.labels[of_train], held.labels[of_held]]),
        np.concatenate([train.takes[of_train], held.takes[of_held] + apart]),
        np.concatenate([of_train, of_held]),
        len(of_train),
        len(of_train) == len(train) and len(of_held) == len(held),
    )
    return sample, np.concatenate(answers)
