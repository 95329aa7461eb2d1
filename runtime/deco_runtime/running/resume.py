"""Where a replayed stream is to go on: how many of its frames lie behind, and a digest that knows them again.

A clip or folder may have changed under the same name. Times and sizes of files do not settle that (some cards keep
times to two seconds, a copy has new ones), so what was read does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from deco_runtime.types import Pixels

SIDE = 64
"""Of a picture about so many rows and columns go into the digest: noise makes any two pictures differ there."""


@dataclass(frozen=True)
class Place:
    """In a replayed stream. frames: that lie behind. digest: of these, "" for none."""

    frames: int = 0
    digest: str = ""


START = Place()


class Seen:
    """Every frame so far of a stream that is being read."""

    def __init__(self) -> None:
        self.frames = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, pixels: Pixels) -> None:
        """The next frame, (height, width, 3) uint8."""
        height, width = pixels.shape[:2]
        few = pixels[:: max(1, height // SIDE), :: max(1, width // SIDE)]
        self._digest.update(repr(pixels.shape).encode() + np.ascontiguousarray(few).tobytes())
        self.frames += 1

    @property
    def place(self) -> Place:
        """Behind the last frame."""
        return Place(self.frames, self._digest.hexdigest()) if self.frames else START
