"""Several live sources into one learner: real streams over loopback, real capture processes, real runs."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import SourceError
from deco_runtime.learning import registry
from deco_runtime.learning.learner import Learner
from deco_runtime.preprocess import preprocess
from deco_runtime.running.learner_thread import Worker
from deco_runtime.running.scenes import Scenes
from deco_runtime.sources import _live
from deco_runtime.sources.together import Together, open_together, stream_names
from deco_runtime.sources.view import Roi
from deco_runtime.sources.view import View as Looked
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.terminal_view import View
from deco_runtime.types import Frame, Notice, Pixels, Segment
from fake_engine import fresh
from mjpeg_server import mjpeg_server
from processes import events, started, wait_for
from rich.console import Console


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)  # FFmpeg would ask it for the loopback server
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 0.05)


def coloured(channel: int, i: int) -> Pixels:
    """Mostly of one channel, and no two in a row are the same."""
    pixels = np.full((48, 64, 3), 20, np.uint8)
    pixels[:, :, channel] = 200
    pixels[:, i % 60 : i % 60 + 4] = 120
    return pixels


def blue(i: int) -> Pixels:
    return coloured(0, i)


def red(i: int) -> Pixels:
    return coloured(2, i)


def together(*urls: str, view: Looked | None = None) -> Together:
    seen = view or Looked()
    source = open_together([lambda url=url: _live.open_url(url, view=seen) for url in urls])  # type: ignore[misc]
    assert isinstance(source, Together)
    return source


def port(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


# --- the source


def test_each_stream_has_its_own_frames() -> None:
    with mjpeg_server(blue) as one, mjpeg_server(red) as two:
        source = together(one, two)
        assert source.live
        assert stream_names(source) == source.streams == (one, two)
        assert source.name == f"{one} and {two}"
        seen: Counter[int] = Counter()
        for item in source.frames():
            if isinstance(item, Frame):
                seen[item.stream] += 1
                assert item.pixels.mean((0, 1)).argmax() == (0, 2)[item.stream]
            if seen.total() == 40:
                break
        figures = source.figures()
        source.close()
    assert min(seen.values()) > 10
    assert [figures[name] for name in ("stalls", "reconnects", "damaged", "black_frames")] == [0, 0, 0, 0]
    assert [each["name"] for each in figures["streams"]] == [one, two]
    assert [each["frames"] for each in figures["streams"]] == [seen[0], seen[1]]
    assert [(each["width"], each["height"]) for each in figures["streams"]] == [(64, 48)] * 2
    assert sum(each["dropped"] for each in figures["streams"]) == source.dropped
    assert list(source.frames()) == []


class Ready:
    """A source that always has a frame, and so is faster than any camera."""

    name, live, length, dropped = "ready", True, None, 0

    def __init__(self, fails_after: int | None = None) -> None:
        self.given, self.closed, self._fails_after = 0, threading.Event(), fails_after

    def frames(self) -> Iterator[Frame | Notice]:
        while not self.closed.is_set():
            if self.given == self._fails_after:
                raise SourceError("expected more, found nothing: give it")
            self.given += 1
            yield Frame(np.full((1, 1, 3), self.given % 256, np.uint8), time.monotonic())

    def fingerprints(self) -> frozenset[str]:
        return frozenset()

    def note(self) -> str | None:
        return None

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed.set()


def test_those_that_are_ready_take_turns_and_run_no_further_ahead_than_one_frame() -> None:
    sources = [Ready(), Ready(), Ready()]
    joint = Together(sources)
    order = []
    for item in joint.frames():
        time.sleep(0.005)  # a prediction
        order.append(item.stream)
        if len(order) == 60:
            break
    taken = Counter(order)
    assert max(source.given - taken[i] for i, source in enumerate(sources)) <= 2
    joint.close()
    assert max(taken.values()) - min(taken.values()) <= 2  # in the beginning not all are there
    assert order[-30:] == order[-3:] * 10


def test_a_fast_camera_does_not_starve_a_slow_one() -> None:
    with mjpeg_server(blue, fps=15) as url:
        slow, fast = _live.open_url(url), Ready()
        joint = Together([fast, slow])
        seen: Counter[int] = Counter()
        began = time.monotonic()
        for item in joint.frames():
            time.sleep(0.01)
            seen[item.stream] += isinstance(item, Frame)
            if time.monotonic() - began > 2:
                break
        joint.close()
    assert seen[1] + slow.dropped >= 20
    assert seen[1] >= 15
    assert seen[0] > 60


def test_what_a_source_raises_ends_all() -> None:
    joint = Together([Ready(), Ready(fails_after=3)])
    with pytest.raises(SourceError, match="expected more, found nothing"):
        for _ in joint.frames():
            pass
    joint.close()


def test_names_that_are_alike_are_told_apart() -> None:
    assert Together([Ready(), Ready(), Ready()]).streams == ("ready", "ready (2)", "ready (3)")


def test_one_that_does_not_open_closes_those_that_did() -> None:
    with mjpeg_server(blue) as url:
        opened = []

        def first() -> _live.Live:
            opened.append(_live.open_url(url))
            return opened[0]

        def second() -> _live.Live:
            return _live.open_url("http://127.0.0.1:9/x")

        with pytest.raises(SourceError, match="refuses connections"):
            open_together([first, second])
        assert list(opened[0].frames()) == []


def test_closing_ends_whoever_waits_and_all_threads() -> None:
    before = threading.active_count()
    with mjpeg_server(blue, "stall", after=3) as one, mjpeg_server(red, "stall", after=3) as two:
        source = together(one, two)
        ended = threading.Event()

        def consume() -> None:
            for _ in source.frames():
                pass
            ended.set()

        threading.Thread(target=consume, daemon=True).start()
        time.sleep(0.5)
        assert not ended.is_set()
        source.close()
        assert ended.wait(2)
        source.close()
    limit = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_one_dies_and_comes_back_while_the_other_goes_on() -> None:
    with ExitStack() as stack:
        two = stack.enter_context(mjpeg_server(red))
        with mjpeg_server(blue) as one:
            source = together(one, two)
            items = source.frames()
            while not isinstance(first := next(items), Frame) or first.stream != 0:
                pass
        said, meanwhile = [], 0
        for item in items:
            if isinstance(item, Frame):
                meanwhile += item.stream == 1 and bool(said)
                assert item.stream == 1 or not said
            elif item.action != "waiting":
                said.append((item.action, item.stream))
            if said and meanwhile > 20:
                break
        assert said == [("lost", 0)]
        stack.enter_context(mjpeg_server(blue, port=port(one)))
        for item in items:
            if isinstance(item, Notice) and item.action == "reconnected":
                said.append((item.action, item.stream))
            if isinstance(item, Frame) and item.stream == 0:
                break
        assert said == [("lost", 0), ("reconnected", 0)]
        assert source.figures()["reconnects"] == 1
        assert [each["reconnects"] for each in source.figures()["streams"]] == [1, 0]
        source.close()


def test_each_is_looked_at() -> None:
    with mjpeg_server(blue) as one, mjpeg_server(red) as two:
        source = together(one, two, view=Looked(Roi.parse("0,0,30,20"), every=2))
        frames = [item for item, _ in zip(source.frames(), range(20), strict=False) if isinstance(item, Frame)]
        source.close()
    assert {frame.pixels.shape for frame in frames} == {(20, 30, 3)}
    assert {frame.stream for frame in frames} == {0, 1}


# --- the learner's scene


def test_a_scene_goes_on_with_its_own_stream_and_is_not_saved(bundle_path: Path) -> None:
    """Segments of two streams in turn are voted on as if each stream were alone."""
    bundle = open_bundle(bundle_path)
    engine, kind = open_engine(bundle, "portable"), registry.learner("deco+")
    pixels, labels = bundle.labelled_pixels("demo/test.npz")

    def learner() -> Learner:
        return kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))

    def segment(label: int, stream: int, first: int) -> Segment:
        images = pixels[labels == label][8 * first : 8 * first + 8]
        observed = learner().observe(np.stack([preprocess(image, bundle.preprocessing) for image in images]))
        pseudo, none = observed["logits"].argmax(axis=1), np.full(len(images), -1)
        return Segment(observed, pseudo, np.ones(len(images), np.float32), none, np.zeros(len(images), bool), stream)

    given = [segment(label, stream, first) for first in range(3) for stream, label in ((0, 1), (1, 7))]
    joint = learner()
    scenes = Scenes(joint, several=True)
    last = []
    for each in given:
        with scenes.of(each.stream):
            joint.learn(each)
            last.append(joint.scene)
        assert joint.scene is None
        assert "scene" not in joint.arrays()
    for stream in (0, 1):
        alone = learner()
        with Scenes(alone, several=False).of(stream):
            for each, found in zip(given[stream::2], last[stream::2], strict=True):
                alone.learn(replace(each, stream=0))
                assert alone.scene is not None
                assert found is not None
                np.testing.assert_array_equal(found, alone.scene)
        assert "scene" in alone.arrays()


def test_a_segment_of_each_stream_may_wait_for_the_learner() -> None:
    """Those of cameras with the same pace are complete at the same time."""
    learned: list[tuple[int, int]] = []
    busy, go = threading.Event(), threading.Event()

    def work(segment: Segment) -> None:
        learned.append((segment.stream, int(segment.pseudo[0])))
        busy.set()
        assert go.wait(10)

    def segment(stream: int, number: int) -> Segment:
        return Segment({}, np.array([number]), np.ones(1, np.float32), np.array([-1]), stream=stream)

    for streams, taken, refused in ((1, [(0, 1), (0, 2)], [(0, 3), (0, 4)]), (3, [(0, 1), (0, 2), (1, 3)], [(0, 4)])):
        learned.clear()
        busy.clear()
        go.clear()
        worker = Worker(work)
        for number, (each, wanted) in enumerate([*((t, True) for t in taken), *((r, False) for r in refused)]):
            assert worker.offer(segment(*each)) is wanted
            if number == 0:
                assert busy.wait(10)
        if streams > 1:
            assert worker.offer(segment(2, 5))
            assert not worker.offer(segment(2, 6))
        go.set()
        worker.drain()
        assert learned == [*taken, *([(2, 5)] if streams > 1 else [])]
        assert worker.offer(segment(0, 7))
        worker.drain()
        worker.end()


def test_the_terminal_has_rows_for_each_stream() -> None:
    def shown(*events: object) -> str:
        view, out = View("test"), io.StringIO()
        bus = Bus(view)
        for event in events:
            bus.emit(event)
        Console(file=out, width=100).print(view._table())
        return out.getvalue()

    frame = Frame(blue(0), 0.0)
    lost, back = Notice("lost"), Notice("reconnected")
    several = shown(
        happened.FramePredicted("cat", 0.9, frame, {}, "left_1"),
        happened.FramePredicted(None, 0.6, frame, {}, "http://u:pw@right/"),
        happened.SourceNotice("left_1", lost, "left_1"),
        happened.SourceNotice("http://u:pw@right/", back, "http://u:pw@right/"),
    )
    rows = [line.strip("│ ").split("│") for line in several.splitlines()]
    found = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert found["seeing, left_1"] == "cat (90%)"
    assert found["seeing, http://***@right/"] == "unknown (60%)"
    assert found["left_1"] == "lost, waiting for it"
    assert found["http://***@right/"] == "back"


# --- runs

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()",
]


def arguments(bundle: Path, *more: object) -> list[str]:
    settings = ["--engine", "portable", "--recipe", "deco+", "--set", "segment=16"]
    return [*COMMAND, "--bundle", str(bundle), *settings, *map(str, more)]


def run(bundle: Path, *more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(arguments(bundle, *more), capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done


def digit(bundle: Path, label: int) -> list[Pixels]:
    """Test images of one class, as large as a camera's."""
    pixels, labels = open_bundle(bundle).labelled_pixels("demo/test.npz")
    return [cv2.resize(p, (64, 48)) for p in pixels[labels == label][:8]]


