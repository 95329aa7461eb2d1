"""The frames of the last minutes: bounded in number, bytes and pace, and found again by number and by time."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.running import recent as module
from deco_runtime.running.recent import APART_S, MOST, PER_SECOND, Recent
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.happenings import FramePredicted, SourceOpened
from deco_runtime.types import Fault, Frame
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

PICTURE = np.zeros((4, 4, 3), np.uint8)


def see(
    recent: Recent, at: float, label: str | None = "a", stream: int = 0, size: int = 3, fault: Fault | None = None
) -> None:
    """One frame, taken then, through a bus as in a run."""
    observed = {"phi": np.full((1, size), at, np.float32)}
    Bus(recent).emit(FramePredicted(label, 0.5, Frame(PICTURE, at, fault=fault, stream=stream), observed))


@given(st.lists(st.tuples(st.floats(0.001, 6), st.sampled_from(["a", "b", None]), st.integers(0, 1)), max_size=60))
def test_at_most_four_a_second_of_each_stream_and_takes_without_a_pause(
    steps: list[tuple[float, str | None, int]],
) -> None:
    recent, now = Recent(), 100.0
    for step, label, stream in steps:
        now += step
        see(recent, now, label, stream)
    kept = recent.frames()
    assert [each.number for each in kept] == list(range(1, len(kept) + 1))
    of_take: dict[int, set[int]] = {}
    for stream in (0, 1):
        own = [each for each in kept if each.stream == stream]
        for before, after in itertools.pairwise(own):
            gap = after.time - before.time
            assert gap >= 1 / PER_SECOND
            assert (before.take == after.take) == (gap < APART_S)
        for each in own:
            of_take.setdefault(each.take, set()).add(each.stream)
    assert all(len(found) == 1 for found in of_take.values())


def test_a_frame_that_comes_too_soon_is_passed_over_whatever_it_is_answered() -> None:
    """Else a scene whose answer flickers would push minutes out within seconds."""
    recent = Recent()
    for i in range(300):
        see(recent, 10 + i / 30, "ab"[i % 2])
    assert len(recent.frames()) <= 10 * PER_SECOND + 1


def test_no_more_than_so_many_are_kept() -> None:
    recent = Recent()
    for i in range(MOST + 50):
        see(recent, 10 + i)
    kept = recent.frames()
    assert len(kept) == MOST
    assert (kept[0].number, kept[-1].number) == (51, MOST + 50)


def test_no_more_bytes_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    recent = Recent()
    for i in range(30):
        see(recent, 10 + i, size=100)
    assert len(recent.frames()) == 10
    see(recent, 100, size=10_000)  # one that is larger than all of it is kept alone
    assert [each.number for each in recent.frames()] == [31]
    see(recent, 101, size=100)
    assert [each.number for each in recent.frames()] == [32]
    assert recent._bytes == 400


def test_frames_with_a_fault_or_nothing_observed_are_not_kept() -> None:
    recent = Recent()
    see(recent, 10, fault="black")
    see(recent, 11, fault="frozen")
    Bus(recent).emit(FramePredicted("a", 0.5, Frame(PICTURE, 12.0), {}))
    assert recent.frames() == []
    see(recent, 12.1)
    assert len(recent.frames()) == 1


def test_a_clock_that_is_another_ones_does_not_stop_it() -> None:
    """Frames of several processes: an earlier time is no reason to keep none until it is caught up with."""
    recent = Recent()
    for at in (50.0, 20.0, 20.1, 20.5):
        see(recent, at)
    assert [each.time for each in recent.frames()] == [50.0, 20.0, 20.5]


def test_the_last_seconds_by_the_clock() -> None:
    recent, now = Recent(), time.monotonic()
    for ago in (100.0, 30.0, 9.0, 8.0, 0.5):
        see(recent, now - ago)
    assert recent.last(10).tolist() == [3, 4, 5]
    assert recent.last(10).dtype == np.int64
    assert recent.last(1000).tolist() == [1, 2, 3, 4, 5]
    assert recent.last(0.001).tolist() == []


def test_the_last_seconds_of_a_recording_end_with_its_newest_frame() -> None:
    recent = Recent()
    Bus(recent).emit(SourceOpened("clip", False, 0, {}))
    for at in (0.0, 5.0, 58.0, 60.0):
        see(recent, at)
    assert recent.last(10).tolist() == [3, 4]


def test_a_take_ends_where_the_picture_changes() -> None:
    recent = Recent()
    for i, phi in enumerate(([1, 0, 0], [1, 0.4, 0], [0, 0, 1], [0, 0.2, 1], [0, 0, -1])):
        observed = {"phi": np.array([phi], np.float32)}
        Bus(recent).emit(FramePredicted("a", 0.5, Frame(PICTURE, 10.0 + i), observed))
    assert [each.take for each in recent.frames()] == [1, 1, 2, 2, 3]


def test_what_was_observed_comes_by_number_in_the_order_of_the_frames() -> None:
    recent = Recent()
    for i, label in enumerate("aabba"):
        see(recent, 10.0 + i, label)
    observed, takes = recent.observed(np.array([5, 2, 3, 99, 2]))
    assert observed["phi"][:, 0].tolist() == [11, 12, 14]
    assert takes.tolist() == [1, 1, 1]
    for none in ([99], []):
        with pytest.raises(UsageError) as refused:
            recent.observed(np.array(none, np.int64))
        one_sentence(str(refused.value))


def test_the_picture_is_made_of_kept_frames_only() -> None:
    made = list[int]()
    recent = Recent(lambda pixels: bytes(made.append(1) or [7]))
    for at in (10.0, 10.1, 10.2, 11.0):
        see(recent, at)
    assert len(made) == 2
    assert [each.picture for each in recent.frames()] == [b"\x07"] * 2


def test_it_may_be_read_while_frames_come() -> None:
    recent, stop = Recent(), threading.Event()

    def camera() -> None:
        at = 0.0
        while not stop.wait(0.0002):  # or what is asked for below would be gone before it is found
            see(recent, at := at + 1)

    thread = threading.Thread(target=camera)
    thread.start()
    try:
        for _ in range(300):
            numbers = [each.number for each in recent.frames()]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
            if numbers:
                recent.observed(np.array(numbers[-3:]))
    finally:
        stop.set()
        thread.join()
