"""The pictures of all parts of a data set, one by one: their pixels, names and classes, and as small pictures of a
page."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from deco_runtime.errors import DataError
from deco_runtime.pictures import folder
from deco_runtime.preprocess import Preprocessing, fitted
from deco_runtime.types import Ints, Pixels

from deco_export.data import Data
from deco_export.images import Images, ImageSet

PARTS = ("trained on", "held out", "of no class", "in test/")
TRAIN, HELD, NONE, TEST = range(len(PARTS))

SIDE = 96
"""Most pixels of a small picture's side."""
TESTED, TESTED_BYTES = 1000, 50_000_000
"""Files of test/ that are read at most, and their bytes: some seconds of decoding."""


@dataclass(frozen=True)
class Album:
    """sets, names: one of each of PARTS; names may be empty. classes: K names."""

    sets: tuple[ImageSet, ...]
    names: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]

    def picture(self, part: int, i: int) -> Pixels:
        """(side, side, 3) uint8."""
        found: Pixels = self.sets[part][np.array([i])].pixels[0]
        return found

    def name(self, part: int, i: int) -> str:
        names = self.names[part]
        return names[i] if i < len(names) else f"picture {i}"

    def given(self, part: int, i: int) -> str:
        """The class that a picture is labelled with."""
        return "none" if part == NONE else self.classes[self.sets[part].labels[i]]

    def uri(self, part: int, i: int) -> str:
        """A data: URI of at most SIDE pixels each way, some kilobytes."""
        return uri(self.picture(part, i))


def open_album(source: str, loaded: Data, pictures: Preprocessing, rng: np.random.Generator) -> Album:
    """The parts of `loaded`, and of a folder that has a test part some of that, drawn at random."""
    test, names = _test(source, loaded, pictures, rng)
    return Album((loaded.train, loaded.validation, loaded.none, test), (*loaded.names, names), loaded.classes)


def uri(picture: Pixels) -> str:
    """A data: URI of a picture, made smaller than SIDE; PNG for one that is as small already, else JPEG."""
    small = _small(picture)
    ending, how = (".png", []) if len(picture) <= SIDE // 2 else (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 75])
    data = base64.b64encode(cv2.imencode(ending, small, how)[1].tobytes()).decode("ascii")
    return f"data:image/{'png' if ending == '.png' else 'jpeg'};base64,{data}"


def _small(picture: Pixels) -> Pixels:
    if len(picture) <= SIDE:
        return picture
    found: Pixels = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return found


def _test(
    source: str, loaded: Data, pictures: Preprocessing, rng: np.random.Generator
) -> tuple[Images, tuple[str, ...]]:
    """Small pictures of the data set's test part, and their names; of one that cannot be used none."""
    pixels, labels, names, size = [], list[int](), list[str](), 0
    try:
        test = folder.split_folder(Path(source))[1] if loaded.test is None else None
        listed = folder.list_folder(test, loaded.classes) if test is not None else None
    except DataError:
        listed = None
    if listed is not None:
        chosen = rng.permutation(len(listed.files))[:TESTED]
        some = replace(listed, files=tuple(listed.files[i] for i in chosen), none=())
        for file, label in zip(some.files, np.asarray(listed.labels)[chosen], strict=True):
            size += file.stat().st_size
            if size > TESTED_BYTES:
                break
            if (image := some.read(file)) is not None:
                pixels.append(_small(fitted(image, pictures)))
                labels.append(int(label))
                names.append(file.relative_to(some.root.parent).as_posix())
    side = min(pictures.size, SIDE)
    stacked = np.stack(pixels) if pixels else np.zeros((0, side, side, 3), np.uint8)
    return Images(stacked, np.asarray(labels, np.int64)), tuple(names)


def kinds(album: Album) -> tuple[Ints, Ints, Ints]:
    """Of all pictures of an album, one part after the other: a number for class and part (n,), the part (n,), and the
    place in it (n,)."""
    sizes = [len(each) for each in album.sets]
    part = np.repeat(np.arange(len(PARTS)), sizes)
    labels = [np.full(len(each), len(album.classes)) if p == NONE else each.labels for p, each in enumerate(album.sets)]
    kind = np.concatenate(labels) * len(PARTS) + part
    return kind, part, np.concatenate([np.arange(size) for size in sizes])
