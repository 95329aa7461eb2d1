"""What of pictures is looked at: every kind of source, and the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deco_runtime.doctor import camera as doctor
from deco_runtime.errors import SourceError
from deco_runtime.sources import FrameSource, SourceRequest, _child, _live, images, video
from deco_runtime.sources.view import Roi, View
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Frame, Notice, Pixels
from mjpeg_server import mjpeg_server, number_of, numbered
from processes import events
from sentences import one_sentence

REQUEST = SourceRequest(("cat", "dog"), 32, 1, 0, frozenset(), Path("bundle"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)  # FFmpeg would ask it for the loopback server
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 0.05)


# --- live sources

QUARTERS = {(0, 0): (200, 30, 30), (1, 0): (30, 200, 30), (0, 1): (30, 30, 200), (1, 1): (200, 200, 30)}
"""By column and row: blue, green; red, cyan."""


def quarters(width: int = 64, height: int = 48) -> Pixels:
    pixels = np.empty((height, width, 3), np.uint8)
    for (column, row), colour in QUARTERS.items():
        part = slice(row * height // 2, (row + 1) * height // 2), slice(column * width // 2, (column + 1) * width // 2)
        pixels[part] = colour
    return pixels


def blinking(i: int) -> Pixels:
    """No two in a row are the same."""
    return np.clip(quarters().astype(int) + i % 2 * 8, 0, 255).astype(np.uint8)


def is_of(pixels: Pixels, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(pixels.mean((0, 1)) - colour).max() < 24)


def look(source: FrameSource, count: int) -> tuple[list[Frame], list[Notice]]:
    """So many frames, and what else was said."""
    frames: list[Frame] = []
    said = []
    for item in source.frames():
        if isinstance(item, Frame):
            frames.append(item)
        elif item.action != "waiting":
            said.append(item)
        if len(frames) == count or (said and said[-1].action == "lost"):
            break
    source.close()
    return frames, said


@pytest.mark.parametrize("roi", ["32,0,32,24", "50%,0,50%,50%"])
def test_a_stream_is_turned_and_cut_in_its_capture_process(roi: str) -> None:
    """Turned by 90 degrees clockwise, 48×64, its upper right quarter is what was the upper left one."""
    with mjpeg_server(blinking) as url:
        plain = _live.open_url(url, view=View(Roi.parse(roi)))
        turned = _live.open_url(url, view=View(Roi.parse("24,0,24,32"), 90))
        for source, colour, (height, width) in ((plain, (1, 0), (24, 32)), (turned, (0, 0), (32, 24))):
            figures = source.figures()
            assert (figures["width"], figures["height"]) == (width, height)
            frames, said = look(source, 5)
            assert all(frame.pixels.shape == (height, width, 3) for frame in frames)
            # A JPEG of small pictures bleeds at the edges of colours.
            assert all(is_of(frame.pixels[4:-4, 4:-4], QUARTERS[colour]) for frame in frames)
            assert said == []
    assert plain.figures()["roi"] == str(Roi.parse(roi))
    assert turned.figures()["rotate"] == 90
    assert "every" not in turned.figures()


def test_every_third_frame_and_nothing_dropped() -> None:
    with mjpeg_server(numbered, fps=60) as url:
        frames, said = look(_live.open_url(url, view=(View(every=3))), 15)
    numbers = [number_of(frame.pixels) for frame in frames]
    assert {b - a for a, b in pairwise(numbers)} <= {3, 6, 9}  # more on a busy machine
    assert len({number % 3 for number in numbers}) == 1
    assert said == []


def test_those_passed_over_are_not_dropped() -> None:
    """Counted in the capture process itself, whatever the machine is busy with."""

    class Camera:
        def __init__(self) -> None:
            self.format: dict[str, Any] = {}
            self.number = 0

        def read(self) -> tuple[Pixels | None, float]:
            self.skip()
            if self.number > 12:
                outlet.stopped = True
            return numbered(self.number), 0.0

        def skip(self) -> None:
            self.number += 1

    sent: list[int] = []

    class Outlet(_child.Outlet):
        def offer(self, picture: _child.Picture) -> None:
            assert picture.seen is not None
            self.want()  # who takes every one
            super().offer(picture)

        def _send(self, content: dict[str, Any], payload: memoryview | bytes = b"") -> None:
            if "frame" in content:
                sent.append(number_of(np.frombuffer(payload, np.uint8).reshape(48, 64, 3)))
            assert content.get("dropped", 0) == 0

    outlet = Outlet(-1)
    for picture in _child.pictures(Camera(), View(every=4), outlet):
        outlet.offer(picture)
    assert sent == [1, 5, 9, 13]


def test_a_camera_of_which_few_frames_are_taken_has_not_stalled() -> None:
    with mjpeg_server(numbered, fps=30) as url:
        frames, said = look(_live.open_url(url, stall_s=0.5, view=View(every=45)), 3)
    assert len(frames) == 3
    assert said == []


def test_a_roi_outside_of_the_stream_is_refused_before_the_run() -> None:
    with mjpeg_server(blinking) as url, pytest.raises(SourceError) as error:
        _live.open_url(url, view=View(Roi.parse("0,0,100,10")))
    assert "at least 100×10 pixels, found one of 64×48" in one_sentence(str(error.value))


def resizing(i: int) -> Pixels:
    return numbered(i) if i < 20 else cv2.resize(numbered(i), (32, 24))


def test_shares_follow_a_camera_that_changes_its_size() -> None:
    with mjpeg_server(resizing) as url:
        source = _live.open_url(url, view=View(Roi.parse("0,0,50%,50%")))
        sizes, said = set(), []
        for item in source.frames():
            if isinstance(item, Frame):
                sizes.add(item.pixels.shape[:2])
            elif item.action != "waiting":
                said.append(item)
            if len(sizes) == 2:
                break
        source.close()
    assert sizes == {(24, 32), (12, 16)}
    assert [(notice.action, notice.figures) for notice in said] == [("resized", {"width": 32, "height": 24})]


def test_pixels_that_are_still_there_stay_and_the_new_size_is_said() -> None:
    with mjpeg_server(resizing) as url:
        source = _live.open_url(url, view=View(Roi.parse("0,0,20,20")))
        said = []
        for item in source.frames():
            if isinstance(item, Frame):
                assert item.pixels.shape == (20, 20, 3)
            elif item.action != "waiting":
                said.append((item.action, item.figures["width"]))
                break
        source.close()
    assert said == [("resized", 32)]


def test_pixels_that_are_no_longer_there_are_a_camera_that_is_lost() -> None:
    with mjpeg_server(resizing) as url:
        frames, said = look(_live.open_url(url, view=View(Roi.parse("0,0,60,40"))), 1000)
    assert 10 < len(frames) <= 20
    (lost,) = said
    assert lost.action == "lost"
    assert "at least 60×40 pixels, found one of 32×24" in one_sentence(lost.figures["reason"])


# --- replayed sources


def write_video(path: Path, pictures: list[Pixels]) -> Path:
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), int.from_bytes(b"MJPG", "little"), 25, (width, height))
    for pixels in pictures:
        writer.write(pixels)
    writer.release()
    return path


def opened(source: Any, value: Any, **changes: Any) -> FrameSource:
    found: FrameSource = source.open_source(value, replace(REQUEST, **changes))
    return found


def test_a_video_is_turned_cut_and_every_third_frame_has_its_own_label(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", [numbered(i) for i in range(20)])
    (tmp_path / "l.csv").write_text("frame,label\n0,cat\n3,dog\n4,cat\n18,cat\n")
    view = View(Roi.parse("0,10,48,30"), 90, 3)
    source = opened(video, str(path), view=view, labels=tmp_path / "l.csv")
    assert source.length == 7
    frames = [item for item in source.frames() if isinstance(item, Frame)]
    assert [number_of(frame.pixels) for frame in frames] == list(range(0, 20, 3))
    assert [frame.label for frame in frames] == [0, 1, None, None, None, None, 0]
    assert {frame.pixels.shape for frame in frames} == {(30, 48, 3)}
    assert source.note() is None
    assert source.name == f"{path}, roi 0,10,48,30, rotate 90, every 3"


def test_a_video_cut_short_says_so_also_of_every_third_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", [numbered(i) for i in range(40)])
    cut = tmp_path / "cut.avi"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = opened(video, str(cut), view=View(every=3))
    taken = len(list(source.frames()))
    assert taken < 14
    assert "the video ended after" in (source.note() or "it may be whole")


def test_a_folder_is_turned_cut_and_thinned(tmp_path: Path) -> None:
    for name, shift in (("cat", 0), ("dog", 100)):
        (tmp_path / name).mkdir()
        for i in range(5):
            cv2.imwrite(str(tmp_path / name / f"{name}{i}.png"), numbered(shift + i))
    whole = [number_of(f.pixels) for f in opened(images, tmp_path, order="recorded").frames()]  # type: ignore[union-attr]
    source = opened(images, tmp_path, order="recorded", view=View(Roi.parse("0.0,0,1,.5"), 180, 4))
    frames = [item for item in source.frames() if isinstance(item, Frame)]
    assert [number_of(frame.pixels) for frame in frames] == whole[::4]
    assert [frame.label for frame in frames] == [0 if number < 50 else 1 for number in whole[::4]]
    assert source.length == len(frames) == 3
    assert len(source.fingerprints()) == 3
    assert {frame.pixels.shape for frame in frames} == {(24, 64, 3)}


@pytest.mark.parametrize("kind", ["video", "images"])
def test_a_roi_outside_of_a_recording_is_a_sentence(kind: str, tmp_path: Path) -> None:
    view = View(Roi.parse("0,0,9,99"))
    if kind == "video":
        source = opened(video, str(write_video(tmp_path / "v.avi", [numbered(1)] * 3)), view=view)
    else:
        (tmp_path / "cat").mkdir()
        cv2.imwrite(str(tmp_path / "cat" / "1.png"), numbered(1))
        source = opened(images, tmp_path, view=view)
    with pytest.raises(SourceError) as error:
        list(source.frames())
    assert "found one of 64×48" in one_sentence(str(error.value))


# --- the commands

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()",
]


def deco_run(bundle: Path, *more: object) -> subprocess.CompletedProcess[str]:
    settings = ["--engine", "portable", "--recipe", "deco+", "--set", "segment=16"]
    command = [*COMMAND, "--bundle", str(bundle), *settings, *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_a_run_looks_as_it_is_told(bundle_path: Path, tmp_path: Path) -> None:
    """Digits in the corner of a turned video are as right as the digits themselves."""
    pixels, labels = open_bundle(bundle_path).labelled_pixels("demo/test.npz")
    classes = open_bundle(bundle_path).classes
    pictures = []
    for image in pixels[:40]:
        around = np.full((100, 140, 3), 128, np.uint8)
        around[10:74, 20:84] = cv2.resize(image, (64, 64))
        pictures += [np.rot90(around, 1), np.full((140, 100, 3), 7, np.uint8)]  # the camera hangs on its side
    path = write_video(tmp_path / "v.avi", [np.ascontiguousarray(each) for each in pictures])
    lines = [f"{2 * i},{classes[label]}" for i, label in enumerate(labels[:40])]
    (tmp_path / "l.csv").write_text("\n".join(["frame,label", *lines]))
    where = ["--video", path, "--labels", tmp_path / "l.csv", "--no-learn"]
    done = deco_run(bundle_path, *where, "--rotate", "90", "--roi", "20,10,64,64", "--every", "2")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["frames"] == 40
    assert summary["stream_accuracy"] > 0.8
    blind = json.loads(deco_run(bundle_path, *where, "--every", "2").stdout)
    assert blind["stream_accuracy"] < summary["stream_accuracy"] - 0.2


def test_a_state_goes_on_in_the_same_view_only(bundle_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.avi"
    noise = np.random.default_rng(0).integers(0, 256, (120, 48, 64, 3), np.uint8)
    write_video(path, list(noise))
    where = ["--video", path, "--state", tmp_path / "s", "--events", tmp_path / "e", "--max-segments", "2"]

    def skipped(*more: str) -> int:
        (tmp_path / "e").unlink(missing_ok=True)
        assert deco_run(bundle_path, *where, *more).returncode == 0
        opened, *others = events(tmp_path / "e", "source")
        assert [line["action"] for line in others] == ["ended"]
        found: int = opened["skipped"]
        return found

    assert skipped() == 0
    assert skipped() == 32
    for more in (["--every", "2"], ["--rotate", "180"], ["--roi", "0,0,40,40"], ["--roi", "0,0,.5,.5"]):
        assert skipped(*more) == 0
    assert skipped("--roi", "0%,0%,50%,50%") == 32  # as it was written before


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--roi", "0,0,200,10"], 6, "expected pictures with --roi 0,0,200,10 in them"),
        (["--roi", "1,2,3"], 2, "expected four numbers X,Y,WIDTH,HEIGHT"),
        (["--roi", "0,0,5,5", "--roi", "0,0,6,6"], 2, "expected one --roi for all pictures, but found 2"),
        (["--rotate", "45"], 2, "Invalid value for '--rotate'"),
        (["--every", "0"], 2, "Invalid value for '--every'"),
    ],
)
def test_what_cannot_be_looked_at(more: list[str], code: int, words: str, bundle_path: Path, tmp_path: Path) -> None:
    done = deco_run(bundle_path, "--demo", "--state", tmp_path / "s", *more)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert done.stdout == ""


def test_the_doctor_sees_what_the_run_will_see() -> None:
    with mjpeg_server(lambda i: np.roll(quarters(), i, axis=1)) as url:
        found = list(doctor.findings(url, 0.5, (), View(Roi.parse("0,0,20,30"), 90, 2), 32))
        near = list(doctor.findings(url, 0.5, (), View(Roi.parse("0,0,32,40")), 32))
        none = list(doctor.findings(url, 0.5, (), View(Roi.parse("0,0,65,1")), 32))
    assert f"{url}, roi 0,0,20,30, rotate 90, every 2: 20×30 pixels" in found[0].sentence
    assert (found[0].figures["rotate"], found[0].figures["sizes"]) == (90, [[20, 30]])
    assert [(f.level, f.check) for f in found if f.level != "OK"] == [("WARN", "camera roi")]
    assert "the shorter side of what it leaves has 20" in next(f.sentence for f in found if f.check == "camera roi")
    assert 5 < found[0].figures["rate"] < 30  # of 50, every second one
    assert not [f for f in near if f.level != "OK"]
    assert [(f.level, f.check) for f in none] == [("FAIL", "camera")]
    assert "found one of 64×48" in none[0].sentence
