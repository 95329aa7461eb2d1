"""The bus: who hears of what happens, in which order, and what a listener cannot do to a run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Bus, Hears, Listener
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.outlet import MOST_BYTES, Outlet
from deco_runtime.telemetry.terminal_view import View
from deco_runtime.types import Frame

FRAME, OVER = happened.FramePredicted("cat", 0.9, Frame(np.zeros((2, 2, 3), np.uint8), 0.0), {}), happened.PauseOver(4)
SCORED = happened.ModelScored("before", 0, 0.75, 0.5, 40)


class Diary(Listener):
    """What somebody outside the package would write: two kinds, typed, into a list."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def hears(self) -> Hears:
        return {happened.ModelScored: self._scored, happened.PauseOver: self._pause_over}

    def close(self) -> None:
        self.told.append("closed")

    def _scored(self, event: happened.ModelScored) -> None:
        self.told.append(f"{event.deployed - event.frozen:+.0%} on {event.images}")

    def _pause_over(self, event: happened.PauseOver) -> None:
        self.told.append(f"over at {event.segment}")


class Broken(Listener):
    """Raises whatever it is asked, in words that raise too."""

    class Error(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even words")

    def hears(self) -> Hears:
        return {happened.ModelScored: self._fail, happened.PauseOver: self._fail}

    def lost(self) -> dict[str, int]:
        raise self.Error

    def close(self) -> None:
        raise self.Error

    def _fail(self, _: object) -> None:
        raise self.Error


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pipe in place of standard error, which is full at once because nobody reads it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    out = Outlet(writing)
    monkeypatch.setattr("deco_runtime.telemetry.terminal_view.stderr", lambda: out)
    yield
    os.close(reading)
    out.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_listener_outside_the_package_hears_what_it_asked_for() -> None:
    diary = Diary()
    with Bus(diary) as bus:
        for event in (FRAME, SCORED, happened.Stepped(), OVER):
            bus.emit(event)
    assert diary.told == ["+25% on 40", "over at 4", "closed"]


def test_what_happens_is_heard_in_order_and_by_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the listeners of the run and by another: each hears all of its kinds, as they came."""
    log, diary = EventLog(tmp_path / "e"), Diary()
    with Bus(View("test"), log, diary) as bus:
        for segment in range(200):
            bus.emit(happened.PauseOver(segment))
            bus.emit(happened.Said("nothing for programs"))
            bus.emit(happened.SaveRefused("no disk", again=segment > 0))
        assert bus.lost() == {"lost_events": 0, "lost_lines": 0}
    assert diary.told == [*(f"over at {segment}" for segment in range(200)), "closed"]
    found = [(line["event"], line.get("segment", line.get("reason"))) for line in lines(tmp_path / "e")]
    assert found == [pair for segment in range(200) for pair in (("guard", segment), ("save", "no disk"))]
    said = capsys.readouterr().err.splitlines()
    assert said[:4] == [
        "the pause is over: learning goes on",
        "nothing for programs",
        "warning: no disk",
        "the pause is over: learning goes on",
    ]
    assert len(said) == 401


def test_a_listener_that_raises_ends_nothing_and_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, diary = EventLog(tmp_path / "e"), Diary()
    with Bus(Broken(), diary, log) as bus:
        for event in (SCORED, OVER, FRAME):
            bus.emit(event)
        assert bus.lost() == {"lost_events": 0}
    assert diary.told == ["+25% on 40", "over at 4", "closed"]
    assert [line["event"] for line in lines(tmp_path / "e")] == ["score", "guard"]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("warning: expected Broken to take ModelScored, but it failed with ")
    assert said.endswith("; the run goes on")


def test_a_signal_is_no_failure_of_a_listener() -> None:
    """What Ctrl-C raises goes on to whoever ends the program."""

    class Interrupted(Diary):
        def _pause_over(self, event: happened.PauseOver) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bus(Interrupted()).emit(OVER)


def test_readers_that_sleep_hold_up_nothing(sleeping: None, tmp_path: Path) -> None:
    """A full terminal and a full named pipe; what is too much is dropped and counted, and others hear everything."""
    os.mkfifo(tmp_path / "e")
    pipe = os.open(tmp_path / "e", os.O_RDWR)  # never read
    diary, long = Diary(), happened.Said("word " * 1000)
    bus = Bus(View("test"), EventLog(tmp_path / "e"), diary)
    count = 2 * MOST_BYTES // len(long.words)
    begun = time.monotonic()
    for _ in range(count):
        bus.emit(long)
        bus.emit(happened.SaveRefused(long.words, again=True))
        bus.emit(OVER)
    assert time.monotonic() - begun < 10
    assert len(diary.told) == count
    lost = bus.lost()
    assert lost["lost_lines"] > count / 4
    assert lost["lost_events"] > count / 4
    os.close(pipe)


def test_two_threads_at_a_time(tmp_path: Path) -> None:
    """The main one predicts while the learner's tells what it does: nothing is lost, and each one's order stays."""
    log = EventLog(tmp_path / "e")
    bus, each = Bus(View("test"), log), 500

    def tell(first: int) -> None:
        for number in range(first, first + each):
            bus.emit(FRAME)
            bus.emit(happened.PauseOver(number))

    threads = [threading.Thread(target=tell, args=(first,)) for first in (0, each)]
    with bus:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [line["segment"] for line in lines(tmp_path / "e")]
    assert sorted(found) == list(range(2 * each))
    assert all([n for n in found if n // each == i] == list(range(i * each, (i + 1) * each)) for i in (0, 1))


def test_what_nobody_hears_is_not_told() -> None:
    bus = Bus(EventLog(None))  # as without --events
    bus.emit(SCORED)
    assert bus.lost() == {"lost_events": 0}
    assert EventLog(None).hears() == {}
    Bus().emit(SCORED)


def test_every_kind_is_heard_by_someone_or_is_known_not_to_be() -> None:
    """A record that the run emits and that no listener hears is a slip, unless it is here for those to come."""
    kinds = {
        kind for kind in vars(happened).values() if isinstance(kind, type) and kind.__module__ == happened.__name__
    }
    notifier = {happened.Stepped, happened.RunEnding}  # on a machine with systemd
    heard = {*View("test").hears(), *notifier, happened.StateSaved}
    assert kinds - heard == {happened.SegmentGivenUp, happened.AnswersJudged}  # counted, and the page's own


def test_a_learner_may_call_its_own_figures_what_it_likes(tmp_path: Path) -> None:
    """What every segment has keeps its place and its value; the other figures are there too."""
    own = {"time": 1, "event": "x", "number": -1, "kept": 2.0, "warmth": 0.5}
    report = SegmentReport(active=[1], kept=0.75, figures=own)
    file = tmp_path / "events.jsonl"
    with Bus(EventLog(file)) as bus:
        bus.emit(happened.SegmentLearned(3, False, 9, 0, 0, None, 0, {"cat": 9}, None, ["cat"], report))
    (line,) = [json.loads(each) for each in file.read_text("utf-8").splitlines()]
    assert line["event"] == "segment"
    assert isinstance(line["time"], str)
    assert (line["number"], line["kept"], line["active"], line["warmth"]) == (3, 0.75, ["cat"], 0.5)
