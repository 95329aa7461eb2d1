"""Frame sources with the real OpenCV: video files, an MJPEG camera on loopback, folders, absent cameras."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
import pytest
from deco_runtime import sources
from deco_runtime.errors import DataError, SourceError, UsageError
from deco_runtime.folder import fingerprint
from deco_runtime.sources import FrameSource, SourceRequest, _capture, camera, images, video
from deco_runtime.sources.images import stc_order
from deco_runtime.types import Frame, Pixels
from hypothesis import given, settings
from hypothesis import strategies as st
from mjpeg_server import mjpeg_server

LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Video4Linux devices")


def request(**changes: Any) -> SourceRequest:
    usual: dict[str, Any] = {
        "classes": ("cat", "dog", "eel"),
        "size": 32,
        "stc": 3,
        "seed": 0,
        "trained_on": frozenset(),
        "bundle": Path("bundle"),
    }
    return SourceRequest(**{**usual, **changes})


def numbered(i: int) -> Pixels:
    """A picture that tells its number, up to 255, through compression: its hex digits in green and red."""
    return np.full((48, 64, 3), (128, i // 16 * 16, i % 16 * 16), np.uint8)


def number_of(pixels: Pixels) -> int:
    blue, green, red = (round(float(channel)) for channel in pixels.mean((0, 1)))
    assert abs(blue - 128) < 8
    return round(green / 16) * 16 + round(red / 16)


def write_video(path: Path, pictures: list[Pixels]) -> Path:
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), int.from_bytes(b"MJPG", "little"), 25, (width, height))
    assert writer.isOpened()
    for pixels in pictures:
        writer.write(pixels)
    writer.release()
    return path


def one_sentence(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert message.startswith("expected ")
    assert " found " in message
    assert ": " in message
    assert "\n" not in message
    return message


def drain(source: FrameSource, pause_s: float = 0.0) -> tuple[list[Frame], str]:
    """Take every frame, pausing after each, until the source fails; returns the frames and the sentence."""
    frames = []

    def take() -> None:
        for frame in source.frames():
            frames.append(frame)
            time.sleep(pause_s)

    with pytest.raises(SourceError) as error:
        take()
    source.close()
    return frames, one_sentence(error)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)  # FFmpeg would ask it for the loopback server


# --- discovery


def test_every_source_is_found_by_its_option() -> None:
    found = sources.discover()
    assert list(found) == sorted(found)
    assert {"camera": camera, "images": images, "video": video}.items() <= found.items()
    for name, module in found.items():
        assert f"--{name}" in module.OPTION.opts
        assert len(module.OPTION.help) > 40
        assert callable(module.open_source)


def test_a_new_file_is_a_new_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "another.py").write_text(
        "import click\nOPTION = click.Option(['--a-test'])\ndef open_source(value, request): ...\n"
    )
    (tmp_path / "_private.py").write_text("raise AssertionError('not a source')\n")
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    try:
        assert next(iter(sources.discover())) == "a_test"
    finally:
        sys.modules.pop("deco_runtime.sources.another", None)


def test_help_needs_no_opencv() -> None:
    code = (
        "import sys; sys.modules['cv2'] = None\n"
        "import click; from deco_runtime import sources\n"
        "options = [module.OPTION for module in sources.discover().values()]\n"
        "click.Command('deco-run', params=options).main(['--help'])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for option in ("--camera INDEX|DEVICE", "--images DIR", "--video FILE|URL"):
        assert option in shown.stdout


# --- video files


def test_video_delivers_every_frame_in_order(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", [numbered(i) for i in range(40)])
    source = video.open_source(str(path), request())
    assert source.live is False
    assert source.length == 40
    assert str(path) in source.name
    frames = []
    for frame in source.frames():
        frames.append(frame)
        time.sleep(0.002)  # a slow consumer loses nothing
    assert [number_of(frame.pixels) for frame in frames] == list(range(40))
    assert all(frame.label is None for frame in frames)
    times = [frame.time for frame in frames]
    assert times == sorted(times)
    assert abs(times[-1] - time.monotonic()) < 5
    assert source.dropped == 0
    assert source.note() is None
    source.close()
    source.close()


def test_a_blue_video_is_blue_first(tmp_path: Path) -> None:
    blue = np.full((48, 64, 3), (250, 10, 10), np.uint8)
    source = video.open_source(str(write_video(tmp_path / "v.avi", [blue] * 2)), request())
    frame = next(source.frames())
    assert frame.pixels.shape == (48, 64, 3)
    assert frame.pixels.dtype == np.uint8
    np.testing.assert_allclose(frame.pixels.mean((0, 1)), (250, 10, 10), atol=8)
    source.close()


def test_a_video_cut_short_says_so_and_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 48, 64, 3), dtype=np.uint8)
    whole = write_video(tmp_path / "whole.avi", list(noise)).read_bytes()
    cut = tmp_path / "cut.avi"
    cut.write_bytes(whole[: len(whole) // 2])
    source = video.open_source(str(cut), request())
    assert source.note() is None  # not before it is known
    count = sum(1 for _ in source.frames())
    assert 5 < count < 35
    assert source.note() == f"expected 40 frames, the video ended after {count}: it may be cut short"
    source.close()
    assert capfd.readouterr() == ("", "")


def test_closing_ends_a_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", [numbered(i) for i in range(10)])
    source = video.open_source(str(path), request())
    frames = source.frames()
    next(frames)
    source.close()
    assert list(frames) == []
    assert source.note() is None  # it was not the video that ended


NO_VIDEOS = {
    "missing.avi": "found nothing at",
    "folder": "is no file: use --camera",
    "noise.avi": "found something else",
    "empty.avi": "found something else",
    "text.txt": "found something else",
    "header.avi": "found something else",
}


@pytest.mark.parametrize("name", NO_VIDEOS)
def test_what_is_no_video(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "noise.avi":
        path.write_bytes(np.random.default_rng(0).bytes(5000))
    elif name == "empty.avi":
        path.touch()
    elif name == "text.txt":  # FFmpeg would show it as on a terminal
        path.write_text("cat 0\ndog 1\n" * 50)
    elif name == "header.avi":
        whole = write_video(tmp_path / "whole.avi", [numbered(0)] * 5).read_bytes()
        path.write_bytes(whole[: whole.index(b"movi") + 8])
    with pytest.raises(SourceError) as error:
        list(video.open_source(str(path), request()).frames())
    message = one_sentence(error)
    assert str(path) in message
    assert NO_VIDEOS[name] in message
    assert capfd.readouterr() == ("", "")


def test_a_video_without_a_decodable_frame() -> None:
    """As with a file whose header is fine: it opens, and then nothing comes."""
    source = _capture.Playback(Path("v.avi"), fake([]))
    with pytest.raises(SourceError, match=r"expected a video .* found something else in v\.avi"):
        list(source.frames())


# --- live streams


def test_stream_delivers_frames_in_order() -> None:
    with mjpeg_server(numbered) as url:
        source = video.open_source(url, request())
        assert source.live is True
        assert source.length is None
        frames = [frame for frame, _ in zip(source.frames(), range(20), strict=False)]
        source.close()
    numbers = [number_of(frame.pixels) for frame in frames]
    assert numbers == sorted(set(numbers))
    times = [frame.time for frame in frames]
    assert times == sorted(times)
    assert 0 <= time.monotonic() - times[-1] < 5
    assert frames[0].pixels.shape == (48, 64, 3)
    assert frames[0].label is None


def test_a_slow_consumer_sees_the_newest_frame_and_drops_are_counted() -> None:
    sent = 0

    def picture(i: int) -> Pixels:
        nonlocal sent
        sent = i
        return numbered(i)

    with mjpeg_server(picture, fps=60) as url:
        source = _capture.open_url(url, open_s=5, stall_s=2)
        frames = source.frames()
        for _ in range(4):
            time.sleep(0.3)  # 18 frames
            newest = sent
            assert number_of(next(frames).pixels) >= newest - 5  # in transit, in FFmpeg's hands
        assert source.dropped > 30
        source.close()


def test_every_frame_is_taken_or_counted_as_dropped() -> None:
    with mjpeg_server(numbered, "drop", after=60, fps=60) as url:
        source = _capture.open_url(url, open_s=5, stall_s=2)
        frames, _ = drain(source, pause_s=0.3)
    assert 2 < len(frames) < 10
    assert number_of(frames[-1].pixels) >= 58
    # Less what FFmpeg keeps to itself while it looks for the format and when the connection drops.
    assert 57 <= len(frames) + source.dropped <= 60


@pytest.mark.parametrize("consumer_s", [0.0, 1.0], ids=["waiting", "slow"])
def test_a_stall_is_an_error_in_bounded_time(consumer_s: float) -> None:
    with mjpeg_server(numbered, "stall", after=15) as url:
        source = _capture.open_url(url, open_s=5, stall_s=0.5)
        frames = source.frames()
        for _ in range(3):
            next(frames)
        time.sleep(consumer_s)
        started = time.monotonic()
        with pytest.raises(SourceError) as error:
            list(frames)
        assert time.monotonic() - started < 2
        message = one_sentence(error)
        assert "every 0.5 s" in message
        assert "stalled" in message
        source.close()
        assert no_capture_thread()  # FFmpeg's own time-out ended the blocked read


def test_a_dropped_connection_is_an_error_after_the_last_frame() -> None:
    with mjpeg_server(numbered, "drop", after=15) as url:
        source = _capture.open_url(url, open_s=5, stall_s=5)
        started = time.monotonic()
        frames, message = drain(source)
        assert time.monotonic() - started < 3
    assert number_of(frames[-1].pixels) >= 13
    assert "ended or the connection dropped" in message


@pytest.mark.parametrize("mode", ["silent", "stall"])
def test_an_open_that_hangs_is_an_error_in_bounded_time(mode: Any) -> None:
    with mjpeg_server(numbered, mode, after=0) as url:
        started = time.monotonic()
        with pytest.raises(SourceError) as error:
            _capture.open_url(url, open_s=0.5)
        assert 0.4 < time.monotonic() - started < 2.5
        assert "open within 0.5 s" in one_sentence(error)
        assert no_capture_thread()


def test_garbage_is_no_stream(capfd: pytest.CaptureFixture[str]) -> None:
    with mjpeg_server(numbered, "garbage") as url:
        with pytest.raises(SourceError) as error:
            _capture.open_url(url, open_s=5)
        assert "found none that OpenCV can open" in one_sentence(error)
    assert capfd.readouterr() == ("", "")


def test_nobody_listens_and_the_password_is_not_told() -> None:
    with mjpeg_server(numbered) as url:
        pass  # the port is free again
    with pytest.raises(SourceError) as error:
        video.open_source(url.replace("://", "://user:sec@ret@"), request())
    assert url in one_sentence(error)
    assert "ret@" not in str(error.value)


def test_close_from_another_thread_ends_a_waiting_consumer() -> None:
    with mjpeg_server(numbered, "stall", after=15) as url:
        source = _capture.open_url(url, open_s=5, stall_s=30)
        ended = threading.Event()

        def consume() -> None:
            for _ in source.frames():
                pass
            ended.set()

        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        time.sleep(0.6)
        assert not ended.is_set()
        closer = threading.Thread(target=source.close)
        closer.start()
        assert ended.wait(0.5)  # without an exception, and not only when the blocked read ends
        closer.join(3)
        assert not closer.is_alive()
        source.close()


def test_close_releases_the_device() -> None:
    with mjpeg_server(numbered) as url:
        source = _capture.open_url(url)
        next(source.frames())
        source.close()
        assert no_capture_thread()
        assert list(source.frames()) == []


def no_capture_thread() -> bool:
    return all(thread.name != "capture" for thread in threading.enumerate())


# --- what only an odd device does


class FakeCapture:
    """In place of cv2.VideoCapture. shown: pictures, None for a damaged one, or an exception to raise."""

    def __init__(self, shown: list[Any]) -> None:
        self.shown = iter(shown)
        self.released = False
        self.settings: list[tuple[int, float]] = []

    def isOpened(self) -> bool:  # noqa: N802
        return True

    def grab(self) -> bool:
        time.sleep(0.02)  # the consumer is faster
        try:
            self.current = next(self.shown)
        except StopIteration:
            return False
        if isinstance(self.current, Exception):
            raise self.current
        return True

    def retrieve(self) -> tuple[bool, Any]:
        return self.current is not None, self.current

    def get(self, key: int) -> float:
        return -1.0

    def set(self, key: int, value: float) -> bool:
        self.settings.append((key, value))
        return False

    def release(self) -> None:
        self.released = True


def fake(shown: list[Any]) -> Any:
    return FakeCapture(shown)


def test_odd_pictures_become_bgr_and_damaged_ones_are_passed_over() -> None:
    grey, thin = np.full((8, 6), 7, np.uint8), np.full((8, 6, 1), 8, np.uint8)
    alpha, larger = np.full((8, 6, 4), (1, 2, 3, 255), np.uint8), np.full((16, 12, 3), 9, np.uint8)
    capture = fake([grey, None, thin, alpha, larger])
    source = _capture.Live("fake", lambda: capture, "unopened")
    frames, message = drain(source)
    seen = [frame.pixels for frame in frames]
    assert "ended or the connection dropped" in message
    assert [pixels.shape for pixels in seen] == [(8, 6, 3)] * 3 + [(16, 12, 3)]
    assert [pixels[0, 0].tolist() for pixels in seen] == [[7, 7, 7], [8, 8, 8], [1, 2, 3], [9, 9, 9]]
    assert capture.released


def test_a_failure_inside_opencv_reaches_the_consumer() -> None:
    capture = fake([numbered(0), cv2.error("broken driver")])
    source = _capture.Live("fake", lambda: capture, "unopened", stall_s=30)
    with pytest.raises(SourceError, match="broken driver"):
        list(source.frames())
    assert capture.released
    source.close()


def test_a_read_that_never_returns_is_abandoned() -> None:
    release = threading.Event()

    class Stuck(FakeCapture):
        def grab(self) -> bool:
            release.wait(20)
            return False

    stuck: Any = Stuck([])
    source = _capture.Live("fake", lambda: stuck, "unopened", stall_s=0.2)
    started = time.monotonic()
    with pytest.raises(SourceError, match="stalled"):
        next(source.frames())
    source.close()
    assert time.monotonic() - started < 3
    assert list(source.frames()) == []
    release.set()


def test_an_open_that_never_returns_is_abandoned() -> None:
    release = threading.Event()
    started = time.monotonic()

    def never() -> Any:
        release.wait(20)
        return capture

    capture = fake([numbered(0)] * 100)
    with pytest.raises(SourceError, match=r"open within 0\.2 s"):
        _capture.Live("fake", never, "unopened", open_s=0.2)
    assert time.monotonic() - started < 3
    release.set()
    for _ in range(100):  # a device that opens too late is let go of
        if capture.released:
            break
        time.sleep(0.02)
    assert capture.released


# --- cameras


def test_a_camera_is_opened_by_v4l2_and_asked_for_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    capture = fake([numbered(5)])

    def open_it(device: str, backend: int) -> Any:
        opened.append((device, backend))
        return capture

    monkeypatch.setattr(cv2, "VideoCapture", open_it)
    monkeypatch.setattr(camera, "refusal", lambda *args, **kwargs: None)
    monkeypatch.setattr(sys, "platform", "linux")
    source = camera.open_source("7", request())
    assert source.live is True
    assert source.name == "camera /dev/video7"
    assert number_of(next(source.frames()).pixels) == 5
    source.close()
    assert opened == [("/dev/video7", cv2.CAP_V4L2)]
    assert capture.settings == [(cv2.CAP_PROP_FOURCC, int.from_bytes(b"MJPG", "little"))]


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
    message = camera.refusal(Path("/dev/video9"), **facts)
    assert message is not None
    assert message.startswith("expected ")
    assert " found " in message
    for word in words:
        assert word in message


def test_a_camera_worth_trying_is_not_refused() -> None:
    facts = {"present": True, "accessible": True, "is_device": True}
    assert camera.refusal(Path("/dev/video9"), **facts, found=["/dev/video9"]) is None


@LINUX_ONLY
@pytest.mark.parametrize("value", ["99", "/dev/video99", "-1"])
def test_an_absent_camera(value: str) -> None:
    with pytest.raises(SourceError) as error:
        camera.open_source(value, request())
    assert "plug it in" in one_sentence(error)


@LINUX_ONLY
def test_an_absent_camera_names_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [Path("/dev/video2"), Path("/dev/video0")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: there if self == Path("/dev") else [])
    with pytest.raises(SourceError, match="found only /dev/video0, /dev/video2: plug it in"):
        camera.open_source("99", request())


@LINUX_ONLY
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may use every device")
def test_a_forbidden_camera(tmp_path: Path) -> None:
    device = tmp_path / "video0"
    device.touch(mode=0o000)
    with pytest.raises(SourceError) as error:
        camera.open_source(str(device), request())
    assert "usermod" in one_sentence(error)


@LINUX_ONLY
def test_a_file_is_no_camera(tmp_path: Path) -> None:
    device = tmp_path / "video0"
    device.touch()
    with pytest.raises(SourceError) as error:
        camera.open_source(str(device), request())
    assert "no device" in one_sentence(error)


@LINUX_ONLY
def test_a_device_that_opencv_cannot_open(capfd: pytest.CaptureFixture[str]) -> None:
    """/dev/null exists, may be used, and is not free for video: to us the same as a busy camera."""
    with pytest.raises(SourceError) as error:
        camera.open_source("/dev/null", request())
    message = one_sentence(error)
    assert "another program may be using it" in message
    assert "fuser -v /dev/null" in message
    assert capfd.readouterr() == ("", "")


def test_cameras_elsewhere_have_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SourceError, match="number of a camera"):
        camera.open_source("/dev/video0", request())
    with pytest.raises(SourceError, match="camera with number 99, found none"):
        camera.open_source("99", request())


# --- folders


def cut(count: int, stc: int) -> list[int]:
    """The run lengths of a class of `count` images."""
    return [min(stc, count - start) for start in range(0, count, stc)]


@given(labels=st.lists(st.integers(0, 5), max_size=80), stc=st.integers(1, 12), seed=st.integers(0, 9999))
@settings(max_examples=150, deadline=None)
def test_stc_order(labels: list[int], stc: int, seed: int) -> None:
    order = stc_order(labels, stc, seed)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(len(labels)))
    np.testing.assert_array_equal(order, stc_order(labels, stc, seed))

    counts = Counter(labels)
    runs = {label: -(-count // stc) for label, count in counts.items()}
    total, most = sum(runs.values()), max(runs.values(), default=0)
    groups = [(label, len(list(group))) for label, group in groupby(labels[i] for i in order)]
    # Neighbours are equal only where they must be: a class with more runs than all others and one.
    surplus = max(0, most - (total - most) - 1)
    assert len(groups) == total - surplus
    if surplus:  # those end the stream, joined
        assert runs[groups[-1][0]] == most
        groups[-1:] = [(groups[-1][0], length) for length in cut(groups[-1][1], stc)]
    for label, count in counts.items():
        assert [length for other, length in groups if other == label] == cut(count, stc)


def test_stc_order_shuffles_images_and_classes() -> None:
    labels = [0] * 50 + [1] * 50 + [2] * 50
    first, second = stc_order(labels, 5, seed=1), stc_order(labels, 5, seed=2)
    assert first.tolist() != second.tolist()
    of_class_0 = [i for i in first if i < 50]
    assert of_class_0 != sorted(of_class_0)
    classes = [labels[i] for i in first[::5]]
    assert len(set(pairwise(classes))) == 6  # no fixed rotation: each class follows each other one


@pytest.mark.parametrize("stc", [0, -3])
def test_stc_below_one(stc: int) -> None:
    with pytest.raises(UsageError, match=f"at least 1 .* found {stc}"):
        stc_order([0, 1], stc, seed=0)


COLOURS = {"cat": (250, 0, 0), "dog": (0, 250, 0), "eel": (0, 0, 250)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """7 images of each class, in the class's colour, no two files alike."""
    for name, colour in COLOURS.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(7):
            pixels = np.full((10, 10, 3), colour, np.uint8)
            pixels[0, 0] = i
            cv2.imwrite(str(tmp_path / "data" / name / f"{i}.png"), pixels)
    return tmp_path / "data"


