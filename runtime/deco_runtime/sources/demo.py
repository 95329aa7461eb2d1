"""`--demo`: the stream that a bundle carries, a video file read like any other."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from deco_runtime.errors import SourceError
from deco_runtime.sources import FrameSource, SourceRequest
from deco_runtime.sources.view import View
from deco_runtime.types import Ints

OPTION = click.Option(
    ["--demo"],
    is_flag=True,
    default=None,
    help="Learn from the stream inside the bundle (deco-export --data digits makes one), scored on its test images.",
)


def open_source(value: bool, request: SourceRequest) -> FrameSource:
    """Play demo/stream.avi of the bundle. Raises SourceError if the bundle carries no stream."""
    import numpy as np

    from deco_runtime.storage.untrusted import read_npy

    root = request.bundle
    stream, labels = root.joinpath("demo", "stream.avi"), root.joinpath("demo", "labels.npy")
    if not stream.is_file():
        raise SourceError(
            f"expected a bundle with a stream of its own for --demo, but {root} has none; "
            "make one with deco-export --data digits, or name a --camera, --video or --images"
        )
    try:
        with labels.open("rb") as file:
            truth = read_npy(file).astype(np.int64, casting="safe").reshape(-1)
    except Exception as error:  # the disk, the zip and numpy raise a dozen kinds
        raise SourceError(f"expected the classes of the demo stream in {labels}, found none; copy it again") from error
    if isinstance(stream, Path):
        return _play(stream, truth, request.view)
    # OpenCV opens files only. An open one stays readable when its name goes; where it does not, the name stays.
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, stream.open("rb") as packed:
            copy = Path(place) / "stream.avi"
            with copy.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            return _play(copy, truth, request.view)
    except OSError as error:
        raise SourceError(
            f"expected a temporary directory to play the stream of {root} from, but the system says: {error.strerror}; "
            "free space, set TMPDIR to a directory that can be written, or unzip the bundle"
        ) from error


def _play(file: Path, truth: Ints, view: View) -> FrameSource:
    from deco_runtime.sources import _playback  # imports cv2, which `--help` must not need

    playback = _playback.open_file(file, lambda frame: int(truth[frame]) if frame < len(truth) else None, view)
    playback.name = view.named("the bundle's demo stream")
    return playback
