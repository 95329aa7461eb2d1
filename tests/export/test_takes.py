"""Takes are told from single photographs, whatever the files are called."""

from __future__ import annotations

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")

from deco_export.takes import SAME, describe, find_takes  # noqa: E402
from deco_runtime.types import Ints, Pixels  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SIZE, FRAMES = 16, 20


def scene(rng: np.random.Generator, side: int) -> np.ndarray:
    """A smooth random picture, (side, side, 3) float32 0 … 255."""
    coarse = rng.uniform(0, 255, (5, 5, 3)).astype(np.float32)
    return np.clip(cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC), 0, 255)


def photographs(rng: np.random.Generator, count: int) -> list[Pixels]:
    return [scene(rng, SIZE).astype(np.uint8) for _ in range(count)]


def take(rng: np.random.Generator, frames: int = FRAMES) -> list[Pixels]:
    """Frames of a camera that moves over a scene, with some noise, while it grows brighter."""
    wide = scene(rng, 2 * SIZE)
    right, down = rng.permutation(2)
    found = []
    for i in range(frames):
        at = round(0.6 * SIZE * i / frames)
        cut = wide[at * down : at * down + SIZE, at * right : at * right + SIZE]
        found.append(np.clip(cut * (0.8 + 0.2 * i / frames) + rng.normal(0, 3, cut.shape), 0, 255).astype(np.uint8))
    return found


def takes_of_two_classes(count: int = 3, seed: int = 0) -> tuple[Pixels, Ints, Ints]:
    """Pixels, labels and true takes of `count` takes a class."""
    rng = np.random.default_rng(seed)
    pixels = np.stack([frame for _ in range(2 * count) for frame in take(rng)])
    truth = np.repeat(np.arange(2 * count), FRAMES)
    return pixels, truth // count, truth


def same(a: Ints, b: Ints) -> bool:
    """Whether two groupings are the same, whatever the numbers."""
    return bool(((a[:, None] == a) == (b[:, None] == b)).all())


NUMBERINGS = {
    "take and frame": lambda i: f"{i // FRAMES:04}_{i % FRAMES:05}.jpg",
    "take and frame, again in every class": lambda i: f"clip{i // FRAMES % 3}-frame-{i % FRAMES}.png",
    "one number for all": lambda i: f"IMG_{i:04}.jpg",
    "one number in each class": lambda i: f"frame{i % (3 * FRAMES)}.jpg",
    "every seventh frame": lambda i: f"{7 * i:06}.png",
    "seconds and their parts": lambda i: f"{1706711130 + i // 30}.{i % 30:02}.png",
    "time stamps": lambda i: f"cam_2024013{i // FRAMES}_1425{i % FRAMES:02}.jpg",
    "time stamps of a camera with a number": lambda i: f"cam1_2024013{i // FRAMES}-1425{i % FRAMES:02}125.jpg",
    "folders": lambda i: f"take{i // FRAMES}/{i * 7919 % 1000}.jpg",
}


@pytest.mark.parametrize("numbering", NUMBERINGS)
def test_takes_are_found_whole(numbering: str) -> None:
    pixels, labels, truth = takes_of_two_classes()
    found = find_takes([NUMBERINGS[numbering](i) for i in range(len(truth))], labels, describe(pixels))
    assert found.dtype == np.int64
    assert found.tolist() == truth.tolist()


