"""The initial buffer: the labelled images condensed by the device's own code before deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.random_model import Parameter
from deco_runtime.types import Floats, Ints

from deco_export.images import Arrays

ROUNDS = 10
"""Times every class is condensed; each is one `condense` of L iterations, as one segment on the device."""


def initial_buffer(
    engine: Engine,
    theta: Floats,
    inputs: Arrays,
    labels: Ints,
    classes: tuple[str, ...],
    ipc: int,
    parameters: tuple[Parameter, ...],
    recipe: Hyperparameters,
    rng: np.random.Generator,
    tick: Callable[[int, int], None],
) -> CondensedBuffer:
    """Start from `ipc` random real images of each class and condense the class's labelled images into them.

    inputs, labels: what the learning graphs take of the labelled images, and their labels (n,).

    Raises UsageError when a class has fewer than `ipc` images.
    """
    check_enough(labels, classes, ipc)
    first = pick_per_class(labels, ipc, rng)
    start = CondensedBuffer.start(inputs[first], labels[first])
    learner = Deco(engine, parameters, theta, start, len(classes), recipe, rng)
    for step, _ in enumerate(condense_labelled(learner, inputs, labels, ROUNDS)):
        tick(step + 1, ROUNDS * len(classes))
    return CondensedBuffer.start(learner.memory.x_syn, learner.memory.y_syn)


def check_enough(labels: Ints, classes: tuple[str, ...], ipc: int) -> None:
    """Raise UsageError when a class has fewer than `ipc` labelled training images, or none."""
    count = np.bincount(labels, minlength=len(classes))
    if count.min() < max(ipc, 1):
        few = classes[int(count.argmin())]
        wanted, advice = (
            (f"--ipc {ipc} labelled training images", "lower --ipc, or ")
            if ipc
            else ("one labelled training image", "")
        )
        raise UsageError(
            f"expected at least {wanted} of every class, but {few!r} has {count.min()}; {advice}raise --labelled"
        )


def pick_per_class(labels: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Indices of `count` random images of every class, class by class; there must be as many."""
    return np.concatenate([rng.choice(np.flatnonzero(labels == c), count, False) for c in np.unique(labels)])


def condense_labelled(learner: Deco, inputs: Arrays, labels: Ints, rounds: int) -> Iterator[Condensed]:
    """Condense up to a segment of random images of one class after the other, `rounds` times over the classes.

    Weights w are 1, since the labels are true. Changes the learner's memory, and yields what each step did.
    """
    for step in range(rounds * learner.classes):
        members = np.flatnonzero(labels == step % learner.classes)
        real = learner.rng.permutation(members)[: learner.recipe.segment]
        w = np.ones(len(real), np.float32)
        done = learner.condense(inputs[real], labels[real], w, lambda: None)
        learner.memory = done.buffer
        yield done
