"""What each learner has fitted to the labelled images, before the device sees any of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.learning import registry
from deco_runtime.learning.origin import Labelled, Represented, fitted
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Floats

from deco_export.data import Data
from deco_export.images import ImageSet, Inputs, asked, batches
from deco_export.representation import Representation


def fit_learners(
    directory: Path,
    made: Representation,
    engine: Engine,
    loaded: Data,
    preprocessing: Preprocessing,
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """Write fitted/NAME.npz for every learner that declares something to fit; sentences about that.

    engine: one that has the representation's graph. Every learner that is installed here can then start from the
    bundle, whichever recipe it was made for.
    """

    def seen(images: ImageSet) -> Represented:
        return Represented(lambda: _represent(engine, images, preprocessing), images.labels, images.takes)

    train = Represented(made.parts, loaded.train.labels, loaded.train.takes)
    labelled = Labelled(train, seen(loaded.validation), seen(loaded.none), made.size, len(loaded.classes))
    notes: list[str] = []
    kinds = registry.learners().values()
    for number, kind in enumerate(kinds):
        progress("fitting what learners start from", number, len(kinds))
        arrays, said = kind.fit(labelled)
        notes += said
        if arrays:
            file = directory / fitted(kind.NAME)
            file.parent.mkdir(exist_ok=True)
            np.savez(file, **arrays)  # type: ignore[arg-type]
    progress("fitting what learners start from", len(kinds), len(kinds))
    return notes


def _represent(engine: Engine, images: ImageSet, preprocessing: Preprocessing) -> Iterator[tuple[Floats, Floats]]:
    """φ and the pre-trained model's logits of the images, batch by batch."""
    inputs = Inputs(images, preprocessing)
    return (engine.represent(inputs[batch]) for batch in batches(len(images), asked(preprocessing.size)))
