"""The initial buffer: the labelled images condensed by the device's own code before deployment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from deco_runtime.buffer import CondensedBuffer
from deco_runtime.condense import condense
from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.initialise import Parameter, draw_model, layers
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.recipe import Recipe
from deco_runtime.types import Floats

from deco_export.data import Images

ROUNDS = 10
"""Times every class is condensed; each is one `condense` of L iterations, as one segment on the device."""


def initial_buffer(
    engine: Engine,
    theta: Floats,
    images: Images,
    classes: tuple[str, ...],
    ipc: int,
    how: Preprocessing,
    parameters: tuple[Parameter, ...],
    recipe: Recipe,
    rng: np.random.Generator,
    tick: Callable[[int, int], None],
) -> CondensedBuffer:
    """Start from `ipc` random real images of each class and condense the class's labelled images into them.

    Weights w are 1, since the labels are true. Raises UsageError when a class has fewer than `ipc` images.
    """
    count = np.bincount(images.labels, minlength=len(classes))
    if count.min() < ipc:
        few = classes[int(count.argmin())]
        raise UsageError(
            f"expected at least --ipc {ipc} labelled training images of every class, but {few!r} has {count.min()}; "
            "lower --ipc, or raise --labelled"
        )
    members = [np.flatnonzero(images.labels == c) for c in range(len(classes))]
    start = np.concatenate([rng.choice(index, ipc, replace=False) for index in members])
    buffer = CondensedBuffer.start(normalise(images.pixels[start], how), images.labels[start])
    for step in range(ROUNDS * len(classes)):
        index = members[step % len(classes)]
        real = rng.permutation(index)[: recipe.segment]
        buffer = condense(
            engine,
            theta,
            buffer,
            normalise(images.pixels[real], how),
            images.labels[real],
            np.ones(len(real), np.float32),
            len(classes),
            recipe,
            lambda r: draw_model(parameters, r),
            layers(parameters),
            rng,
        ).buffer
        tick(step + 1, ROUNDS * len(classes))
    return CondensedBuffer.start(buffer.x_syn, buffer.y_syn)
