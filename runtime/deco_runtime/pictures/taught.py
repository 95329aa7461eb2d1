"""Pictures to teach from: a folder, or a clip, as the network takes them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from deco_runtime.errors import DataError, SourceError
from deco_runtime.pictures.decode import seen_in
from deco_runtime.pictures.folder import read_image, silence_opencv
from deco_runtime.pictures.layout import Passed, images_below
from deco_runtime.preprocess import check_method, fitted
from deco_runtime.sources import _playback
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry.console import say
from deco_runtime.types import Ints, Pixels

MOST = 4000
"""Pictures of a folder."""
OF_A_CLIP = 64
"""Frames of a clip at least, evenly spread; at most twice as many."""


def of_folder(folder: Path, bundle: Bundle) -> tuple[Pixels, Ints]:
    """Pixels (n, size, size, 3) uint8 of every picture below a folder, each a take (n,) of its own. What cannot be read
    is passed over and said. Raises DataError where none is left, or there are too many."""
    check_method(bundle.preprocessing.method)
    silence_opencv()
    if not os.path.isdir(folder):
        raise DataError(f"expected a folder of pictures, but found none at {folder}; check the path")
    passed = Passed(folder)
    files = images_below(folder, passed)
    if len(files) > MOST:
        raise DataError(
            f"expected at most {MOST} pictures to teach from, but found {len(files)} in {folder}; export a bundle with "
            "so many as labelled ones"
        )
    seen, pixels = seen_in(files), []
    for file in files:
        picture = read_image(file, seen)
        if picture is None:
            passed.add("images that cannot be read", file)
        else:
            pixels.append(fitted(picture, bundle.preprocessing))
    if words := passed.summary():
        say(f"note: {words}")
    if not pixels:
        raise DataError(f"expected pictures to teach from, but found none in {folder} that can be read; choose another")
    return np.stack(pixels), np.arange(len(pixels))


def of_clip(clip: Path, bundle: Bundle) -> tuple[Pixels, Ints]:
    """The same of a video file: frames that are spread over it, of one take. Raises SourceError where it is none."""
    check_method(bundle.preprocessing.method)
    if not os.path.isfile(clip):
        raise SourceError(f"expected a video file, but found none at {clip}; check the path")
    source, kept, every = _playback.open_file(clip), list[Pixels](), 1
    for number, frame in enumerate(source.frames()):
        if number % every:
            continue
        kept.append(fitted(frame.pixels, bundle.preprocessing))
        if len(kept) >= 2 * OF_A_CLIP:  # how long it is shows as it is read
            kept, every = kept[::2], 2 * every
    source.close()
    return np.stack(kept), np.zeros(len(kept), np.int64)
