"""Replayed frame sources with the real OpenCV, video files and folders, and how sources are found."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
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
from deco_runtime.pictures.folder import fingerprint
from deco_runtime.sources import SourceRequest, _playback, camera, images, video
from deco_runtime.sources.orders import recorded_order, stc_order
from deco_runtime.types import Pixels
from hypothesis import given, settings
from hypothesis import strategies as st
from mjpeg_server import number_of, numbered
from sentences import one_sentence


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


def write_video(path: Path, pictures: list[Pixels]) -> Path:
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), int.from_bytes(b"MJPG", "little"), 25, (width, height))
    assert writer.isOpened()
    for pixels in pictures:
        writer.write(pixels)
    writer.release()
    return path


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
    for option in ("--camera INDEX|DEVICE|URL|picamera2", "--images DIR", "--video FILE|URL"):
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
    assert [frame.time for frame in frames] == [i / 25 for i in range(40)]  # of the recording, not of the consumer
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
    # Half of the last frame is there, and not taken for a frame.
    note = f"left out 1 damaged frame; expected 40 frames, the video ended after {count + 1}: it may be cut short"
    assert source.note() == note
    assert source.figures() == {"damaged": 1}
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


CORNERS = np.zeros((64, 96, 3), np.uint8)
CORNERS[:32, :48], CORNERS[:32, 48:], CORNERS[32:, :48] = (0, 0, 255), (0, 255, 0), (255, 0, 0)

MATRICES = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""What a phone that is held so writes into its files, degrees to turn clockwise → display matrix."""


