"""The labels of a video's frames: both forms of the file, what is wrong with one, and that they reach the frames."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import DataError
from deco_runtime.preprocess import preprocess
from deco_runtime.sources import SourceRequest, video
from deco_runtime.sources._labels import read_labels
from deco_runtime.storage.bundle import open_bundle

CLASSES = ("cat", "dog", "eel")


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "frame,label\n0,cat\n1,cat\n3,eel\n2,\n5,dog\n",
        "first,last,label\n5,5,dog\n0,1,cat\n3,3,eel\n",
        '\ufeff\nfirst,last,label\r\n0,1,"cat"\r\n\r\n2,2,\r\n3,3,eel\r\n5,5,dog',
    ],
)
def test_both_forms(text: str, tmp_path: Path) -> None:
    labels = read_labels(write(tmp_path / "l.csv", text), CLASSES)
    assert [labels(frame) for frame in range(8)] == [0, 0, None, 2, None, 1, None, None]


def test_a_range_may_be_long(tmp_path: Path) -> None:
    labels = read_labels(write(tmp_path / "l.csv", "first,last,label\n7,999999999999999,dog\n"), CLASSES)
    assert [labels(frame) for frame in (6, 7, 10**12)] == [None, 1, 1]


def test_a_class_with_a_comma_in_its_name(tmp_path: Path) -> None:
    assert read_labels(write(tmp_path / "l.csv", 'frame,label\n0,"a, b"\n'), ("a, b", "c"))(0) == 0


def test_a_class_is_known_however_its_name_is_written(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, "Möhre") for form in ("NFC", "NFD")]
    for written in forms:
        for known in forms:
            labels = read_labels(write(tmp_path / "l.csv", f"frame,label\n0,{written}\n1,cat\n"), ("cat", known))
            assert [labels(0), labels(1)] == [1, 0]


HEADER = "expected the header frame,label or first,last,label in {}, line 1, found "
TWICE = "expected every frame once in {}, line {}, found frame {} again, which line 2 has"
WRONG: dict[str | bytes, str] = {
    "": HEADER + "'': begin",
    "0,cat\n": HEADER + "'0,cat'",
    "label,frame\n": HEADER + "'label,frame'",
    "frame,label\n": "expected a label in {}, line 2, found the end of the file",
    "frame,label\n0,cat\n1\n": "expected 2 values, frame,label in {}, line 3, found 1",
    "first,last,label\n0,cat\n": "expected 3 values, first,last,label in {}, line 2, found 2",
    "frame,label\n0,cat\n\n-1,cat\n": "expected a frame's number, from 0 in {}, line 4, found '-1'",
    "frame,label\n1.5,cat\n": "line 2, found '1.5'",
    "frame,label\n,cat\n": "line 2, found ''",
    f"frame,label\n{'9' * 5000},cat\n": f"line 2, found '{'9' * 40}…'",
    "first,last,label\n0,x,cat\n": "expected a frame's number, from 0 in {}, line 2, found 'x'",
    "first,last,label\n5,4,cat\n": "expected a last frame from 5 on in {}, line 2, found 4",
    "frame,label\n0,cow\n": "expected a class of the bundle, such as cat, or nothing in {}, line 2, found 'cow'",
    "frame,label\n0,Cat\n": "found 'Cat'",
    "frame,label\n7,cat\n3,dog\n7,cat\n": TWICE.format("{}", 4, 7),
    "first,last,label\n4,9,cat\n0,4,\n": TWICE.format("{}", 3, 4),
    b"frame,label\n0,cat\n1,\xff\n": "expected text in UTF-8 in {}, line 3, found other bytes",
    "frame,label\n0,cat\n".encode("utf-16"): "expected text in UTF-8 in {}, line 1, found other bytes",
    'frame,label\n0,"cat\n': "expected comma-separated values in {}, line 2, found ",
    b"RIFF\0\0AVI LIST\0\0": "line 1, found ",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_one_sentence(text: str | bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", text)
    with pytest.raises(DataError) as error:
        read_labels(path, CLASSES)
    said = str(error.value)
    assert WRONG[text].format(path) in said
    assert said.startswith("expected ")
    assert "\n" not in said


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a CSV file for --labels, found a folder at"):
        read_labels(tmp_path, CLASSES)
    with pytest.raises(DataError, match=r"expected a CSV file for --labels, found no file at .*none\.csv: check"):
        read_labels(tmp_path / "none.csv", CLASSES)


def digits(bundle: Path, path: Path, count: int) -> np.ndarray:
    """A video of test images of the bundle's digits, as large as they are; returns their labels."""
    pixels, labels = open_bundle(bundle).labelled_pixels("demo/test.npz")
    height, width = pixels.shape[1:3]
    writer = cv2.VideoWriter(str(path), int.from_bytes(b"MJPG", "little"), 25, (width, height))
    for image in pixels[:count]:
        writer.write(image)
    writer.release()
    return labels[:count]


def test_frames_have_their_labels_and_no_others(bundle_path: Path, tmp_path: Path) -> None:
    truth = digits(bundle_path, tmp_path / "v.avi", 6)
    classes = open_bundle(bundle_path).classes
    file = write(tmp_path / "l.csv", f"frame,label\n1,{classes[truth[1]]}\n3,\n5,{classes[truth[5]]}\n99,0\n")
    request = SourceRequest(classes, 16, 1, 0, frozenset(), tmp_path, labels=file)
    found = [frame.label for frame in video.open_source(str(tmp_path / "v.avi"), request).frames()]
    assert found == [None, truth[1], None, None, None, truth[5]]


def test_the_summary_counts_labelled_frames_only(bundle_path: Path, tmp_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    digits(bundle_path, tmp_path / "v.avi", 40)
    played = video.open_source(str(tmp_path / "v.avi"), SourceRequest(bundle.classes, 16, 1, 0, frozenset(), tmp_path))
    x = np.stack([preprocess(frame.pixels, bundle.preprocessing) for frame in played.frames()])
    answers = open_engine(bundle, "portable").predict(bundle.weights(), x)[0].argmax(axis=1)
    wrong = (answers + 1) % len(bundle.classes)
    right = [f"{n},{bundle.classes[c]}" for n, c in enumerate(answers[:6])]
    mistaken = [f"{n + 30},{bundle.classes[c]}" for n, c in enumerate(wrong[30:32])]
    file = write(tmp_path / "l.csv", "\n".join(["frame,label", *mistaken, *right]))
    program = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
    where = ["--bundle", bundle_path, "--video", tmp_path / "v.avi", "--labels", file]
    command = [sys.executable, "-c", program, *map(str, where), "--engine", "portable", "--no-learn"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["frames"], summary["stream_accuracy"]) == (40, 6 / 8)