def test_two_cameras_teach_one_learner(bundle_path: Path, tmp_path: Path) -> None:
    """Each segment is of one of them, though their frames come in turn."""
    zeros, fours, e = digit(bundle_path, 0), digit(bundle_path, 4), tmp_path / "e"
    with mjpeg_server(lambda i: zeros[i % 8]) as one, mjpeg_server(lambda i: fours[i % 8]) as two:
        where = ["--camera", one, "--video", two, "--state", tmp_path / "s", "--events", e, "--save-every", "0"]
        done = run(bundle_path, *where, "--max-segments", "6")
        assert done.returncode == 0, done.stderr
        again = run(bundle_path, *where, "--max-segments", "2")
    summary = json.loads(done.stdout)
    assert summary["segments"] == 6
    streams = summary["streams"]
    assert [each["name"] for each in streams] == [one, two]
    assert sum(each["segments"] for each in streams) == 6
    assert min(each["segments"] for each in streams) >= 2
    assert sum(each["frames"] for each in streams) == summary["frames"]
    assert sum(each["dropped"] for each in streams) == summary["dropped_frames"]
    assert sum(each["frozen_frames"] for each in streams) == summary["frozen_frames"]
    segments = events(e, "segment")
    assert {line["stream"] for line in segments} == {one, two}
    for line in segments:
        mostly = max(line["votes"], key=line["votes"].get)
        assert mostly == ("0" if line["stream"] == one else "4"), line
    assert f"segment 1 of {segments[0]['stream']}: active" in done.stderr
    opened = events(e, "source", action="opened")[0]
    assert opened["name"] == f"{one} and {two}"
    assert [each["width"] for each in opened["streams"]] == [64, 64]
    assert again.returncode == 0, again.stderr
    assert "goes on from" in again.stderr
    state, note = states.load(tmp_path / "s", open_bundle(bundle_path), fresh(open_bundle(bundle_path), "deco+"))
    assert state is not None
    assert note is None
    assert "scene" not in state.arrays
    assert state.values["counts"]["segments"] >= 6
    assert state.position == 0


