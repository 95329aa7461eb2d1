"""Streams have the runs that were asked for, and every image as often as asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from deco_benchmarks.streams import StreamSpec, coming, order, parse, severity

LABELS = np.repeat(np.arange(4), 60)


def run_lengths(labels: np.ndarray) -> list[int]:
    return [len(run) for run in np.split(labels, np.flatnonzero(np.diff(labels)) + 1)]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 100),
)
@settings(max_examples=60)
def test_every_image_comes_once_per_pass(labels: list[int], stc: int, interleave: int, passes: int, seed: int) -> None:
    spec = StreamSpec(stc, interleave, passes)
    found = order(np.array(labels), spec, seed)
    for part in np.split(found, passes):
        assert sorted(part.tolist()) == list(range(len(labels)))
    assert np.array_equal(found, order(np.array(labels), spec, seed))


def test_runs_are_as_long_as_asked_but_for_the_first() -> None:
    lengths = run_lengths(LABELS[order(LABELS, StreamSpec(stc=20), seed=3)])
    assert lengths[0] < 20
    assert set(lengths[1:-1]) == {20}
    assert sum(lengths) == 240


def test_first_runs_differ_so_that_segments_are_not_aligned() -> None:
    first = {run_lengths(LABELS[order(LABELS, StreamSpec(stc=20), seed)])[0] for seed in range(20)}
    assert len(first) > 5


def test_aligned_streams_begin_with_a_whole_run() -> None:
    found = {tuple(run_lengths(LABELS[order(LABELS, parse("stc=20,aligned=1"), seed)])) for seed in range(5)}
    assert found == {(20,) * 12}


def test_mixed_scenes_show_their_classes_in_equal_shares() -> None:
    labels = LABELS[order(LABELS, StreamSpec(stc=60, interleave=2), seed=1)]
    early = labels[:40]
    assert len(np.unique(early)) == 2
    assert min(np.bincount(early)[np.unique(early)]) >= 8
    assert np.mean(np.diff(early) != 0) > 0.3  # frame by frame, not run by run


def test_passes_differ() -> None:
    found = order(LABELS, StreamSpec(passes=2), seed=0)
    assert not np.array_equal(found[:240], found[240:])


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("stc=500", StreamSpec()),
        ("stc=100,interleave=2,passes=3", StreamSpec(100, 2, 3)),
        ("passes=2", StreamSpec(passes=2)),
        ("recorded", StreamSpec(recorded=1)),
    ],
)
def test_specs_are_read(text: str, spec: StreamSpec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "stc", "stc=0", "stc=-1", "stc=1.5", "speed=2", "stc=1,stc=2", "stc=1,,", "drift=6", "aligned=2"),
        *("recorded,stc=5", "recorded=1"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected --stream"):
        parse(text)


def test_drift_grows_in_a_straight_line() -> None:
    found = severity(np.arange(101), 101, parse("drift=3"))
    np.testing.assert_allclose(found, np.linspace(0, 3, 101), rtol=1e-6)
    assert not severity(np.arange(5), 5, StreamSpec()).any()


def test_recorded_is_alone_and_by_name() -> None:
    with pytest.raises(UsageError, match=r"as recorded alone, or as KEY=NUMBER.* but found 'stc=5,recorded'"):
        parse("stc=5,recorded")
    files = [Path(f"{name}.jpg") for name in ("cat/1_10", "cat/1_9", "dog/1_8", "dog/2_0")]
    found = order(np.array([0, 0, 1, 1]), parse("recorded"), 5, files)
    assert found.tolist() == [2, 1, 0, 3]
    assert not severity(np.arange(4), 4, parse("recorded")).any()


def test_only_the_classes_that_come() -> None:
    spec = parse("stc=20,classes=2,passes=2")
    found = order(LABELS, spec, seed=1)
    assert sorted(found.tolist()) == sorted(2 * list(range(120)))
    assert LABELS[coming(LABELS, spec)].max() == 1
    assert set(run_lengths(LABELS[found])[1:4]) == {20}
    assert np.array_equal(order(LABELS, parse("classes=4"), 1), order(LABELS, parse("stc=500"), 1))
