"""`--images`: a labelled folder streamed as a camera would see it, a while of one class then another, or as it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from deco_runtime.errors import DataError
from deco_runtime.pictures.folder import Unreadable, fingerprints, list_folder, split_folder
from deco_runtime.sources import FPS_UNKNOWN, FrameSource, SourceRequest
from deco_runtime.sources.orders import no_recording, recorded_order, stc_order
from deco_runtime.sources.view import WHOLE, View
from deco_runtime.types import Frame, Pixels

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
    view = request.view
    index = [kept[i] for i in order[:: view.every]]
    images, own = [(files[i], labels[i]) for i in index], [prints[i] for i in index] if request.trained_on else None
    return Images(view.named(name), images, listed.read, [note for note in notes if note], own, view)


class Images:
    """Image files with their labels, read one by one in the given order.

    length: their number, unreadable ones included. read: gives an image, or None for an unreadable one. notes:
    sentences about what was left out, and about their order. prints: their fingerprints, None where not known yet.
    view: how each is looked at; its `every` was seen to before.
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
        view: View = WHOLE,
    ) -> None:
        self.name = name
        self.length: int | None = len(images)
        self._images = images
        self._read, self._notes, self._prints, self._view = read, notes, prints, view
        self._unreadable = Unreadable(len(images))
        self._closed = False

    def fingerprints(self) -> frozenset[str]:
        """Of its files, to know copies of them by."""
        prints = fingerprints([file for file, _ in self._images]) if self._prints is None else self._prints
        return frozenset(filter(None, prints))

    def frames(self) -> Iterator[Frame]:
        """Yield every readable image. Raises DataError if too many are unreadable, or all."""
        for number, (file, label) in enumerate(self._images):
            if self._closed:
                return
            pixels = self._read(file)
            if pixels is None:
                self._unreadable.add(file)
            else:
                seconds = number * self._view.every / FPS_UNKNOWN
                yield Frame(self._view.of(pixels), seconds, label if label != NO_LABEL else None)
        if len(self._unreadable.files) == len(self._images):
            raise DataError(f"expected {self.name} that OpenCV can read, found none: replace them")

    def note(self) -> str | None:
        return "; ".join(filter(None, (*self._notes, self._unreadable.summary()))) or None

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._closed = True
