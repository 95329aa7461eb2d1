"""Labelled images, in memory or in a file: whoever works on them asks for a few at a time.

All pictures together may be more than memory holds, and a copy of them often is. So what is asked of a set of images
is its labels and takes, which are small, and `images[index]`, which reads no more than it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol, cast

import numpy as np
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.types import Floats, Ints, Pixels

BATCH = 64
"""Images in memory at a time: as many as pre-training takes in one step."""
FEW, PIXELS = 8, BATCH * 64 * 64
"""A model is asked of no more pixels at a time, but of FEW images however large: its layers hold many maps of each."""


@dataclass(frozen=True)
class Images:
    """pixels (n, size, size, 3) uint8 B, G, R, resized as the device does it; labels (n,) int64.

    takes: (n,) int64, equal for images that were recorded in one go; each its own where not given.
    """

    pixels: Pixels
    labels: Ints
    takes: Ints = field(default=cast(Ints, None))

    def __post_init__(self) -> None:
        if self.takes is None:
            object.__setattr__(self, "takes", np.arange(len(self.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Ints | slice) -> Images:
        return Images(self.pixels[index], self.labels[index], self.takes[index])


@dataclass(frozen=True)
class StoredImages:
    """Images whose pixels stay in a file until they are asked for.

    file: pictures one behind the other, each size · size · 3 bytes, as in `Images`. rows: (n,) int64, the place of each
    image in it. labels, takes: as in `Images`.
    """

    file: BinaryIO
    size: int
    rows: Ints
    labels: Ints
    takes: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Ints | slice) -> Images:
        """Read some into memory. Raises OSError where the file cannot be read."""
        rows = self.rows[index]
        pixels = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        for row, picture in zip(rows, pixels, strict=True):
            self.file.seek(int(row) * picture.nbytes)
            picture[:] = np.frombuffer(self.file.read(picture.nbytes), np.uint8).reshape(picture.shape)
        return Images(pixels, self.labels[index], self.takes[index])

    def select(self, index: Ints) -> StoredImages:
        """Some of them, which stay in the file."""
        return replace(self, rows=self.rows[index], labels=self.labels[index], takes=self.takes[index])


ImageSet = Images | StoredImages


class Arrays(Protocol):
    """What the learning graphs take of images: a[index] is (n, …) float32, perhaps made when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Ints) -> Floats: ...


@dataclass(frozen=True)
class Inputs:
    """Images as the network takes them: inputs[index] is (n, 3, size, size) float32, made when it is asked for."""

    images: ImageSet
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Ints | slice) -> Floats:
        pixels = self.images[index].pixels
        x = np.empty((len(pixels), 3, *pixels.shape[1:3]), np.float32)
        for part in batches(len(pixels), FEW):  # held several times over on the way
            x[part] = normalise(pixels[part], self.preprocessing)
        return x


def batches(n: int, size: int = BATCH) -> Iterator[slice]:
    """Slices of at most `size` that together are the whole of n."""
    return (slice(start, start + size) for start in range(0, n, size))


def asked(side: int) -> int:
    """How many images of this side a model is asked of at a time."""
    return min(BATCH, max(FEW, PIXELS // side**2))


def pictures(images: ImageSet) -> Iterator[Pixels]:
    """One (size, size, 3) uint8 after the other."""
    for batch in batches(len(images)):
        yield from images[batch].pixels
