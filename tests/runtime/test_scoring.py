"""Accuracy of a model on test images, and where the images are looked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.errors import DataError
from deco_runtime.pictures.folder import fingerprint, read_image
from deco_runtime.preprocess import normalise
from deco_runtime.running.scoring import Scorer, read_test_folder
from deco_runtime.sources.images import Images
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats


@pytest.fixture
def bundle(bundle_path: Path) -> Bundle:
    return open_bundle(bundle_path)


def write(root: Path, names: list[str], each: int = 2) -> None:
    for shade, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(each):
            assert cv2.imwrite(str(root / name / f"{i}.png"), np.full((20, 30, 3), 20 * shade, np.uint8))


@pytest.mark.parametrize("parts", [[""], ["test"], ["train", "test"]])
def test_images_are_read_from_the_test_part_if_there_is_one(bundle: Bundle, tmp_path: Path, parts: list[str]) -> None:
    for part in parts:
        write(tmp_path / part, ["3", "7"], each=5 if part == "train" else 2)
    pixels, labels, note = read_test_folder(tmp_path, bundle, bundle.classes)
    assert pixels.shape == (4, 16, 16, 3)
    assert labels.tolist() == [3, 3, 7, 7]
    assert pixels[2].max() == 20
    assert note is None


def test_unreadable_images_are_named_and_left_out(bundle: Bundle, tmp_path: Path) -> None:
    write(tmp_path, ["3"])
    (tmp_path / "3" / "bad.png").write_bytes(b"nothing")
    _, labels, note = read_test_folder(tmp_path, bundle, bundle.classes)
    assert len(labels) == 2
    assert note is not None
    assert "bad.png" in note


@pytest.fixture
def trained(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of eight images, a copy of one of which the model was trained on."""
    write(tmp_path / "photos", ["3", "7"], each=4)
    for i, file in enumerate(sorted(tmp_path.glob("photos/*/*.png"))):
        cv2.imwrite(str(file), np.full((20, 30, 3), 10 * i, np.uint8))  # no two alike
    seen = fingerprint(tmp_path / "photos" / "3" / "0.png")
    monkeypatch.setattr(Bundle, "trained_on", lambda self: frozenset([seen]))
    return tmp_path / "photos"


def seen(*files: Path) -> frozenset[str]:
    """What a stream of these knows them by."""
    return Images("stream", [(file, 0) for file in files], read_image).fingerprints()


def test_images_that_the_model_learns_from_do_not_score_it(bundle: Bundle, trained: Path) -> None:
    pixels, labels, note = read_test_folder(trained, bundle, bundle.classes)
    assert labels.tolist() == [3, 3, 3, 7, 7, 7, 7]
    assert pixels.max(axis=(1, 2, 3)).tolist() == [10 * i for i in range(1, 8)]
    assert note == "left out of the test images those that the model learns from (1 trained on)"
    copy = trained.parent / "copy.png"
    copy.write_bytes((trained / "7" / "2.png").read_bytes())
    pixels, labels, note = read_test_folder(
        trained, bundle, bundle.classes, seen(copy, trained / "3" / "0.png", trained / "missing.png")
    )
    assert labels.tolist() == [3, 3, 3, 7, 7, 7]
    assert note == "left out of the test images those that the model learns from (1 trained on and 1 streamed)"


def test_nothing_left_to_score_is_an_error(bundle: Bundle, trained: Path) -> None:
    with pytest.raises(DataError, match=r"found only such in .*photos \(1 trained on and 7 streamed\): name another"):
        read_test_folder(trained, bundle, bundle.classes, seen(*trained.glob("*/*.png")))


def test_a_test_folder_of_a_class_called_test(bundle: Bundle, tmp_path: Path) -> None:
    write(tmp_path, ["3", "7"])
    write(tmp_path / "test", ["3", "7"], each=3)
    assert len(read_test_folder(tmp_path, bundle, bundle.classes)[1]) == 6
    named = replace(bundle, classes=("3", "7", "test"))
    (tmp_path / "test" / "0.png").write_bytes((tmp_path / "3" / "0.png").read_bytes())
    for name in ("3", "7"):
        shutil.rmtree(tmp_path / "test" / name)
    assert read_test_folder(tmp_path, named, named.classes)[1].tolist() == [0, 0, 1, 1, 2]


def test_images_of_none_of_the_classes_are_not_scored(bundle: Bundle, tmp_path: Path) -> None:
    write(tmp_path, ["3", "7", "none"])
    _, labels, note = read_test_folder(tmp_path, bundle, bundle.classes)
    assert sorted(labels.tolist()) == [3, 3, 7, 7]
    assert note == "images of none of the classes are not scored (2)"


def test_nothing_readable_is_an_error(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "bad.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="found none"):
        read_test_folder(tmp_path, bundle, bundle.classes)


def test_accuracy_is_the_share_of_right_answers(engine, bundle: Bundle) -> None:
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    theta = bundle.weights()
    scorer = Scorer(bundle.preprocessing, pixels, labels)

    def predicts(weights: Floats) -> Callable[[Floats], Floats]:
        return lambda x: engine.predict(weights, x)[0]

    answers = [int(engine.predict(theta, normalise(p, bundle.preprocessing)[None])[0].argmax()) for p in pixels[:70]]
    few = Scorer(bundle.preprocessing, pixels[:70], labels[:70])
    assert few.accuracy(predicts(theta)) == np.mean(answers == labels[:70])
    assert len(scorer) == len(labels)
    assert scorer.accuracy(predicts(theta)) > 0.5
    assert scorer.accuracy(predicts(np.zeros_like(theta))) == np.mean(labels == 0)  # all logits equal: the first class