def test_images_come_with_their_labels_in_runs(data: Path) -> None:
    source = images.open_source(data, request(stc=3))
    assert source.live is False
    assert source.length == 21
    assert str(data) in source.name
    frames = list(source.frames())
    for frame in frames:
        assert frame.label is not None
        assert frame.pixels[5, 5].tolist() == list(COLOURS[list(COLOURS)[frame.label]])
    lengths = [len(list(group)) for _, group in groupby(frame.label for frame in frames)]
    assert sorted(lengths) == [1] * 3 + [3] * 6
    assert len({(frame.label, int(frame.pixels[0, 0, 0])) for frame in frames}) == 21
    assert source.dropped == 0
    assert source.note() is None
    source.close()


def test_images_follow_the_bundles_classes(data: Path) -> None:
    source = images.open_source(data, request(classes=("eel", "bee", "dog", "cat")))
    assert Counter(frame.label for frame in source.frames()) == {0: 7, 2: 7, 3: 7}


def test_images_of_a_class_the_bundle_does_not_know(data: Path) -> None:
    with pytest.raises(DataError, match="found eel"):
        images.open_source(data, request(classes=("cat", "dog")))


def test_images_take_train_if_there_is_one(data: Path) -> None:
    (data.parent / "set").mkdir()
    train = data.rename(data.parent / "set" / "train")
    touched = data.parent / "set" / "test" / "cat"
    touched.mkdir(parents=True)
    (touched / "extra.png").write_bytes((train / "cat" / "0.png").read_bytes())
    assert images.open_source(data.parent / "set", request()).length == 21


