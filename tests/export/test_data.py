"""The labelled data of an export: what is picked, what is held out, what is recorded as seen."""

from __future__ import annotations

import hashlib
import io
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cv2 = pytest.importorskip("cv2")

from deco_export.data import Data, hold_out, load, pick  # noqa: E402
from deco_export.images import BATCH, FEW, Images, ImageSet, Inputs, StoredImages, asked, pictures  # noqa: E402
from deco_runtime.errors import DataError  # noqa: E402
from deco_runtime.preprocess import Preprocessing, normalise, resize  # noqa: E402
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


def each(images: ImageSet) -> set[bytes]:
    return {picture.tobytes() for picture in pictures(images)}


def sized(size: int) -> Preprocessing:
    return Preprocessing(size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def from_folder(root: Path, labelled: float = 1.0, validation: float = 0.0, size: int = 8, seed: int = 0) -> Data:
    return load(str(root), labelled, validation, sized(size), seed, quiet)


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


# --- hold_out


def in_takes(takes: list[list[int]]) -> Images:
    """Images of classes with takes of so many images; the first pixel is the image's number."""
    sizes = [size for of_class in takes for size in of_class]
    labels = np.repeat(np.arange(len(takes)), [sum(of_class) for of_class in takes])
    pixels = np.zeros((len(labels), 1, 1, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(len(labels))
    return Images(pixels, labels, np.repeat(np.arange(len(sizes)), sizes))


@given(
    takes=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=8), min_size=1, max_size=5),
    fraction=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 100),
)
def test_takes_are_held_out_whole(takes: list[list[int]], fraction: float, seed: int) -> None:
    images = in_takes(takes)
    train, held = hold_out(images, fraction, np.random.default_rng(seed))
    assert sorted([*train.pixels[:, 0, 0, 0], *held.pixels[:, 0, 0, 0]]) == list(range(len(images)))
    assert not set(train.takes) & set(held.takes)
    assert set(train.labels) == set(range(len(takes)))
    again, _ = hold_out(images, fraction, np.random.default_rng(seed))
    assert again.takes.tolist() == train.takes.tolist()


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0, 1, exclude_max=True),
    least=st.integers(0, 1),
    seed=st.integers(0, 100),
)
def test_images_of_no_take_are_drawn_one_by_one(labels: list[int], fraction: float, least: int, seed: int) -> None:
    """As before there were takes, so that results stay what they are; nor is anything else drawn."""
    array, rng, reference = np.asarray(labels), np.random.default_rng(seed), np.random.default_rng(seed)
    _, held = hold_out(Images(np.zeros((len(array), 1, 1, 3), np.uint8), array), fraction, rng, least)
    expected = []
    for c in np.unique(array):
        index = reference.permutation(np.flatnonzero(array == c))
        expected += index[: min(len(index) - 1, max(least, round(fraction * len(index))))].tolist()
    assert held.takes.tolist() == sorted(expected)
    assert rng.integers(1000) == reference.integers(1000)


def test_with_at_least_one_it_draws_what_pick_does() -> None:
    labels = np.repeat(np.arange(3), [4, 30, 11])
    picked, _ = pick(labels, 0.1, np.random.default_rng(5))
    _, held = hold_out(Images(np.zeros((45, 1, 1, 3), np.uint8), labels), 0.1, np.random.default_rng(5), least=1)
    assert held.takes.tolist() == picked.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_about_the_share_is_held_out_spread_over_the_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, held = hold_out(in_takes([[30, 30]] * 6 + [[30]] * 4), 0.2, rng)
    assert len(held) == 90  # of 480 images: 96 are wanted
    assert np.bincount(held.labels).max() == 30  # three classes, one take each
    assert held.labels.max() < 6
    _, held = hold_out(in_takes([[3] * 40, [3] * 20, [3] * 20]), 0.1, rng)
    assert np.bincount(held.labels).tolist() in ([9, 6, 9], [9, 9, 6], [12, 6, 6])
    _, held = hold_out(in_takes([[30, 30], [40, 40]]), 0.1, rng)
    assert len(held) == 30  # two takes are all there is: one, though 14 images were wanted
    _, held = hold_out(in_takes([[30, 30], [40, 40]]), 0.0, rng)
    assert len(held) == 0


def test_images_keep_their_takes() -> None:
    images = Images(np.zeros((4, 1, 1, 3), np.uint8), np.zeros(4, np.int64))
    assert images.takes.tolist() == [0, 1, 2, 3]
    assert images[np.array([3, 1])].takes.tolist() == [3, 1]
    assert in_takes([[2, 1]])[np.array([2, 0])].takes.tolist() == [1, 0]


def test_what_is_said_of_takes() -> None:
    classes = ("ant", "bee", "cow")
    some, none = in_takes([[5, 5], [5, 5], [7]]), in_takes([[]])
    train, held = hold_out(some, 0.2, np.random.default_rng(0))
    several, single = Data(classes, train, held, ()).notes()
    assert several.startswith("27 labelled images are 5 takes")
    assert several.endswith("those held out show 1 of 3 classes")
    assert "none can be held out for validation: 1 of 3;" in single
    assert Data(classes, in_takes([[1, 1], [1] * 9, [1]]), none, ()).notes() == []
    assert Data(classes, in_takes([[1] * 9, [1] * 8 + [2], [1]]), none, ()).notes() == []


# --- images in a file