def test_a_share_of_the_frames_is_enough() -> None:
    pixels, labels, truth = takes_of_two_classes(count=4)
    kept = np.sort(np.random.default_rng(0).permutation(len(truth))[: len(truth) // 4])
    names = [f"{truth[i]}_{i}.jpg" for i in kept]
    assert same(find_takes(names, labels[kept], describe(pixels[kept])), truth[kept])


@pytest.mark.parametrize("name", ["{:05}.jpg", "n02979186_{}.JPEG", "IMG_20240131_14{:04}.jpg", "{}/a.jpg"])
def test_numbered_photographs_are_each_their_own_take(name: str) -> None:
    pixels = np.stack(photographs(np.random.default_rng(0), 300))
    names = [name.format(60 * (i // 30) + i % 30) for i in range(300)]
    assert find_takes(names, np.arange(300) // 150, describe(pixels)).tolist() == list(range(300))


def test_photographs_that_resemble_each_other_are_no_take() -> None:
    rng = np.random.default_rng(0)
    shapes = [scene(rng, SIZE), scene(rng, SIZE)]  # as the ones and noughts of MNIST
    pixels = np.stack([np.clip(0.6 * shapes[i // 100] + 0.4 * scene(rng, SIZE), 0, 255) for i in range(200)])
    found = find_takes([f"{i:03}.png" for i in range(200)], np.arange(200) // 100, describe(pixels.astype(np.uint8)))
    assert len(np.unique(found)) > 190


def test_a_folder_of_photographs_is_a_take_since_somebody_made_it_one() -> None:
    pixels = np.stack(photographs(np.random.default_rng(0), 6))
    names = ["monday/1.jpg", "monday/2.jpg", "tuesday/1.jpg", "3.jpg", "monday/1.jpg", "4.jpg"]
    assert find_takes(names, np.array([0, 0, 0, 0, 1, 1]), describe(pixels)).tolist() == [0, 0, 1, 2, 3, 4]


def test_copies_are_of_one_take_within_a_class_whatever_their_names() -> None:
    pixels = np.stack(photographs(np.random.default_rng(0), 4))
    brighter = np.clip(pixels.astype(np.float32) + 4, 0, 255).astype(np.uint8)
    everything = np.concatenate([pixels, brighter, pixels])
    names = ["tree", "hill", "lake", "road", "copy of tree", "kopie", "c", "x (2)", "p", "q", "r", "s"]
    found = find_takes(names, np.repeat([0, 0, 1], 4), describe(everything))
    assert found.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]


def test_a_pause_between_time_stamps_starts_a_new_sequence() -> None:
    """Not even alike neighbours are linked over it; without stamps they are."""
    pixels, labels, truth = takes_of_two_classes()
    second = np.arange(len(truth)) % FRAMES
    stamps = [f"20240131_{10 + k}{s:02}{s // 10 * 5:02}.jpg" for k, s in zip(truth, second, strict=True)]
    found = find_takes(stamps, labels, describe(pixels))
    assert len(np.unique(found)) > 2 * len(np.unique(truth))
    assert all(len(np.unique(truth[found == k])) == 1 for k in np.unique(found))
    wrong = [name.replace("20240131", "20241331") for name in stamps]  # no such month: a number like any other
    assert len(np.unique(find_takes(wrong, labels, describe(pixels)))) < len(np.unique(found))


def test_one_frame_that_fails_parts_no_take() -> None:
    pixels, labels, truth = takes_of_two_classes()
    pixels[[7, 50]] = np.stack(photographs(np.random.default_rng(9), 2))
    assert same(find_takes([f"{i:04}.jpg" for i in range(len(truth))], labels, describe(pixels)), truth)


@settings(max_examples=40)
@given(st.data())
def test_the_order_of_the_files_is_no_matter(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    names = data.draw(
        st.lists(st.from_regex(r"\A([ab]/)?[ab0-3_-]{1,6}\.png\Z"), min_size=count, max_size=count, unique=True)
    )
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pool = np.stack([*take(rng, 10), *photographs(rng, 10)])
    pixels = pool[rng.integers(0, len(pool), count)]
    found = find_takes(names, labels, describe(pixels))
    assert found.tolist() == [sorted(set(found.tolist()), key=found.tolist().index).index(k) for k in found]
    assert all(len(np.unique(labels[found == k])) == 1 for k in np.unique(found))
    order = rng.permutation(count)
    assert same(find_takes([names[i] for i in order], labels[order], describe(pixels[order])), found[order])
    folders = [name.split("/")[0] if "/" in name else None for name in names]
    for a in range(count):
        for b in range(a):
            if labels[a] == labels[b] and folders[a] is not None and folders[a] == folders[b]:
                assert found[a] == found[b]
            if labels[a] == labels[b] and (pixels[a] == pixels[b]).all():
                assert found[a] == found[b]


def test_one_image_and_blank_images() -> None:
    assert find_takes(["a.jpg"], np.array([3]), describe(np.zeros((1, 8, 8, 3), np.uint8))).tolist() == [0]
    blank = np.stack([np.full((8, 8, 3), v, np.uint8) for v in (0, 0, 255, 128)])
    assert find_takes([f"{i}.jpg" for i in range(4)], np.zeros(4, np.int64), describe(blank)).tolist() == [0, 0, 1, 2]


def test_the_distance_of_pictures() -> None:
    a, b = photographs(np.random.default_rng(0), 2)
    x = describe(np.stack([a, a // 2 + 20, 255 - a, b, a + (a < 250) * np.uint8(5)]))
    assert x.dtype == np.float32
    pattern = np.linalg.norm(x[:, None, :192] - x[None, :, :192], axis=2)
    assert pattern[0, 1] < 0.05  # contrast and brightness do not count in the pattern
    assert pattern[0, 2] == pytest.approx(2, abs=1e-3)
    assert pattern[0, 3] == pytest.approx(np.sqrt(2 - 2 * np.corrcoef(x[0, :192], x[3, :192])[0, 1]), abs=1e-3)
    assert np.linalg.norm(x[0] - x[4]) < SAME < np.linalg.norm(x[0] - x[1])
