"""A Raspberry Pi's camera through picamera2 (libcamera), opened in the capture process.

Source: the Picamera2 manual, https://datasheets.raspberrypi.com/camera/picamera2-manual.pdf.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

from deco_runtime.errors import SourceError, first_line
from deco_runtime.sources._camera import wanted_size
from deco_runtime.sources._opencv import to_bgr
from deco_runtime.types import Pixels


def open_camera(size: int) -> PiCamera:
    """Start the first camera. size: side of the network's input in pixels. Raises SourceError."""
    os.environ.setdefault("LIBCAMERA_LOG_LEVELS", "*:ERROR")
    try:
        return PiCamera(import_module("picamera2").Picamera2(), size)
    except Exception as error:  # IndexError without a camera, RuntimeError for a busy one, whatever libcamera raises
        raise SourceError(
            "expected a Raspberry Pi camera that picamera2 can start, found that it fails with "
            f"{type(error).__name__}: {first_line(error)}; check the ribbon cable with `rpicam-hello --list-cameras`, "
            "and that no other program uses it"
        ) from error


class PiCamera:
    """A started Picamera2, picture by picture.

    format: width, height, fps and fourcc, as picamera2 reads them back.
    """

    def __init__(self, camera: Any, size: int) -> None:
        self._camera = camera
        # "RGB888" of libcamera is B, G, R in memory, which is OpenCV's order.
        camera.configure(camera.create_video_configuration(main={"size": wanted_size(size), "format": "RGB888"}))
        camera.start()
        main, duration_us = camera.camera_configuration()["main"], camera.capture_metadata().get("FrameDuration")
        self.format: dict[str, Any] = {
            "width": main["size"][0],
            "height": main["size"][1],
            "fps": round(1e6 / duration_us, 2) if duration_us else None,
            "fourcc": main["format"],
        }

    def read(self) -> tuple[Pixels | None, float]:
        """The next picture and when it arrived; waits for it without end."""
        pixels = self._camera.capture_array("main")
        return to_bgr(pixels), time.monotonic()

    def skip(self) -> None:
        """Pass over the next picture, without copying it."""
        self._camera.capture_metadata()

    def close(self) -> None:
        self._camera.stop()
        self._camera.close()