def test_images_in_a_file_are_those_that_were_written() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH + 9, 4, 4, 3), np.uint8)
    there, labels = np.arange(len(pixels)), np.arange(len(pixels)) % 3
    stored = StoredImages(io.BytesIO(pixels.tobytes()), 4, there, labels, there // 2)
    assert np.array_equal(list(pictures(stored)), pixels)
    some = stored.select(np.array([70, 3, 12]))
    for found, index in ((some[1:], [3, 12]), (stored[np.array([70, 3])], [70, 3]), (stored[labels == 1], labels == 1)):
        assert np.array_equal(found.pixels, pixels[index])
        assert np.array_equal(found.labels, labels[index])
        assert np.array_equal(found.takes, there[index] // 2)


def test_inputs_are_normalised_a_few_at_a_time() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2 * FEW + 3, 4, 4, 3), np.uint8)
    how = Preprocessing(4, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    inputs = Inputs(Images(pixels, np.zeros(len(pixels), np.int64)), how)
    assert np.array_equal(inputs[:], normalise(pixels, how))
    assert np.array_equal(inputs[np.array([9, 2])], normalise(pixels[[9, 2]], how))
    assert inputs[:0].shape == (0, 3, 4, 4)


def test_a_model_is_asked_of_fewer_images_where_they_are_large() -> None:
    assert [asked(side) for side in (8, 32, 64, 128, 224, 1024)] == [BATCH, BATCH, BATCH, 16, FEW, FEW]


def test_a_file_that_was_cut_short_is_no_black_image() -> None:
    one = np.arange(1)
    stored = StoredImages(io.BytesIO(bytes(47)), 4, one, one, one)
    with pytest.raises(ValueError, match="reshape"):
        stored[:]


# --- an image folder


def test_a_folder_is_read_as_the_device_would(tmp_path: Path) -> None:
    data = from_folder(photos(tmp_path))
    assert data.classes == ("ant", "bee", "cow")
    train = data.train[:]
    assert train.pixels.shape == (31, 8, 8, 3)
    assert train.pixels.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels).tolist() == [10, 20, 1]
    of_ants = train.pixels[train.labels == 0]
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


def test_frames_of_a_take_are_on_one_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for take in range(5):
            scene = cv2.resize(rng.uniform(20, 230, (5, 5, 3)).astype(np.float32), (16, 16))
            for frame in range(10):
                noisy = scene + 2 * frame + rng.normal(0, 3, scene.shape)
                cv2.imwrite(str(tmp_path / name / f"{take:03}_{frame:03}.png"), np.clip(noisy, 0, 255).astype(np.uint8))
    data = from_folder(tmp_path, validation=0.2)
    assert np.bincount(data.validation.labels).tolist() == [10, 10]
    assert len(np.unique(data.validation.takes)) == 2
    assert len(np.unique(data.train.takes)) == 8
    assert not set(data.validation.takes) & set(data.train.takes)
    assert data.notes()[0].startswith("100 labelled images are 10 takes")


def test_progress_counts_every_image(tmp_path: Path) -> None:
    ticks: list[tuple[int, int]] = []
    load(str(photos(tmp_path)), 1.0, 0.0, sized(8), 0, lambda done, total: ticks.append((done, total)))
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
    data = load("digits", 0.1, 0.2, sized(size), 0, quiet)
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
    data = load("digits", 0.1, 0.1, sized(8), 0, quiet)
    assert data.stream is not None
    changes = np.count_nonzero(np.diff(data.stream.labels))
    assert changes < len(data.stream) / 30  # shuffled images would change nine times out of ten


def test_all_digits_labelled_leave_no_stream() -> None:
    pytest.importorskip("sklearn")
    assert load("digits", 1.0, 0.1, sized(8), 0, quiet).stream is None


@pytest.mark.parametrize("name", ["none", "Background"])
def test_a_folder_of_things_of_no_class_is_no_class(name: str, tmp_path: Path) -> None:
    loaded = from_folder(photos(tmp_path / "three", {"apple": 6, name: 4, "pear": 5}), validation=0.2, size=12)
    assert loaded.classes == ("apple", "pear")
    assert (len(loaded.train) + len(loaded.validation), set(loaded.train.labels)) == (11, {0, 1})
    files = sorted((tmp_path / "three" / name).iterdir())
    assert each(loaded.none) == {cv2.imread(str(file)).tobytes() for file in files}
    photos(tmp_path / "one", {"apple": 6, name: 4})
    with pytest.raises(DataError, match=r"expected 2 or more .* for things of no class, found only 'apple'"):
        from_folder(tmp_path / "one")


def test_the_same_picture_in_two_classes_is_named(tmp_path: Path) -> None:
    root = photos(tmp_path, {"apple": 8, "pear": 8})
    for i in range(8):
        shutil.copy(root / "apple" / f"{i:02}.png", root / "pear" / f"{i:02}.png")
    loaded = from_folder(root, validation=0.25, size=12)
    split = [{Path(pair[k]).name for pair in loaded.alike} for k in (0, 1)]
    assert split[0] == split[1]
    assert len(loaded.alike) > 0
    assert {pair[0].split("/")[0] for pair in loaded.alike} <= {"apple", "pear"}
    (words,) = loaded.notes()
    first = " and ".join(loaded.alike[0])
    assert words.startswith("pictures that are nearly the same though of two classes, one for training and one for ")
    assert f": {len(loaded.alike)} ({first}" in words
    assert from_folder(photos(tmp_path / "others"), validation=0.25, size=12).alike == ()