def test_images_the_model_was_trained_on_are_left_out(data: Path) -> None:
    seen = [data / "cat" / "0.png", data / "dog" / "3.png"]
    source = images.open_source(data, request(trained_on=frozenset(map(fingerprint, seen))))
    assert source.length == 19
    shown = {(frame.label, int(frame.pixels[0, 0, 0])) for frame in source.frames()}
    assert len(shown) == 19
    assert shown.isdisjoint({(0, 0), (1, 3)})
    assert source.note() == "left out the images the model was trained on (2)"


def test_a_folder_of_training_images_only(data: Path) -> None:
    seen = frozenset(fingerprint(file) for file in data.glob("*/*.png"))
    with pytest.raises(DataError, match="only training images"):
        images.open_source(data, request(trained_on=seen))


def test_unreadable_images_are_skipped_and_named(data: Path) -> None:
    (data / "dog" / "4.png").write_bytes(b"")
    source = images.open_source(data, request(trained_on=frozenset([fingerprint(data / "cat" / "1.png")])))
    assert len(list(source.frames())) == 19
    note = source.note()
    assert note is not None
    assert "left out" in note
    assert f"skipped 1 unreadable image: {data / 'dog' / '4.png'}" in note
    assert note.count(". ") == 0


def test_too_many_unreadable_images(data: Path) -> None:
    for file in list(data.glob("*/*.png"))[:11]:
        file.write_bytes(b"broken")
    with pytest.raises(DataError, match="at most 10 unreadable"):
        list(images.open_source(data, request()).frames())


def test_nothing_but_unreadable_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="found none: replace them"):
        list(images.open_source(tmp_path, request()).frames())


def test_closing_ends_the_images(data: Path) -> None:
    source = images.open_source(data, request())
    frames = source.frames()
    next(frames)
    source.close()
    source.close()
    assert list(frames) == []


def test_options_are_given_as_their_sources_expect() -> None:
    given: dict[str, Any] = {}
    options = [module.OPTION for module in sources.discover().values()]
    command = click.Command("deco-run", params=options, callback=lambda **values: given.update(values))
    command.main(["--camera", "0", "--images", "some/folder"], standalone_mode=False)
    assert given["camera"] == "0"
    assert given["images"] == Path("some/folder")
    assert given["video"] is None
