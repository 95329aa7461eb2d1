"""`--images`: a labelled folder streamed as a camera would see it, a while of one class then another, or as it did."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import click
import numpy as np

from deco_runtime.errors import DataError, UsageError
from deco_runtime.folder import Unreadable, fingerprints, list_folder, split_folder
from deco_runtime.sources import FrameSource, SourceRequest
from deco_runtime.types import Frame, Ints, Pixels

NO_LABEL = -1
"""Of an image that shows none of the classes."""

OPTION = click.Option(
    ["--images"],
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Learn from a folder of images, DIR/<class>/<image> or DIR/train/<class>/<image>, streamed once "
    "with several images of one class in a row, as a camera would see them, or in the --order recorded. The "
    "labels only score the result; learning never sees them. Images of a folder 'none' or 'background' have none.",
)


def open_source(value: Path, request: SourceRequest) -> FrameSource:
    """Stream a folder once. Raises DataError if the folder cannot be used or holds only training images."""
    train, _ = split_folder(value, request.classes)
    listed = list_folder(train, request.classes)
    files = listed.files + listed.none
    labels = [*listed.labels, *[NO_LABEL] * len(listed.none)]
    prints = fingerprints(files) if request.trained_on else [None] * len(files)
    kept = [i for i, own in enumerate(prints) if own not in request.trained_on]
    if not kept:
        raise DataError(
            f"expected images the model was not trained on, found only training images in {train}: "
            "stream another folder"
        )
    notes, left_out = [listed.note], len(files) - len(kept)
    if left_out:
        notes.append(f"left out the images the model was trained on ({left_out})")
    # A state goes on only in the same order, so that the name says which.
    if request.order == "recorded":
        names = [files[i].relative_to(train) for i in kept]
        order, name = recorded_order(names), f"images in {train}, as recorded"
        notes.append(no_recording(names))
    else:
        order = stc_order([labels[i] for i in kept], request.stc, request.seed)
        name = f"images in {train}, stc {request.stc}, seed {request.seed}"
    index = [kept[i] for i in order]
    images, own = [(files[i], labels[i]) for i in index], [prints[i] for i in index] if request.trained_on else None
    return Images(name, images, listed.read, [note for note in notes if note], own)


def stc_order(labels: Sequence[int], stc: int, seed: int) -> Ints:
    """An order of n images with strength of temporal correlation `stc`, as (n,) int64 indices into `labels`.

    Every index occurs once. The images of a class, shuffled, are cut into runs of exactly `stc`, the last run
    of a class holding what remains. The runs come in random order, neighbours always of different classes if
    any order allows that; if none does, one class has too many runs, and those too many end the stream.
    The same labels, stc and seed give the same order. Raises UsageError if stc < 1.
    """
    if stc < 1:
        raise UsageError(f"expected at least 1 consecutive image of a class (--stc), found {stc}: raise it")
    stc = min(stc, len(labels) + 1)  # beyond that it changes nothing, and numpy's integers end somewhere
    rng = np.random.default_rng(seed)
    classes, of_class = np.unique(np.asarray(labels, dtype=np.int64), return_inverse=True)
    members = [rng.permutation(np.flatnonzero(of_class == k)) for k in range(len(classes))]
    left = np.array([-(-len(indices) // stc) for indices in members], dtype=np.int64)  # runs, rounded up
    used = np.zeros_like(left)
    runs: list[Ints] = []
    last = -1
    while left.sum():
        choice = left.copy()
        if last >= 0 and left.sum() > left[last]:
            choice[last] = 0
        # A class with more than half of the runs left must come every second time, or its runs would end up
        # next to each other.
        largest = int(choice.argmax())
        if 2 * left[largest] > left.sum():
            last = largest
        else:
            last = int(np.searchsorted(choice.cumsum(), rng.integers(choice.sum()), side="right"))
        runs.append(members[last][used[last] * stc : (used[last] + 1) * stc])
        used[last] += 1
        left[last] -= 1
    return np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)


def recorded_order(files: Sequence[PurePath]) -> Ints:
    """The order of n files <class>/<image> as a camera recorded them, as (n,) int64 indices into `files`.

    By the image's name over all classes, numbers in it compared as numbers, so that frame2 comes before frame10; a name
    that is in several classes comes in the order of these. Of images in folders below those of their classes, the name
    begins with these folders: first all of day1, then all of day2.
    """

    def key(index: int) -> tuple[list[list[str | int]], str, str]:
        # Text and numbers in turn, so that like is compared with like.
        name = PurePath(*files[index].parts[1:])
        parts = [re.split(r"([0-9]+)", part) for part in name.with_suffix("").parts]
        natural: list[list[str | int]] = [[int(p) if i % 2 else p for i, p in enumerate(part)] for part in parts]
        return natural, name.as_posix(), files[index].parts[0]

    return np.array(sorted(range(len(files)), key=key), dtype=np.int64)


def no_recording(files: Sequence[PurePath]) -> str | None:
    """Why the names of files <class>/<image> tell no order, as a sentence; None if they may be those of a recording."""
    repeated = sum(count > 1 for count in Counter(file.parts[1:] for file in files).values())
    if not repeated:
        return None
    names = f"{repeated} file name{'s are' if repeated > 1 else ' is'}"
    return f"{names} in more than one class, so by name the classes come mixed and not as recorded"


class Images:
    """Image files with their labels, read one by one in the given order.

    length: their number, unreadable ones included. read: gives an image, or None for an unreadable one. notes:
    sentences about what was left out, and about their order. prints: their fingerprints, None where not known yet.
    """

    live = False
    dropped = 0

    def __init__(
        self,
        name: str,
        images: Sequence[tuple[Path, int]],
        read: Callable[[Path], Pixels | None],
        notes: Sequence[str] = (),
        prints: Sequence[str | None] | None = None,
    ) -> None:
        self.name = name
        self.length: int | None = len(images)
        self._images = images
        self._read, self._notes, self._prints = read, notes, prints
        self._unreadable = Unreadable(len(images))
        self._closed = False

    def fingerprints(self) -> frozenset[str]:
        """Of its files, to know copies of them by."""
        prints = fingerprints([file for file, _ in self._images]) if self._prints is None else self._prints
        return frozenset(filter(None, prints))

    def frames(self) -> Iterator[Frame]:
        """Yield every readable image. Raises DataError if too many are unreadable, or all."""
        for file, label in self._images:
            if self._closed:
                return
            pixels = self._read(file)
            if pixels is None:
                self._unreadable.add(file)
            else:
                yield Frame(pixels, time.monotonic(), label if label != NO_LABEL else None)
        if len(self._unreadable.files) == len(self._images):
            raise DataError(f"expected {self.name} that OpenCV can read, found none: replace them")

    def note(self) -> str | None:
        return "; ".join(filter(None, (*self._notes, self._unreadable.summary()))) or None

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._closed = True
