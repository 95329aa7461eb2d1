"""`--camera`: a camera at this machine, through Video4Linux on Linux."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from deco_runtime.errors import SourceError
from deco_runtime.sources import FrameSource, SourceRequest

OPTION = click.Option(
    ["--camera"],
    metavar="INDEX|DEVICE",
    help="Learn from a camera at this machine: 0 for the first one, or its device such as /dev/video0. "
    "`v4l2-ctl --list-devices` lists them. Frames that arrive while the device is busy are dropped and "
    "counted.",
)


def open_source(value: str, request: SourceRequest) -> FrameSource:
    """Open a camera. Raises SourceError if it is absent, forbidden, busy or no camera."""
    from deco_runtime.sources import _capture  # imports cv2, which `--help` must not need

    if not sys.platform.startswith("linux"):
        if not value.isdecimal():
            raise SourceError(f"expected the number of a camera here, found {value!r}: try --camera 0")
        unopened = f"expected a camera with number {value}, found none OpenCV can open: plug it in"
        return _capture.open_camera(f"camera {value}", int(value), unopened)

    device = Path(f"/dev/video{value}" if value.isdecimal() else value)
    complaint = refusal(
        device,
        present=device.exists(),
        accessible=os.access(device, os.R_OK | os.W_OK),
        is_device=device.is_char_device(),
        found=sorted(str(path) for path in Path("/dev").glob("video*")),
    )
    if complaint:
        raise SourceError(complaint)
    unopened = (
        f"expected a free camera at {device}, found that OpenCV cannot open it: another program may be using "
        f"it, which `fuser -v {device}` shows, or try another device listed by `v4l2-ctl --list-devices`"
    )
    return _capture.open_camera(f"camera {device}", str(device), unopened)


def refusal(device: Path, *, present: bool, accessible: bool, is_device: bool, found: list[str]) -> str | None:
    """Why a path cannot be used as a camera, as a sentence for the user; None if it is worth trying.

    present, accessible, is_device: whether it exists, may be read and written, and is a character device.
    found: the video devices there are.
    """
    if not present:
        others = f"only {', '.join(found)}" if found else "no /dev/video* at all"
        return (
            f"expected a camera at {device}, found {others}: "
            "plug it in, and check with `v4l2-ctl --list-devices` that the system sees it"
        )
    if not accessible:
        return (
            f"expected permission to use the camera {device}, found that this user has none: "
            "run `sudo usermod -aG video $USER` and log in again"
        )
    if not is_device:
        return f"expected a camera, found that {device} is no device: use --video for a file"
    return None
