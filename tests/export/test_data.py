"""The labelled data of an export: what is picked, what is held out, what is recorded as seen."""

from __future__ import annotations

import hashlib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cv2 = pytest.importorskip("cv2")

from deco_export.data import Data, Images, load, pick  # noqa: E402
from deco_runtime.errors import DataError  # noqa: E402
from deco_runtime.preprocess import resize  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

COUNTS = {"ant": 10, "bee": 20, "cow": 1}


def quiet(done: int, total: int) -> None:
    pass


def photos(root: Path, counts: dict[str, int] = COUNTS, side: int = 12) -> Path:
    """A folder of images that all differ."""
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            cv2.imwrite(str(root / name / f"{i:02}.png"), rng.integers(0, 256, (side, side, 3), np.uint8))
    return root


def each(images: Images) -> set[bytes]:
    return {pixels.tobytes() for pixels in images.pixels}


def from_folder(root: Path, labelled: float = 1.0, validation: float = 0.0, size: int = 8, seed: int = 0) -> Data:
    return load(str(root), labelled, validation, size, seed, quiet)


# --- pick


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, 100),
)
def test_pick_takes_its_share_of_every_class(labels: list[int], fraction: float, seed: int) -> None:
    array = np.asarray(labels)
    first, rest = pick(array, fraction, np.random.default_rng(seed))
    assert sorted([*first, *rest]) == list(range(len(labels)))
    assert (np.diff(first) > 0).all()
    assert (np.diff(rest) > 0).all()
    for c in set(labels):
        assert (array[first] == c).sum() == max(1, round(fraction * labels.count(c)))


def test_pick_is_random_and_repeatable() -> None:
    labels = np.zeros(100, np.int64)
    picks = [pick(labels, 0.1, np.random.default_rng(seed))[0].tolist() for seed in (0, 0, 1)]
    assert picks[0] == picks[1] != picks[2]


# --- an image folder


def test_a_folder_is_read_as_the_device_would(tmp_path: Path) -> None:
    data = from_folder(photos(tmp_path))
    assert data.classes == ("ant", "bee", "cow")
    assert data.train.pixels.shape == (31, 8, 8, 3)
    assert data.train.pixels.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels).tolist() == [10, 20, 1]
    of_ants = data.train.pixels[data.train.labels == 0]
    ants = [resize(cv2.imread(str(file)), 8) for file in sorted((tmp_path / "ant").iterdir())]
    np.testing.assert_array_equal(of_ants, np.stack(ants))
    assert len(data.validation) == 0
    assert (data.stream, data.test, data.skipped) == (None, None, None)


def test_validation_is_held_out_of_every_class_but_a_single_image(tmp_path: Path) -> None:
    data = from_folder(photos(tmp_path), validation=0.3)
    assert np.bincount(data.train.labels).tolist() == [7, 14, 1]
    assert np.bincount(data.validation.labels).tolist() == [3, 6]
    assert not each(data.train) & each(data.validation)
    assert len(each(data.train) | each(data.validation)) == 31


def test_every_class_keeps_an_image_for_training(tmp_path: Path) -> None:
    data = from_folder(photos(tmp_path), validation=0.99)
    assert np.bincount(data.train.labels).tolist() == [1, 1, 1]


@pytest.mark.parametrize("labelled", [0.3, 1.0])
def test_the_fingerprints_are_those_of_the_images_used(tmp_path: Path, labelled: float) -> None:
    data = from_folder(photos(tmp_path), labelled, validation=0.2)
    used = each(data.train) | each(data.validation)
    expected = []
    for file in tmp_path.rglob("*.png"):
        if resize(cv2.imread(str(file)), 8).tobytes() in used:
            expected.append(hashlib.sha256(file.read_bytes()).hexdigest()[:16])
    assert list(data.trained_on) == sorted(expected)
    assert len(expected) == {0.3: 3 + 6 + 1, 1.0: 31}[labelled]


def test_a_train_folder_is_taken_and_the_test_folder_is_not(tmp_path: Path) -> None:
    photos(tmp_path / "train", {"ant": 3, "bee": 2})
    photos(tmp_path / "test", {"ant": 9, "bee": 9})
    assert np.bincount(from_folder(tmp_path).train.labels).tolist() == [3, 2]


def test_the_seed_decides_what_is_used(tmp_path: Path) -> None:
    photos(tmp_path)
    used = [from_folder(tmp_path, 0.3, seed=seed).trained_on for seed in (0, 0, 1)]
    assert used[0] == used[1] != used[2]


def test_an_unreadable_image_is_named_and_skipped(tmp_path: Path) -> None:
    broken = photos(tmp_path) / "bee" / "05.png"
    broken.write_bytes(b"no image")
    data = from_folder(tmp_path)
    assert np.bincount(data.train.labels).tolist() == [10, 19, 1]
    assert data.skipped is not None
    assert str(broken) in data.skipped
    assert hashlib.sha256(b"no image").hexdigest()[:16] not in data.trained_on
    assert len(data.trained_on) == 30


def test_a_class_without_a_readable_image_is_refused_by_name(tmp_path: Path) -> None:
    (photos(tmp_path) / "cow" / "00.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="'cow'"):
        from_folder(tmp_path)


def test_many_unreadable_images_are_refused(tmp_path: Path) -> None:
    for file in list((photos(tmp_path) / "bee").iterdir())[:11]:
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match="at most 10 unreadable"):
        from_folder(tmp_path)


def test_progress_counts_every_image(tmp_path: Path) -> None:
    ticks: list[tuple[int, int]] = []
    load(str(photos(tmp_path)), 1.0, 0.0, 8, 0, lambda done, total: ticks.append((done, total)))
    assert ticks == [(i + 1, 31) for i in range(31)]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing at"):
        from_folder(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no class folder"):
        from_folder(tmp_path / "empty")
    with pytest.raises(DataError, match="only 'ant'"):
        from_folder(photos(tmp_path / "single", {"ant": 2}))
    (photos(tmp_path / "hollow", {"ant": 2}) / "bee").mkdir()
    with pytest.raises(DataError, match=r"bee.*found none"):
        from_folder(tmp_path / "hollow")


# --- digits


@pytest.mark.parametrize("size", [8, 20])
def test_digits_are_split_without_overlap(size: int) -> None:
    pytest.importorskip("sklearn")
    data = load("digits", 0.1, 0.2, size, 0, quiet)
    assert data.classes == tuple("0123456789")
    assert data.stream is not None
    assert data.test is not None
    parts = [data.train, data.validation, data.stream, data.test]
    for part in parts:
        assert part.pixels.shape == (len(part), size, size, 3)
        assert part.pixels.dtype == np.uint8
        assert set(part.labels) == set(range(10))
    assert sum(map(len, parts)) == 1797
    assert all(not each(a) & each(b) for a, b in combinations(parts, 2))
    assert len(data.test) == pytest.approx(0.2 * 1797, abs=5)
    assert len(data.train) + len(data.validation) == pytest.approx(0.1 * 0.8 * 1797, abs=5)
    assert data.trained_on == ()


def test_the_digits_stream_shows_one_digit_at_a_time() -> None:
    pytest.importorskip("sklearn")
    data = load("digits", 0.1, 0.1, 8, 0, quiet)
    assert data.stream is not None
    changes = np.count_nonzero(np.diff(data.stream.labels))
    assert changes < len(data.stream) / 30  # shuffled images would change nine times out of ten


def test_all_digits_labelled_leave_no_stream() -> None:
    pytest.importorskip("sklearn")
    assert load("digits", 1.0, 0.1, 8, 0, quiet).stream is None