def phone_video(path: Path, degrees: int) -> Path:
    """CORNERS as a phone's sensor stores it, to be shown turned."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (96, 64))
    assert writer.isOpened()
    for _ in range(5):
        writer.write(CORNERS)
    writer.release()
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 4 + 40  # of the matrix in a track header of version 0
    a, b, c, d = (value << 16 for value in MATRICES[degrees])
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))
    return path


@pytest.mark.parametrize("degrees", MATRICES)
def test_a_video_is_upright_as_its_metadata_says(tmp_path: Path, degrees: int) -> None:
    """Versions of OpenCV differ in what they do when nobody asks: 4.11 shows the sensor's picture lying."""
    source = video.open_source(str(phone_video(tmp_path / "phone.mp4", degrees)), request())
    (frame, *_) = source.frames()
    source.close()
    upright = np.rot90(CORNERS, -degrees // 90)
    assert frame.pixels.shape == upright.shape
    assert np.abs(frame.pixels.astype(int) - upright).mean() < 8


@pytest.mark.parametrize("degrees", [0, 90])
def test_so_is_a_stream(tmp_path: Path, degrees: int) -> None:
    from deco_runtime.sources._capture import open_url

    capture = open_url(str(phone_video(tmp_path / "phone.mp4", degrees)), "a phone")
    pixels, _ = capture.read()
    capture.close()
    assert pixels is not None
    assert np.abs(pixels.astype(int) - np.rot90(CORNERS, -degrees // 90)).mean() < 8


def test_damaged_frames_of_a_video_are_counted_and_left_out(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (9, 48, 64, 3), dtype=np.uint8)
    path = write_video(tmp_path / "v.avi", list(noise))
    data = path.read_bytes()
    starts = [at for at in range(len(data)) if data.startswith(b"\xff\xd8\xff", at)]
    assert len(starts) == 9
    for number in (2, 5):
        middle = starts[number] + (starts[number + 1] - starts[number]) // 2
        data = data[:middle] + b"\xff\xd0" * 150 + data[middle + 300 :]  # markers: other bytes may be valid codes
    path.write_bytes(data)
    source = video.open_source(str(path), request())
    assert len(list(source.frames())) == 7
    assert source.note() == "left out 2 damaged frames"
    assert source.figures() == {"damaged": 2}
    source.close()


def test_a_video_of_nothing_but_damage(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", [numbered(i) for i in range(3)])
    path.write_bytes(path.read_bytes().replace(b"\xff\xda", b"\xff\xd9"))
    with pytest.raises(SourceError) as error:
        list(video.open_source(str(path), request()).frames())
    assert "found that all 3 in" in one_sentence(str(error.value))


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
    message = one_sentence(str(error.value))
    assert str(path) in message
    assert NO_VIDEOS[name] in message
    assert capfd.readouterr() == ("", "")


def test_a_video_without_a_decodable_frame() -> None:
    """As with a file whose header is fine: it opens, and then nothing comes."""
    source = _playback.Playback(Path("v.avi"), cv2.VideoCapture())
    with pytest.raises(SourceError, match=r"expected a video .* found something else in v\.avi"):
        list(source.frames())


# --- folders


def cut(count: int, stc: int) -> list[int]:
    """The run lengths of a class of `count` images."""
    return [min(stc, count - start) for start in range(0, count, stc)]


@given(labels=st.lists(st.integers(0, 5), max_size=80), stc=st.integers(1, 12), seed=st.integers(0, 9999))
@settings(max_examples=150)
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


def test_recorded_order_is_by_name_over_all_classes() -> None:
    names = ("cat/t1_frame10", "cat/t1_frame2", "dog/t1_frame9", "dog/t10_frame1", "eel/t2_frame0", "eel/t1_frame2a")
    files = [Path(f"{name}.jpg") for name in names]
    assert recorded_order(files).tolist() == [1, 5, 2, 0, 4, 3]
    assert recorded_order([]).dtype == np.int64


def test_recorded_order_of_folders_below_those_of_the_classes() -> None:
    names = ("cat/day10/1", "cat/day2/9", "dog/day2/10", "dog/day2/1")
    assert recorded_order([Path(f"{name}.jpg") for name in names]).tolist() == [3, 1, 2, 0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cat", "dog"]),
            st.text("a0129_٣²", min_size=1, max_size=6),
            st.sampled_from(["jpg", "png"]),
        ),
        unique=True,
    )
)
def test_every_name_has_one_place_in_the_recorded_order(names: list[tuple[str, str, str]]) -> None:
    files = [Path(name) / f"{stem}.{ending}" for name, stem, ending in names]
    found = [files[i] for i in recorded_order(files)]
    assert sorted(found) == sorted(files)
    assert [files[::-1][i] for i in recorded_order(files[::-1])] == found


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


def test_images_as_they_were_recorded(data: Path) -> None:
    """Two takes, in which the classes come and go; the folder knows each image by class."""
    takes = ["cat", "cat", "dog", "cat", "eel", "eel", "dog"]
    for file in data.glob("*/*.png"):
        file.unlink()
    for number, name in enumerate(takes):
        pixels = np.full((10, 10, 3), COLOURS[name], np.uint8)
        cv2.imwrite(str(data / name / f"{number // 4:05}_{number % 4:05}.png"), pixels)
    source = images.open_source(data, request(order="recorded"))
    assert [list(COLOURS)[frame.label] for frame in source.frames()] == takes
    assert source.name == f"images in {data}, as recorded"
    assert source.note() is None
    again = images.open_source(data, request(order="recorded", stc=1, seed=7))
    assert again.name == source.name != images.open_source(data, request()).name
    assert [list(COLOURS)[frame.label] for frame in again.frames()] == takes


def test_names_that_repeat_between_classes_are_no_recording(data: Path) -> None:
    (data / "cat" / "0.png").unlink()
    (data / "dog" / "0.png").unlink()
    source = images.open_source(data, request(order="recorded"))
    assert [frame.label for frame in source.frames()] == [2, *[0, 1, 2] * 6]
    note = "6 file names are in more than one class, so by name the classes come mixed and not as recorded"
    assert source.note() == note
    assert images.open_source(data, request()).note() is None


def test_images_follow_the_bundles_classes(data: Path) -> None:
    source = images.open_source(data, request(classes=("eel", "bee", "dog", "cat")))
    assert Counter(frame.label for frame in source.frames()) == {0: 7, 2: 7, 3: 7}


@pytest.mark.parametrize("name", ["none", "Background"])
def test_images_of_none_of_the_classes_have_no_label(data: Path, name: str) -> None:
    known = [frame.label for frame in images.open_source(data, request()).frames()]
    (data / name).mkdir()
    for number in range(3):
        cv2.imwrite(str(data / name / f"{number}.png"), numbered(number))
    frames = list(images.open_source(data, request()).frames())
    assert Counter(frame.label for frame in frames) == Counter([*known, None, None, None])
    assert {number_of(frame.pixels) for frame in frames if frame.label is None} == {0, 1, 2}
    called_none = request(classes=(*request().classes, name))  # whose bundle knows it as a class
    assert len(called_none.classes) - 1 in [frame.label for frame in images.open_source(data, called_none).frames()]


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


def test_images_in_folders_below_are_streamed_and_what_is_passed_over_is_said(data: Path) -> None:
    (data / "cat" / "day2").mkdir()
    (data / "cat" / "0.png").rename(data / "cat" / "day2" / "0.png")
    (data / "dog" / "new.heic").write_bytes(b"x")
    source = images.open_source(data, request())
    assert Counter(frame.label for frame in source.frames()) == {0: 7, 1: 7, 2: 7}
    note = source.note()
    assert note is not None
    assert note.endswith("1 .heic files, to be converted to JPEG (dog/new.heic)")
    recorded = images.open_source(data, request(order="recorded"))
    assert [frame.label for frame in recorded.frames()][-1] == 0  # day2 comes behind 0 … 6


def test_deep_images_of_a_folder_are_read_alike(tmp_path: Path) -> None:
    for name, values in (("cat", [4095, 3000]), ("dog", [100, 200])):
        (tmp_path / name).mkdir()
        for value in values:
            cv2.imwrite(str(tmp_path / name / f"{value}.png"), np.full((9, 9), value, np.uint16))
    source = images.open_source(tmp_path, request(order="recorded"))
    assert [int(frame.pixels[0, 0, 0]) for frame in source.frames()] == [100 >> 4, 200 >> 4, 3000 >> 4, 255]


def test_unreadable_images_are_skipped_and_named(data: Path) -> None:
    (data / "dog" / "4.png").write_bytes(b"")
    source = images.open_source(data, request(trained_on=frozenset([fingerprint(data / "cat" / "1.png")])))
    assert len(list(source.frames())) == 19
    note = source.note()
    assert note is not None
    assert "left out" in note
    assert f"skipped 1 unreadable image: {data / 'dog' / '4.png'} (it is empty)" in note
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
    command.main(["--camera", "0", "--camera", "2", "--images", "some/folder"], standalone_mode=False)
    assert given["camera"] == ("0", "2")
    assert given["images"] == Path("some/folder")
    assert given["video"] == ()


@pytest.mark.parametrize(
    ("said", "values"),
    [
        ("rtsp://a/1", ("rtsp://a/1",)),
        ("rtsp://a/1 http://b/2\n HTTPS://c/3 ", ("rtsp://a/1", "http://b/2", "HTTPS://c/3")),
        ("a file with blanks.avi", ("a file with blanks.avi",)),
        ("", ()),
    ],
)
def test_the_variable_holds_one_value_or_several_addresses(
    said: str, values: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setenv(video.VARIABLE, said)
    command = click.Command("deco-run", params=[video.OPTION], callback=lambda **values: given.update(values))
    command.main([], standalone_mode=False)
    assert given["video"] == values
