"""Cameras at this machine: which are refused and why, how one is asked for its format, and picamera2's stand-in."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deco_runtime.errors import RuntimeMissingError, SourceError
from deco_runtime.sources import SourceRequest, _camera, _live, camera
from deco_runtime.sources._live import Live
from deco_runtime.sources.view import Roi, View
from deco_runtime.types import Frame, Notice
from mjpeg_server import jpeg

LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Video4Linux devices")
REQUEST = SourceRequest(("cat", "dog"), 32, 1, 0, frozenset(), Path("bundle"))


def refused(value: str) -> str:
    with pytest.raises(SourceError) as error:
        camera.open_source(value, REQUEST)
    message = str(error.value)
    assert message.startswith("expected ")
    assert " found " in message
    assert "\n" not in message
    return message


class FakeDevice:
    """In place of a cv2.VideoCapture on a V4L2 device, of which this machine has none."""

    def __init__(self, delivered: np.ndarray) -> None:
        self.delivered = delivered
        self.settings: list[tuple[int, float]] = []

    def isOpened(self) -> bool:  # noqa: N802
        return True

    def getBackendName(self) -> str:  # noqa: N802
        return "V4L2"

    def get(self, key: int) -> float:
        width = {"width": 640.0, "height": 360.0, "fps": 29.97, "fourcc": float(int.from_bytes(b"MJPG", "little"))}
        names = {
            cv2.CAP_PROP_FRAME_WIDTH: "width",
            cv2.CAP_PROP_FRAME_HEIGHT: "height",
            cv2.CAP_PROP_FPS: "fps",
            cv2.CAP_PROP_FOURCC: "fourcc",
        }
        return width[names[key]]

    def set(self, key: int, value: float) -> bool:
        self.settings.append((key, value))
        return False

    def grab(self) -> bool:
        return True

    def retrieve(self) -> tuple[bool, np.ndarray]:
        return True, self.delivered


def test_a_camera_is_asked_for_jpeg_and_a_size_and_says_what_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    whole = jpeg(np.full((48, 64, 3), (200, 100, 50), np.uint8))
    device = FakeDevice(np.frombuffer(whole, np.uint8)[None])

    def open_it(path: str, backend: int) -> Any:
        opened.append((path, backend))
        return device

    monkeypatch.setattr(cv2, "VideoCapture", open_it)
    monkeypatch.setattr(_camera, "refusal", lambda *args, **kwargs: None)
    monkeypatch.setattr(sys, "platform", "linux")
    capture = _camera.open_camera("7", 500)
    assert opened == [("/dev/video7", cv2.CAP_V4L2)]
    assert device.settings == [
        (cv2.CAP_PROP_FOURCC, int.from_bytes(b"MJPG", "little")),
        (cv2.CAP_PROP_FRAME_WIDTH, 1280),
        (cv2.CAP_PROP_FRAME_HEIGHT, 720),
        (cv2.CAP_PROP_CONVERT_RGB, 0),
    ]
    assert capture.format == {"width": 640, "height": 360, "fps": 29.97, "fourcc": "MJPG"}
    pixels, _ = capture.read()
    assert pixels is not None
    np.testing.assert_allclose(pixels[5, 5], (200, 100, 50), atol=4)
    device.delivered = device.delivered[:, : len(whole) // 2]
    assert capture.read()[0] is None


def test_the_size_asked_for_is_the_smallest_that_is_only_shrunk() -> None:
    sizes = {side: _camera.wanted_size(side) for side in (16, 480, 481, 720, 1000, 5000)}
    small, middle, large = (640, 480), (1280, 720), (1920, 1080)
    assert sizes == {16: small, 480: small, 481: middle, 720: middle, 1000: large, 5000: large}


REFUSALS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"present": False, "accessible": False, "is_device": False, "found": []},
        ["/dev/video9", "no /dev/video* at all", "plug it in", "v4l2-ctl --list-devices"],
    ),
    (
        {"present": False, "accessible": False, "is_device": False, "found": ["/dev/video0", "/dev/video2"]},
        ["only /dev/video0, /dev/video2", "v4l2-ctl --list-devices"],
    ),
    (
        {"present": True, "accessible": False, "is_device": True, "found": ["/dev/video9"]},
        ["permission", "sudo usermod -aG video $USER", "log in again"],
    ),
    (
        {"present": True, "accessible": True, "is_device": False, "found": []},
        ["no device", "--video"],
    ),
]


@pytest.mark.parametrize(("facts", "words"), REFUSALS)
def test_refusals(facts: dict[str, Any], words: list[str]) -> None:
    message = _camera.refusal(Path("/dev/video9"), **facts)
    assert message is not None
    assert message.startswith("expected ")
    assert " found " in message
    for word in words:
        assert word in message


def test_a_camera_worth_trying_is_not_refused() -> None:
    facts = {"present": True, "accessible": True, "is_device": True}
    assert _camera.refusal(Path("/dev/video9"), **facts, found=["/dev/video9"]) is None


@LINUX_ONLY
@pytest.mark.parametrize("value", ["99", "/dev/video99"])
def test_an_absent_camera(value: str) -> None:
    assert "plug it in" in refused(value)


@LINUX_ONLY
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may use every device")
def test_a_forbidden_camera(tmp_path: Path) -> None:
    device = tmp_path / "video0"
    device.touch(mode=0o000)
    assert "usermod" in refused(str(device))


@LINUX_ONLY
def test_a_device_name_is_looked_up_at_every_opening(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As /dev/v4l/by-id/…, which the system points to another /dev/video* when the camera comes back as that."""
    name = tmp_path / "usb-Camera-index0"
    name.symlink_to("/dev/null")  # exists, may be used, and is not free for video: to us the same as a busy camera
    message = refused(str(name))
    assert "another program may be using it" in message
    assert f"fuser -v {name}" in message
    for target, words in ((tmp_path / "nothing", "plug it in"), (Path(__file__), "no device: use --video")):
        name.unlink()
        name.symlink_to(target)
        assert words in refused(str(name))
    assert capfd.readouterr() == ("", "")


