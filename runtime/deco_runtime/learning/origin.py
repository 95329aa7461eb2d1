"""What a learner starts from: the bundle, and at the export the labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deco_runtime.errors import BundleError
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.regression import Statistics, add
from deco_runtime.learning.vote import one_hot
from deco_runtime.types import Floats, Ints


class Bundle(Protocol):
    """What a learner may know of the bundle it starts from, see `storage.bundle`."""

    @property
    def path(self) -> Path: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> tuple[Parameter, ...]: ...
    @property
    def latent(self) -> tuple[int, ...]: ...
    @property
    def trunk(self) -> bool: ...
    @property
    def represented(self) -> int: ...
    @property
    def files(self) -> Mapping[str, str]: ...

    def weights(self) -> Floats:
        """θ_0 (P,) float32, the pre-trained model."""
        ...

    def array(self, name: str, key: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> Any:
        """An array of the .npz `name`; BundleError unless it is finite and of this type and shape, None being any
        number."""
        ...

    def broken(self, name: str, expected: str) -> BundleError:
        """That the file `name` does not hold what was expected."""
        ...


@dataclass(frozen=True)
class Represented:
    """Images as the representation shows them: φ (n, D) and the pre-trained model's logits (n, K), part by part and in
    order at each call; their labels (N,) and takes (N,), the same number for images recorded in one go."""

    parts: Callable[[], Iterator[tuple[Floats, Floats]]]
    labels: Ints
    takes: Ints

    def all(self, size: int, classes: int) -> tuple[Floats, Floats]:
        """φ (N, size) and logits (N, classes) at once; N may be 0."""
        nothing = np.zeros((0, size), np.float32), np.zeros((0, classes), np.float32)
        phi, logits = map(np.concatenate, zip(nothing, *self.parts(), strict=True))
        return phi, logits


@dataclass(frozen=True)
class Labelled:
    """What a learner may fit at the export: the images the model was trained on, those held out, and those of none of
    the classes, whose labels mean nothing; D and K. Of held out and none there may be no image."""

    train: Represented
    held_out: Represented
    none: Represented
    size: int
    classes: int

    @cached_property
    def statistics(self) -> Statistics:
        """A and B of the training images, in one pass over them for all learners."""
        found, done = Statistics.zero(self.size, self.classes), 0
        for phi, _ in self.train.parts():
            y = self.train.labels[done : done + len(phi)]
            found, done = add(found, phi, one_hot(y, self.classes)), done + len(phi)
        return found


def fitted(name: str) -> str:
    """The bundle's file with what the learner `name` had fitted at the export."""
    return f"fitted/{name}.npz"
