"""Balanced accuracy, counts by class, and the sentences about classes that cannot be judged."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from deco_export.judged import FEW, judge, near_duplicates
from deco_export.takes import describe
from hypothesis import given
from hypothesis import strategies as st

ABC = ("ant", "bee", "cow")


def labels(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)


def test_a_model_that_knows_one_class_only() -> None:
    """Of 100 to 1 to 1: three in four images are right, and of the classes one in three."""
    held = labels(30, 10, 0)
    judged = judge(np.zeros(40, np.int64), held, labels(300, 100, 3), ABC)
    assert judged.accuracy == 0.75
    assert judged.balanced == 0.5
    assert judged.by_class() == {
        "ant": {"trained": 300, "held_out": 30, "right": 30},
        "bee": {"trained": 100, "held_out": 10, "right": 0},
        "cow": {"trained": 3, "held_out": 0, "right": 0},
    }
    assert judged.warnings() == [
        "nothing is held out of 'cow', so that how well it is known cannot be told; add images",
        "training images are 300 of 'ant' and 3 of 'cow'; go by the balanced accuracy, and add images of the small "
        "classes",
        "no held-out image of 'bee': 10 is answered right; look at its images",
        "accuracy is 75.0% over images, but 50.0% over classes, which says how well a class is known whatever its "
        "share",
    ]


def test_nothing_to_say_where_all_classes_can_be_judged() -> None:
    held = labels(20, 20, 20)
    judged = judge(held, held, labels(80, 90, 100), ABC)
    assert (judged.accuracy, judged.balanced) == (1.0, 1.0)
    assert judged.warnings() == []


def test_nothing_held_out() -> None:
    nothing = np.empty(0, np.int64)
    judged = judge(nothing, nothing, labels(5, 5, 5), ABC)
    assert judged.accuracy is judged.balanced is None
    (words,) = judged.warnings()
    assert words.startswith("nothing is held out of 3 of 3 classes ('ant', 'bee', 'cow'), so that how well they are")


def test_few_images() -> None:
    held = labels(1, FEW - 1, FEW)
    (words,) = judge(held, held, labels(9, 9, 9), ABC).warnings()
    assert words.startswith(f"fewer than {FEW} images are held out of 2 of 3 classes ('ant': 1, 'bee': 9), so")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_balanced_accuracy_by_its_definition(pairs: list[tuple[int, int]]) -> None:
    answers, held = np.array(pairs, np.int64).T
    judged = judge(answers, held, held, tuple("abcde"))
    shares = [np.mean(answers[held == c] == c) for c in np.unique(held)]
    assert judged.balanced == pytest.approx(np.mean(shares))
    assert judged.accuracy == pytest.approx(np.mean(answers == held))
    assert all("\n" not in words and ". " not in words for words in judged.warnings())


def test_near_duplicates_are_found_and_others_not() -> None:
    rng = np.random.default_rng(0)
    scenes = [cv2.resize(rng.integers(0, 256, (5, 5, 3), np.uint8), (32, 32)) for _ in range(8)]
    noisy = np.clip(scenes[3].astype(int) + rng.integers(-3, 4, (32, 32, 3)), 0, 255).astype(np.uint8)
    train = describe(np.stack(scenes[:6]))
    validation = describe(np.stack([scenes[6], noisy, scenes[7], scenes[0]]))
    assert near_duplicates(train, validation).tolist() == [[0, 3], [3, 1]]
    empty = validation[:0]
    assert near_duplicates(train, empty).shape == near_duplicates(empty, train).shape == (0, 2)
