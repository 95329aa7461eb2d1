"""Which pictures are frozen or black, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.sources._faults import TOLD_S, Inspector, fault_of
from deco_runtime.types import Frame, Notice
from hypothesis import given, settings
from hypothesis import strategies as st

SCENE = np.linspace(0, 255, 120 * 160 * 3).reshape(120, 160, 3)


def noisy(scene: np.ndarray, deviation: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, deviation, scene.shape)
    return np.clip(np.rint(scene + noise), 0, 255).astype(np.uint8)


@given(seed=st.integers(0, 10_000), deviation=st.floats(0.3, 12), brightness=st.floats(0.25, 1.0))
@settings(max_examples=60)
def test_a_still_scene_before_a_living_sensor_is_not_frozen(seed: int, deviation: float, brightness: float) -> None:
    a, b = (noisy(SCENE * brightness, deviation, 2 * seed + i) for i in range(2))
    assert fault_of(b, a) is None


@given(row=st.integers(0, 119), column=st.integers(0, 159), channel=st.integers(0, 2))
@settings(max_examples=60)
def test_one_value_in_one_pixel_is_a_new_picture(row: int, column: int, channel: int) -> None:
    a = SCENE.astype(np.uint8)
    b = a.copy()
    b[row, column, channel] ^= 1
    assert fault_of(a, a.copy()) == "frozen"
    assert fault_of(b, a) is None


@pytest.mark.parametrize("shape", [(8, 6, 3), (48, 64, 3), (480, 640, 3), (1080, 1920, 3), (1, 1, 3)])
def test_black_and_plain_pictures_of_any_size(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    for dark in (np.zeros(shape, np.uint8), rng.integers(0, 14, shape, dtype=np.uint8), np.full(shape, 90, np.uint8)):
        assert fault_of(dark, None) == "black"
    if shape[0] > 1:
        assert fault_of(rng.integers(0, 60, shape, dtype=np.uint8), None) is None  # dim, but there
    hot = rng.integers(0, 9, shape, dtype=np.uint8)
    hot[0, 0] = 255 if shape[0] > 40 else 0  # a hot pixel in a black picture
    assert fault_of(hot, None) == "black"


def test_the_first_picture_and_one_of_another_size_are_new() -> None:
    picture = SCENE.astype(np.uint8)
    assert fault_of(picture, None) is None
    assert fault_of(picture, picture[::2, ::2]) is None


def test_what_lasts_is_said_once_and_so_is_its_end() -> None:
    inspector = Inspector("camera")
    pictures = [noisy(SCENE, 2, i) for i in range(4)]
    black = np.zeros_like(pictures[0])
    told: list[tuple[float, str]] = []
    faults = []

    def show(picture: np.ndarray, time: float) -> None:
        for item in inspector.look(Frame(picture, time)):
            if isinstance(item, Notice):
                told.append((time, item.action))
            else:
                faults.append(item.fault)

    for time in range(4):  # each picture twice, as some drivers do in dim light
        show(pictures[time], time)
        show(pictures[time], time + 0.5)
    assert faults == [None, "frozen"] * 4
    assert told == []
    for time in range(4, 30):
        show(pictures[3], time)
    show(pictures[0], 30)
    for time in range(31, 60):
        show(black, time)
    show(pictures[0], 60)
    assert told == [(3.5 + TOLD_S + 0.5, "frozen"), (30, "cleared"), (31 + TOLD_S, "black"), (60, "cleared")]
    assert inspector.counts == {"frozen": 4 + 26, "black": 29}
