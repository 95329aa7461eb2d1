"""`--video`: a video file, every frame of it, or a live stream from a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from deco_runtime.errors import SourceError
from deco_runtime.sources import FrameSource, SourceRequest

VARIABLE = "DECO_RUN_VIDEO"
"""Of the environment, in place of the option: no other user sees it there, as in the list of processes."""

_BETWEEN = re.compile(r"\s+(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
"""Two addresses in the variable. The name of a file may have blanks in it."""


class _Address(click.types.StringParamType):
    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return _BETWEEN.split(rv.strip())


OPTION = click.Option(
    ["--video"],
    type=_Address(),
    multiple=True,
    envvar=VARIABLE,
    metavar="FILE|URL",
    help="Learn from a video file, or from a network camera given as a URL such as rtsp://… or http://…. "
    "Of a file every frame is used, however long that takes; a URL is live: frames that arrive while the "
    "device is busy are dropped and counted, and a stream that is lost is tried again until it is back. "
    "Several URLs may be given, see --camera. "
    f"The environment variable {VARIABLE} keeps a URL with a password out of the list of processes; several stand "
    "in it with blanks between them.",
)


def is_live(value: str) -> bool:
    """Whether it can be one of several sources."""
    return "://" in value


def open_source(value: str, request: SourceRequest) -> FrameSource:
    """Open a file, or a URL if the value contains "://". Raises SourceError if it is missing or no video, DataError for
    labels that cannot be used."""
    from deco_runtime.sources import _labels, _live, _playback  # imports cv2, which `--help` must not need

    if "://" in value:
        return _live.open_url(value, view=request.view)
    path = Path(value)
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise SourceError(
            f"expected a video file, found nothing at {path}: check the path; an address begins with rtsp:// or http://"
        )
    if not path.is_file():
        raise SourceError(
            f"expected a video file, found that {path} is no file: use --camera for a camera, --images for a folder"
        )
    if request.labels is None:
        return _playback.open_file(path, view=request.view)
    return _playback.open_file(path, _labels.read_labels(request.labels, request.classes), request.view)
