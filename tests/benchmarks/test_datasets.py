"""Data sets as arrays: folders with and without a test part, and the digits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.errors import DataError, UsageError

pytest.importorskip("torch")

from deco_benchmarks.config import Config
from deco_benchmarks.datasets import Photos, check_recorded, load
from deco_benchmarks.trial import split


def write(root: Path, each: int) -> None:
    for shade, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for i in range(each):
            assert cv2.imwrite(str(root / name / f"{i:03}.png"), np.full((12, 12, 3), 100 * shade + i, np.uint8))


def test_a_folder_with_parts_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "train", 5)
    write(tmp_path / "test", 2)
    found = load(str(tmp_path), 8, seed=0)
    assert found.classes == ("cat", "dog")
    assert found.train.pixels.shape == (10, 8, 8, 3)
    assert found.test.labels.tolist() == [0, 0, 1, 1]
    assert found.test.pixels[3, 0, 0, 0] == 101


def test_a_folder_without_parts_is_split_by_class(tmp_path: Path) -> None:
    write(tmp_path, 40)
    found = load(str(tmp_path), 8, seed=0)
    assert np.bincount(found.train.labels).tolist() == [32, 32]
    assert np.bincount(found.test.labels).tolist() == [4, 4]
    assert np.bincount(found.validation.labels).tolist() == [4, 4]
    values = [part.pixels[:, 0, 0, 0].tolist() for part in (found.train, found.test, found.validation)]
    assert len(np.unique(np.concatenate(values))) == 80
    assert np.array_equal(found.test.pixels, load(str(tmp_path), 8, seed=0).test.pixels)


def test_a_folder_with_a_stream_and_a_test_part(tmp_path: Path) -> None:
    write(tmp_path / "stream", 5)
    write(tmp_path / "test", 2)
    found = load(str(tmp_path), 8, seed=0)
    assert (len(found.train), len(found.test), found.validation) == (10, 4, None)
    write(tmp_path / "train", 3)
    assert len(load(str(tmp_path), 8, seed=0).train) == 6  # as deco-export and deco-run take it


def test_images_of_a_folder_keep_their_files(tmp_path: Path) -> None:
    write(tmp_path, 40)
    found = load(str(tmp_path), 8, seed=0)
    for part in (found.train, found.test, found.validation):
        assert isinstance(part, Photos)
        assert [100 * (file.parent.name == "dog") + int(file.stem) for file in part.files] == part.pixels[
            :, 0, 0, 0
        ].tolist()


def test_labelled_images_of_another_folder(tmp_path: Path) -> None:
    write(tmp_path / "photos", 3)
    write(tmp_path / "room" / "stream", 5)
    write(tmp_path / "room" / "test", 2)
    for file in (tmp_path / "room" / "stream" / "cat").iterdir():
        file.unlink()
    (tmp_path / "room" / "stream" / "cat").rmdir()
    found = load(str(tmp_path / "room"), 8, 0, str(tmp_path / "photos"))
    assert found.labelled is not None
    assert found.labelled.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.train.labels.tolist() == [1] * 5  # dog, as the labelled folder counts
    config = Config("Frozen", "room", 1.0, 0, "recorded", 0, "smoke", labelled_from="photos")
    labelled, stream, test = split(found, config)
    assert (labelled, stream, test) == (found.labelled, found.train, found.test)
    _, stream, held = split(found, replace(config, validation=True))
    assert (len(stream), len(held)) == (4, 1)
    (tmp_path / "room" / "stream" / "cow").mkdir()
    with pytest.raises(DataError, match="found cow in"):
        load(str(tmp_path / "room"), 8, 0, str(tmp_path / "photos"))


def test_a_recording_of_some_classes_without_a_test_part(tmp_path: Path) -> None:
    write(tmp_path / "photos", 3)
    write(tmp_path / "room", 20)
    shutil.rmtree(tmp_path / "room" / "cat")
    found = load(str(tmp_path / "room"), 8, 0, str(tmp_path / "photos"))
    assert found.labelled is not None
    assert [len(part) for part in (found.labelled, found.train, found.test)] == [6, 16, 2]


def test_what_has_no_recorded_order(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="be an image folder for --stream recorded, but found digits"):
        check_recorded("digits")
    write(tmp_path, 4)
    said = check_recorded(str(tmp_path))
    assert said == "4 file names are in more than one class, so by name the classes come mixed and not as recorded"
    for file in (tmp_path / "cat").iterdir():
        file.rename(file.with_name(f"1{file.name}"))
    assert check_recorded(str(tmp_path)) is None


def test_digits_need_no_files() -> None:
    found = load("digits", 16, seed=0)
    assert found.train.pixels.shape[1:] == (16, 16, 3)
    assert len(found.train) + len(found.test) + len(found.validation) == 1797


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    write(tmp_path, 3)
    (tmp_path / "cat" / "bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.png"):
        load(str(tmp_path), 8, seed=0)


def test_a_class_too_small_to_split_is_named(tmp_path: Path) -> None:
    write(tmp_path, 20)
    for file in list((tmp_path / "cat").iterdir())[1:]:
        file.unlink()
    with pytest.raises(DataError, match="'cat' has 1"):
        load(str(tmp_path), 8, seed=0)
