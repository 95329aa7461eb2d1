"""Data sets as arrays: folders with and without a test part, and the digits."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.errors import DataError

pytest.importorskip("torch")

from deco_benchmarks.datasets import load


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