def test_a_camera_that_is_renumbered_comes_back_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos in place of devices: each ends, as a camera that is unplugged, and the name then leads to the other."""
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 0.05)
    for number, brightness in ((0, 60), (1, 200)):
        writer = cv2.VideoWriter(str(tmp_path / f"video{number}.avi"), int.from_bytes(b"MJPG", "little"), 25, (64, 48))
        for _ in range(5):
            writer.write(np.full((48, 64, 3), (brightness, 20, 20), np.uint8))
        writer.release()
    name = tmp_path / "by-id.avi"
    name.symlink_to("video0.avi")
    source = Live("camera", "deco_runtime.sources._capture:open_url", {"url": str(name), "shown": "camera"})
    seen = []
    for item in source.frames():
        if isinstance(item, Frame):
            seen.append(round(float(item.pixels[..., 0].mean()), -1))
            if seen[-1] == 200:
                break
        elif item.action == "lost":
            name.unlink()
            name.symlink_to("video1.avi")
    source.close()
    assert seen[0] == 60


def test_cameras_elsewhere_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SourceError, match="number of a camera"):
        _camera.open_camera("/dev/video0", 32)
    with pytest.raises(SourceError, match="camera with number 99, found none"):
        _camera.open_camera("99", 32)


# --- picamera2, which needs libcamera and so a Raspberry Pi: a module with the part of its interface that is used, as
# its manual documents it. "RGB888" is blue first in memory there.

STAND_IN = """
import os, time
import numpy as np

class Picamera2:
    def __init__(self, camera_num=0, verbose_console=None, tuning=None):
        if os.environ.get("STAND_IN") == "absent":
            raise IndexError("list index out of range")
        self.config, self.started, self.taken = None, False, 0

    def create_video_configuration(self, main={}, lores=None, raw={}, buffer_count=6, controls={}, queue=True):
        assert set(main) <= {"size", "format"}
        return {"use_case": "video", "main": {"format": "XBGR8888", "size": (1280, 720), **main}}

    def configure(self, camera_config="preview"):
        self.config = camera_config

    def camera_configuration(self):
        return self.config

    def start(self, config=None, show_preview=False):
        assert self.config["main"]["format"] == "RGB888"
        self.started = True

    def capture_metadata(self, wait=None):
        assert self.started
        return {"FrameDuration": 33333, "SensorTimestamp": 1}

    def capture_array(self, name="main", wait=None):
        assert self.started and name == "main"
        self.taken += 1
        if os.environ.get("STAND_IN") == "hangs" and self.taken > 3:
            time.sleep(1e6)  # as libcamera does when the ribbon cable is pulled
        time.sleep(0.02)
        width, height = self.config["main"]["size"]
        return np.full((height, width, 3), (200, 100, self.taken % 250), np.uint8)

    def stop(self):
        self.started = False

    def close(self):
        assert not self.started
"""


@pytest.fixture
def picamera2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picamera2").mkdir()
    (tmp_path / "picamera2" / "__init__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 0.05)


@pytest.mark.usefixtures("picamera2")
def test_picamera2_delivers_blue_first() -> None:
    source = camera.open_source("picamera2", REQUEST)
    frames = [item for item, _ in zip(source.frames(), range(6), strict=False) if isinstance(item, Frame)]
    source.close()
    assert frames[0].pixels.shape == (480, 640, 3)
    assert frames[0].pixels[0, 0, :2].tolist() == [200, 100]
    assert len({int(frame.pixels[0, 0, 2]) for frame in frames}) == len(frames) > 2
    figures = source.figures()
    assert [figures[name] for name in ("width", "height", "fps", "fourcc")] == [640, 480, 30.0, "RGB888"]


@pytest.mark.usefixtures("picamera2")
def test_picamera2_is_looked_at() -> None:
    source = camera.open_source("picamera2", replace(REQUEST, view=View(Roi.parse("0,0,100,50"), 90, 3)))
    frames = [item for item, _ in zip(source.frames(), range(4), strict=False) if isinstance(item, Frame)]
    source.close()
    assert {frame.pixels.shape for frame in frames} == {(50, 100, 3)}
    figures = source.figures()
    assert [figures[name] for name in ("width", "height", "every")] == [100, 50, 3]


@pytest.mark.usefixtures("picamera2")
def test_picamera2_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hangs")
    source = camera.open_source("picamera2", REQUEST)
    assert isinstance(source, Live)
    source._stall_s = 0.5
    actions = []
    for item in source.frames():
        if isinstance(item, Notice) and item.action != "waiting":
            actions.append(item.action)
        if "reconnected" in actions:
            break
    source.close()
    assert actions == ["lost", "reconnected"]


@pytest.mark.usefixtures("picamera2")
def test_picamera2_without_a_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "absent")
    assert "rpicam-hello --list-cameras" in refused("picamera2")


def test_picamera2_is_not_installed() -> None:
    with pytest.raises(RuntimeMissingError, match="sudo apt install python3-picamera2"):
        camera.open_source("picamera2", REQUEST)