def test_one_of_two_cameras_is_away_for_a_while(bundle_path: Path, tmp_path: Path) -> None:
    zeros, fours, e = digit(bundle_path, 0), digit(bundle_path, 4), tmp_path / "e"
    with ExitStack() as stack:
        two = stack.enter_context(mjpeg_server(lambda i: fours[i % 8], fps=60))
        with mjpeg_server(lambda i: zeros[i % 8], fps=60) as one:
            where = ["--video", one, "--video", two, "--state", tmp_path / "s", "--events", e]
            process = stack.enter_context(started(arguments(bundle_path, *where)))
            wait_for(e, "segment", stream=one)
        (lost,) = wait_for(e, "source", action="lost")
        assert (lost["name"], lost["stream"]) == (one, one)
        before = len(events(e, "segment", stream=two))
        wait_for(e, "segment", before + 2, stream=two)
        stack.enter_context(mjpeg_server(lambda i: zeros[i % 8], fps=60, port=port(one)))
        (back,) = wait_for(e, "source", action="reconnected")
        assert back["stream"] == one
        count = len(events(e, "segment", stream=one))
        wait_for(e, "segment", count + 1, stream=one)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    summary = json.loads(out)
    assert summary["reconnects"] == 1
    assert [each["reconnects"] for each in summary["streams"]] == [1, 0]
    assert f"{one} is back after" in said
    for line in events(e, "segment"):
        assert max(line["votes"], key=line["votes"].get) == ("0" if line["stream"] == one else "4")


