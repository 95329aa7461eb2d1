"""`--camera`: a camera at this machine, through Video4Linux on Linux, or a Raspberry Pi's through picamera2."""

from __future__ import annotations

import sys
from importlib import util

import click

from deco_runtime.errors import RuntimeMissingError
from deco_runtime.sources import FrameSource, SourceRequest

OPTION = click.Option(
    ["--camera"],
    multiple=True,
    metavar="INDEX|DEVICE|URL|picamera2",
    help="Learn from a camera at this machine: 0 for the first one, its device such as /dev/video0, or a name below "
    "/dev/v4l/by-id, which stays the same when cameras are plugged in another order; picamera2 for a Raspberry Pi's "
    "own camera. `v4l2-ctl --list-devices` lists them. A URL is taken as by --video. Frames that arrive while the "
    "device is busy are dropped and counted; a camera that is lost is tried again until it is back. Given more than "
    "once, or beside --video URL, all of them teach one learner, each with segments of its own.",
)


def is_live(value: str) -> bool:
    """Whether it can be one of several sources."""
    return True


def open_source(value: str, request: SourceRequest) -> FrameSource:
    """Open a camera. Raises SourceError if it is absent, forbidden, busy or no camera."""
    from deco_runtime.sources._live import Live, open_url

    if "://" in value:  # as --video takes it
        return open_url(value, view=request.view)
    if value == "picamera2":
        if util.find_spec("picamera2") is None:
            raise RuntimeMissingError(
                "expected the package picamera2 for --camera picamera2, but found none; run sudo apt install "
                "python3-picamera2, and use the system's Python or a virtual environment with --system-site-packages"
            )
        job, arguments = "deco_runtime.sources._picamera2:open_camera", {"size": request.size}
        return Live("camera picamera2", job, arguments, view=request.view)
    from deco_runtime.sources import _camera  # imports cv2, which `--help` must not need

    name = f"camera {_camera.device_path(value) if sys.platform.startswith('linux') else value}"
    own = {"value": value, "size": request.size}
    return Live(name, "deco_runtime.sources._camera:open_camera", own, view=request.view)
