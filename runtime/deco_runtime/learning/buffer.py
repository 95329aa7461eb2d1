"""The condensed buffer S: a few synthetic images per class, and the momentum of their optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deco_runtime.types import Floats, Ints


@dataclass(frozen=True)
class CondensedBuffer:
    """`S = {(x'_i, y'_i)}` with the same number of images, ipc, for every class.

    x_syn: (n, C, H, W) float32, in the network's input space (normalised).
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

    @property
    def ipc(self) -> int:
        """Images per class."""
        return int(np.bincount(self.y_syn).max())
