"""Learners that answer from a representation of the frozen model, and are fed by the votes of `voter.py`.

A frame goes through the network once, when it is predicted: φ and the network's logits are all that anyone needs of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from deco_runtime.engine import REPRESENTATION, Engine
from deco_runtime.errors import BundleError, UsageError
from deco_runtime.learning.arrays import Memory, arrays_of
from deco_runtime.learning.chain import Decoded, decode
from deco_runtime.learning.learner import Learner, seen_once
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.vote import accuracy
from deco_runtime.learning.voter import FILE, Voter
from deco_runtime.types import Batches, Bools, Check, Floats, Observed, Segment

SHARE = 0.1
"""Part of a segment from which a class is reported as active."""


class RepresentedLearner(Learner):
    """Observes φ (N, D) and logits (N, K) of the pre-trained model; its memory changes by `add`."""

    GRAPH, LEAST = REPRESENTATION, 0.25

    def __init__(
        self, engine: Engine, voter: Voter, model: Floats, memory: Memory, recipe: Recipe, rng: np.random.Generator
    ) -> None:
        super().__init__(engine, model, memory, voter.classes, recipe, rng)
        self.voter, self.states = voter, voter.states
        self.steps = ("adding up the segment", 1)

    @classmethod
    def check_engine(cls, bundle: Bundle, engine: Engine, recipe: Any) -> None:
        if engine.precision != "fp32":
            raise UsageError(
                f"expected --precision fp32 with --recipe {cls.NAME}, which computes no gradients, but found "
                f"{engine.precision}; leave the option out"
            )
        if f"graphs/{REPRESENTATION}.onnx" not in bundle.files or FILE not in bundle.files:
            raise BundleError(
                f"expected a bundle with the graph {REPRESENTATION} and {FILE} for --recipe {cls.NAME}, but "
                f"{bundle.path} was exported without; export it again with this version, or use --recipe paper"
            )

    @abstractmethod
    def add(self, memory: Memory, observed: Observed, t: Floats) -> Memory:
        """The memory with a segment's frames, each shared among the classes by t (n, K); rows sum to 1 or, of frames
        that may show something unknown, less."""

    def observe(self, x: Floats) -> Observed:
        phi, logits = self.engine.represent(x)
        return {"phi": phi, "logits": logits}

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        return seen_once(images, self.observe, self.answer)

    def strangeness(self, observed: Observed) -> Floats:
        odds = self.voter.odds(observed["phi"], observed["logits"])
        return odds / (1 + odds)

    def likelihood(self, observed: Observed, cut: Bools | None) -> Floats:
        """What the votes are made of, see `Voter.likelihood`."""
        return self.voter.likelihood(observed["phi"], observed["logits"], cut)

    def vote(self, segment: Segment) -> Decoded:
        """What each frame shows, by all frames of its segment and what the one before ended with."""
        return decode(self.likelihood(segment.observed, segment.cut), self.scene, segment.cut)

    def update(self, segment: Segment, check: Check) -> tuple[Memory, SegmentReport]:
        """Every frame counts as far as it is known, shared among the classes by its posterior."""
        check()
        voted = self.vote(segment)
        t = voted.posterior[:, : self.classes]
        memory = self.add(self.memory, segment.observed, t)
        fine = all(np.isfinite(array).all() for array in arrays_of(memory).values())
        self.scene = voted.last if fine else None
        unknown = voted.posterior[:, self.classes :]
        return memory if fine else self.memory, SegmentReport(
            active=np.flatnonzero(t.mean(axis=0) > SHARE).tolist(),
            kept=1.0 - float(unknown.sum() / max(len(t), 1)) if fine else 0.0,
            pseudo_accuracy=accuracy(t.argmax(axis=1), segment.labels),
            dropped=0 if fine else 1,
            figures={"unknown": int(np.count_nonzero(voted.posterior.argmax(axis=1) == self.classes))},
        )