def test_a_roi_for_each_and_two_of_one_is_refused(bundle_path: Path, tmp_path: Path) -> None:
    with mjpeg_server(blue) as one, mjpeg_server(red) as two:
        where = ["--video", one, "--video", two, "--no-learn", "--max-segments", "2", "--events", tmp_path / "e"]
        done = run(bundle_path, *where, "--roi", "0,0,30,20", "--roi", "0,0,1.0,1", "--rotate", "90")
        small = run(bundle_path, *where, "--roi", "0,0,30,20", "--roi", "0,0,100,100")
    assert done.returncode == 0, done.stderr
    streams = json.loads(done.stdout)["streams"]
    assert [(each["width"], each["height"], each["rotate"]) for each in streams] == [(30, 20, 90), (48, 64, 90)]
    assert small.returncode == 6
    assert "error: expected pictures with --roi 0,0,100,100 in them" in small.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--images", "a", "--camera", "0"], "or several that are live, --camera and --video URL, but found 2; leave"),
        (["--video", "a.avi", "--video", "b.avi"], "but found 2; leave some out"),
        (["--video", "a.avi", "--camera", "0"], "but found 2; leave some out"),
        (["--demo", "--camera", "0", "--camera", "1"], "but found 3; leave some out"),
        (["--camera", "0", "--camera", "0"], "expected each camera once, but found 0 2 times; leave it out"),
        (["--video", "rtsp://u:p@h/1", "--camera", "rtsp://u:p@h/1"], "but found rtsp://***@h/1 2 times"),
        (["--camera", "0", "--video", "rtsp://h/1", "--labels", "l.csv"], "expected --labels beside --video FILE"),
        (["--camera", "0", "--camera", "1", *["--rotate", "90"] * 3], "for all pictures, or 2, one for each camera"),
    ],
)
def test_what_cannot_be_combined(more: list[str], words: str, bundle_path: Path) -> None:
    done = run(bundle_path, *more)
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert done.stdout == ""
