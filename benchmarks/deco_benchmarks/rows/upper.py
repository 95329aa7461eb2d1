"""Upper: trained on the whole stream with true labels, all of it kept: what nothing on a device can reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from deco_runtime.learning.frozen import Frozen
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.retrain import sgd_step
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats, Observed, Segment

from deco_benchmarks.rows import Row, Setup

NAME = "Upper"
ABOUT = (
    "One i.i.d. pass over the labelled images and the whole stream with true labels; its curve is flat until the end."
)

RATE, BATCH = 0.02, 64
"""Peak of the one-cycle rate, and batch size, as in pre-training."""


def make(setup: Setup) -> Row:
    """The pre-trained model until `finish`."""
    recipe = replace(Keeping.RECIPE, segment=setup.recipe.segment)
    return Upper(Keeping.open(setup.bundle, setup.engine, recipe, setup.rng), setup)


class Keeping(Frozen):
    """Votes, and changes nothing; it sees the pixels themselves, for whoever keeps them."""

    OWN = None  # all frames so far would have to be written out

    def observe(self, x: Floats) -> Observed:
        return {"x": self.engine.encode(x)}

    def answer(self, model: Floats, observed: Observed) -> Floats:
        return self.engine.predict(model, observed["x"])[0]


class Upper(Row):
    """Keeps every frame as float32, which is many times the memory of any other row."""

    def __init__(self, learner: Keeping, setup: Setup) -> None:
        super().__init__(learner)
        self.setup, self.x, self.y = setup, [setup.x_labelled], [setup.y_labelled]

    def learn(self, segment: Segment) -> SegmentReport:
        """Keep the frames with their true labels."""
        self.x.append(segment.observed["x"])
        self.y.append(segment.labels)
        return replace(self.learner.learn(segment), kept=1.0, pseudo_accuracy=1.0)

    def retrain(self) -> None:
        """Not before the end."""

    def finish(self) -> None:
        """Train on all that was kept, in random order, from the pre-trained model."""
        it, recipe = self.learner, self.setup.recipe
        x, y = np.concatenate(self.x), np.concatenate(self.y)
        order = self.setup.rng.permutation(len(y))
        steps = -(-len(y) // BATCH)
        theta, velocity = it.model, np.zeros_like(it.model)
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            t = targets(y[batch], np.full(len(batch), 1 / len(batch), np.float32), it.classes)
            _, gradient = it.engine.weight_gradient(theta, x[batch], t)
            done = (step + 0.5) / steps
            rate = RATE * min(done / 0.1, 0.5 * (1 + np.cos(np.pi * max(0.0, done - 0.1) / 0.9)))  # as OneCycleLR
            theta, velocity = sgd_step(theta, velocity, gradient, rate, recipe.retrain_momentum, recipe.weight_decay)
        it.model = theta

    def state_bytes(self) -> int:
        """All frames kept."""
        return sum(x.nbytes for x in self.x)
