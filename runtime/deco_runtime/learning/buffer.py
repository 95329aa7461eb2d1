"""The condensed buffer S: a few synthetic images per class, and the momentum of their optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deco_runtime.errors import BundleError
from deco_runtime.learning.origin import Bundle
from deco_runtime.types import Bools, Floats, Ints

FILE = "buffer.npz"
"""Of the bundle, where any images were condensed: x_syn (n, …) float32, y_syn (n,) int64."""


@dataclass(frozen=True)
class CondensedBuffer:
    """`S = {(x'_i, y'_i)}` with the same number of images, ipc, for every class.

    x_syn: (n, …) float32, in the space of what the learning graphs take: normalised images, or latents.
    y_syn: (n,) int64, fixed for good.
    velocity: like x_syn, momentum of opt_S.
    """

    x_syn: Floats
    y_syn: Ints
    velocity: Floats

    @classmethod
    def start(cls, x: Floats, y: Ints) -> CondensedBuffer:
        """A buffer of these images with its optimizer at rest."""
        return cls(x, y, np.zeros_like(x))

    def part(self, which: Bools) -> CondensedBuffer:
        """Of these images (n,) only."""
        return CondensedBuffer(self.x_syn[which], self.y_syn[which], self.velocity[which])

    @property
    def ipc(self) -> int:
        """Images per class."""
        return int(np.bincount(self.y_syn).max())


def joined(parts: Sequence[CondensedBuffer]) -> CondensedBuffer:
    """All images of these, of which there is at least one."""
    arrays = zip(*((each.x_syn, each.y_syn, each.velocity) for each in parts), strict=True)
    return CondensedBuffer(*(np.concatenate(each) for each in arrays))


def initial(bundle: Bundle) -> CondensedBuffer:
    """The bundle's buffer, condensed from the labelled images. Raises BundleError where there is none."""
    if FILE not in bundle.files:
        raise BundleError(
            f"expected a bundle with condensed images, which the paper's recipe starts from, but {bundle.path} was "
            "exported without; export it again with deco-export --ipc 10, or learn by deco+"
        )
    x = bundle.array(FILE, "x_syn", np.float32, (None, *bundle.latent))
    y = bundle.array(FILE, "y_syn", np.int64, (len(x),))
    count = np.bincount(y[(y >= 0) & (y < len(bundle.classes))], minlength=len(bundle.classes))
    if count.sum() != len(y) or count.min() != count.max() or len(y) == 0:
        raise bundle.broken(FILE, "the same number of images of every class")
    return CondensedBuffer.start(x, y)
