"""A camera at this machine, opened in the capture process: at every opening its name is looked up anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cv2

from deco_runtime.errors import SourceError
from deco_runtime.sources._capture import Capture
from deco_runtime.sources._opencv import MJPG, refuse_no_text

SIZES = ((640, 480), (1280, 720), (1920, 1080))
"""Widths and heights that a camera is asked for, in pixels: the first is what practically every one has."""


def open_camera(value: str, size: int) -> Capture:
    """Start a camera given by number or, for V4L2, by path. size: side of the network's input in pixels.

    Raises SourceError if it is absent, forbidden, busy or no camera.
    """
    if not sys.platform.startswith("linux"):
        if not value.isdecimal():
            raise SourceError(f"expected the number of a camera here, found {value!r}: try --camera 0")
        unopened = f"expected a camera with number {value}, found none OpenCV can open: plug it in"
        return _start(cv2.VideoCapture(int(value)), f"camera {value}", unopened, size)

    device = device_path(value)
    present = os.path.exists(device)  # Path.exists raises for a name that is too long
    complaint = refusal(
        device,
        present=present,
        accessible=os.access(device, os.R_OK | os.W_OK),
        is_device=present and device.is_char_device(),
        found=sorted(str(path) for path in Path("/dev").glob("video*")),
    )
    if complaint:
        raise SourceError(complaint)
    refuse_no_text(str(device))
    unopened = (
        f"expected a free camera at {device}, found that OpenCV cannot open it: another program may be using "
        f"it, which `fuser -v {device}` shows, or try another device listed by `v4l2-ctl --list-devices`"
    )
    # V4L2 has to be asked for: FFmpeg would come first and take the device for a file.
    return _start(cv2.VideoCapture(str(device), cv2.CAP_V4L2), f"camera {device}", unopened, size)


def device_path(value: str) -> Path:
    """The device that --camera names."""
    return Path(f"/dev/video{value}" if value.isdecimal() else value)


def wanted_size(size: int) -> tuple[int, int]:
    """Width and height to ask a camera for: the smallest of SIZES from which the network's input is only shrunk."""
    return next((both for both in SIZES if both[1] >= size), SIZES[-1])


def _start(capture: cv2.VideoCapture, name: str, unopened: str, size: int) -> Capture:
    if not capture.isOpened():
        raise SourceError(unopened)
    # Most USB cameras reach their frame rate at larger sizes only as JPEG; one that cannot keeps its own.
    capture.set(cv2.CAP_PROP_FOURCC, MJPG)
    width, height = wanted_size(size)
    capture.set(cv2.CAP_PROP_FRAME_WIDTH, width)
    capture.set(cv2.CAP_PROP_FRAME_HEIGHT, height)
    return Capture(capture, name)


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
