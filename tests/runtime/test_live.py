"""Live sources and how they fail, for real: an MJPEG camera on loopback, OpenCV blocked in a read that never returns,
capture processes stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from deco_runtime.errors import SourceError
from deco_runtime.sources import FrameSource, _faults, _live, _process
from deco_runtime.sources._live import Live
from deco_runtime.sources._opencv import to_picture
from deco_runtime.types import Frame, Notice, Pixels
from mjpeg_server import jpeg, mjpeg_server, number_of, numbered
from sentences import one_sentence

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and named pipes")
CAPTURE, TELLING = "deco_runtime.sources._capture:open_url", "telling:open_url"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)  # FFmpeg would ask it for the loopback server
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 0.05)


def only(source: FrameSource) -> Iterator[Frame]:
    """The frames, until the source is lost."""
    for item in source.frames():
        if isinstance(item, Frame):
            yield item
        elif item.action == "lost":
            return


def until(source: FrameSource, action: str, frames: list[Frame] | None = None, limit_s: float = 20.0) -> Notice:
    """The first notice of this action; what came before is lost, but for frames."""
    started = time.monotonic()
    for item in source.frames():
        if isinstance(item, Notice) and item.action == action:
            return item
        if isinstance(item, Frame) and frames is not None:
            frames.append(item)
        assert time.monotonic() - started < limit_s, f"no notice {action!r}"
    raise AssertionError("the source ended")


@dataclass(frozen=True)
class Told:
    """Opens live sources whose capture processes write their numbers into a file before they open anything.

    So a test can stop and kill them, and knows of each that there was.
    """

    file: Path

    def arguments(self, url: str | Path) -> dict[str, Any]:
        """Of TELLING."""
        return {"url": str(url), "shown": "a camera", "file": str(self.file)}

    def open_url(self, url: str | Path, **limits: float) -> Live:
        """As `_live.open_url`."""
        return Live("a camera", TELLING, self.arguments(url), **limits)

    @property
    def pids(self) -> list[int]:
        """Of all capture processes so far."""
        return [int(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    (tmp_path / "telling.py").write_text(
        "import os\n"
        "from deco_runtime.sources import _capture\n"
        "def open_url(file, **arguments):\n"
        "    with open(file, 'a') as numbers: print(os.getpid(), file=numbers)\n"
        "    return _capture.open_url(**arguments)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return Told(tmp_path / "pids")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def capture_threads() -> int:
    return sum(thread.name == "capture" for thread in threading.enumerate())


def no_capture_threads() -> bool:
    """Whether none stays: one whose process has just ended still has to hear of that."""
    limit = time.monotonic() + 5
    while capture_threads() and time.monotonic() < limit:
        time.sleep(0.01)
    return capture_threads() == 0


# --- streams


def test_stream_delivers_frames_in_order() -> None:
    with mjpeg_server(numbered) as url:
        source = _live.open_url(url)
        assert source.live is True
        assert source.length is None
        frames = [frame for frame, _ in zip(only(source), range(20), strict=False)]
        source.close()
    numbers = [number_of(frame.pixels) for frame in frames]
    assert numbers == sorted(set(numbers))
    times = [frame.time for frame in frames]
    assert times == sorted(times)
    assert 0 <= time.monotonic() - times[-1] < 5
    assert frames[0].pixels.shape == (48, 64, 3)
    assert frames[0].label is None
    figures = source.figures()
    assert {name: figures[name] for name in ("width", "height", "fourcc")} == {
        "width": 64,
        "height": 48,
        "fourcc": "MJPG",
    }
    assert figures["stalls"] == figures["reconnects"] == figures["damaged"] == 0


def test_a_slow_consumer_sees_the_newest_frame_and_drops_are_counted() -> None:
    sent = 0

    def picture(i: int) -> Pixels:
        nonlocal sent
        sent = i
        return numbered(i)

    with mjpeg_server(picture, fps=60) as url:
        source = _live.open_url(url, stall_s=2)
        frames = only(source)
        for _ in range(4):
            time.sleep(0.3)  # 18 frames
            newest = sent
            assert number_of(next(frames).pixels) >= newest - 5  # in transit, in FFmpeg's hands
        assert source.dropped > 30
        source.close()


def test_every_frame_is_taken_or_counted_as_dropped() -> None:
    with mjpeg_server(numbered, "drop", after=60, fps=60) as url:
        source = _live.open_url(url)
        frames = []
        for frame in only(source):
            frames.append(frame)
            time.sleep(0.3)
        source.close()
    assert 2 < len(frames) < 10
    assert number_of(frames[-1].pixels) >= 58
    # Less what FFmpeg keeps to itself while it looks for the format and when the connection drops.
    assert 57 <= len(frames) + source.dropped <= 60


@pytest.mark.parametrize("mode", ["silent", "stall"])
def test_an_open_that_hangs_is_an_error_in_bounded_time(mode: Any) -> None:
    with mjpeg_server(numbered, mode, after=0) as url:
        started = time.monotonic()
        with pytest.raises(SourceError) as error:
            _live.open_url(url, open_s=0.5)
        assert time.monotonic() - started < 10
        words = "does not answer in time" if mode == "silent" else "without a picture within 0.5 s"
        assert words in one_sentence(str(error.value))
        assert no_capture_threads()


def test_garbage_is_no_stream(capfd: pytest.CaptureFixture[str]) -> None:
    with mjpeg_server(numbered, "garbage") as url:
        with pytest.raises(SourceError) as error:
            _live.open_url(url)
        assert "in which OpenCV finds no stream" in one_sentence(str(error.value))
    assert capfd.readouterr() == ("", "")


def test_nobody_listens_and_the_password_is_not_told() -> None:
    with mjpeg_server(numbered) as url:
        pass  # the port is free again
    with pytest.raises(SourceError) as error:
        _live.open_url(url.replace("://", "://user:sec@ret@"))
    assert url.replace("://", "://***@") in one_sentence(str(error.value))
    assert "ret@" not in str(error.value)


def test_close_from_another_thread_ends_a_waiting_consumer_and_the_capture_process(told: Told) -> None:
    with mjpeg_server(numbered, "stall", after=15) as url:
        source = told.open_url(url, stall_s=30)
        ended = threading.Event()

        def consume() -> None:
            for _ in source.frames():
                pass
            ended.set()

        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        time.sleep(0.6)
        assert not ended.is_set()
        (pid,) = told.pids
        assert not is_gone(pid)
        source.close()
        assert ended.wait(1)
        assert is_gone(pid)
        source.close()
        assert list(source.frames()) == []


# --- lost and found


@pytest.mark.parametrize(("mode", "stalls"), [("stall", 1), ("drop", 0)])
def test_a_lost_stream_is_opened_again(mode: Any, stalls: int, told: Told) -> None:
    """The camera stops in the middle; whoever connects anew gets frames."""
    with mjpeg_server(numbered, mode, after=15) as url:
        source = told.open_url(url, stall_s=0.5)
        (first,) = told.pids
        frames: list[Frame] = []
        started = time.monotonic()
        lost = until(source, "lost", frames)
        assert time.monotonic() - started < 5
        assert number_of(frames[-1].pixels) >= 13
        assert one_sentence(lost.figures["reason"]) in lost.words
        assert lost.figures["stalled"] is bool(stalls)
        assert ("every 0.5 s" if stalls else "ended or the connection dropped") in lost.words
        back = until(source, "reconnected")
        assert back.figures["width"] == 64
        assert 0 < back.figures["seconds"] < 20
        assert isinstance(next(only(source)), Frame)
        assert is_gone(first)
        assert not is_gone(told.pids[-1])
        assert source.figures()["stalls"] == stalls
        assert source.figures()["reconnects"] == 1
        source.close()


def test_a_camera_that_was_away_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens for a while; the waiting says so several times a second, and one notice stands for it all."""
    monkeypatch.setattr(_live, "LAST_PAUSE_S", 0.2)
    with mjpeg_server(numbered) as url:
        source = _live.open_url(url, stall_s=1)
        next(only(source))
    actions = []
    away = time.monotonic()
    for item in source.frames():
        if isinstance(item, Notice):
            actions.append(item.action)
        if "lost" in actions and time.monotonic() - away > 2:
            break
    assert [action for action in actions if action != "waiting"] == ["lost"]
    assert actions.count("waiting") >= 5
    with mjpeg_server(numbered, port=int(url.split(":")[2].split("/")[0])):
        assert until(source, "reconnected").figures["seconds"] >= 2
        source.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those that were made, and took no time."""
    made: list[float] = []

    def wait(self: Live, seconds: float) -> Iterator[Notice]:
        made.append(seconds)
        yield Notice("waiting")

    monkeypatch.setattr(Live, "_wait", wait)
    return made


def test_pauses_double_up_to_a_minute(pauses: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 16.0)
    (tmp_path / "once.py").write_text(
        "def open_once(mark):\n"
        "    with open(mark, 'x'): return Once()\n"
        "class Once:\n"
        "    format = {}\n"
        "    def read(self): raise OSError('unplugged')\n"
        "    def close(self): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = Live("once", "once:open_once", {"mark": str(tmp_path / "mark")})
    notices = source.frames()
    while len(pauses) < 4:
        next(notices)
    source.close()
    assert pauses == [16, 32, 60, 60]


def test_a_moments_frames_do_not_set_the_pause_back(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 0.0  # seconds that the source's clock is ahead
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(_live, "time", clock)
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 1.0)
    with mjpeg_server(numbered, "drop", after=5) as url:
        source = _live.open_url(url)
        for _ in range(2):
            until(source, "reconnected")
        passed = _live.LAST_PAUSE_S  # as if it had delivered for a minute
        until(source, "reconnected")
        source.close()
    assert pauses == [1, 2, 1]


def test_a_wait_ends_at_once_when_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "FIRST_PAUSE_S", 60.0)
    with mjpeg_server(numbered, "drop", after=3) as url:
        source = _live.open_url(url)
        frames = source.frames()
        assert any(isinstance(item, Notice) and item.action == "lost" for item in frames)
        threading.Timer(0.3, source.close).start()
        started = time.monotonic()
        assert {item.action for item in frames if isinstance(item, Notice)} == {"waiting"}
        assert time.monotonic() - started < 5


# --- what only a process of its own survives


@contextmanager
def half_a_stream(folder: Path, wanted: threading.Semaphore) -> Iterator[Path]:
    """A named pipe with a video that stops in the middle, once for each release of `wanted`.

    Without it the opening, and in the middle a read, blocks inside OpenCV for ever: files have no time-outs.
    """
    whole, path = folder / "whole.avi", folder / "pipe.avi"
    writer = cv2.VideoWriter(str(whole), int.from_bytes(b"MJPG", "little"), 25, (64, 48))
    for i in range(30):
        writer.write(numbered(i))
    writer.release()
    data = whole.read_bytes()
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # so that writing needs no reader, and reading never sees an end
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            if wanted.acquire(timeout=0.05):
                os.write(pipe, data[: data.index(b"idx1")])

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield path
    finally:
        stop.set()
        thread.join()
        os.close(pipe)


@POSIX
def test_opencv_blocked_for_ever_costs_a_process_and_no_more(tmp_path: Path, told: Told) -> None:
    """Twice the read never returns; each time the process is gone, and no thread is left behind."""
    wanted = threading.Semaphore(1)
    threads = threading.active_count()
    with half_a_stream(tmp_path, wanted) as path:
        source = told.open_url(path, stall_s=0.5)
        for _ in range(2):
            lost = until(source, "lost")
            assert lost.figures["stalled"]
            wanted.release()  # the next round, for whoever opens next
            until(source, "reconnected")
        assert capture_threads() == 1
        *before, last = told.pids
        assert len({*before, last}) == 3
        assert all(map(is_gone, before))
        assert not is_gone(last)
        started = time.monotonic()
        while until(source, "waiting"):  # blocked again
            if time.monotonic() - started > 0.3:
                break
        source.close()
        assert time.monotonic() - started < 5
    assert source.figures()["stalls"] == source.figures()["reconnects"] == 2
    assert threading.active_count() <= threads


@POSIX
def test_opencv_that_never_opens_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.mjpeg")
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"open within 0\.3 s"):
        Live("a pipe", CAPTURE, {"url": str(tmp_path / "s.mjpeg"), "shown": "a pipe"}, open_s=0.3)
    assert time.monotonic() - started < 10
    assert no_capture_threads()


@POSIX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_capture_process_that_dies_or_freezes_is_replaced(number: signal.Signals, told: Told) -> None:
    with mjpeg_server(numbered) as url:
        source = told.open_url(url, stall_s=1)
        next(only(source))
        os.kill(told.pids[-1], number)
        lost = until(source, "lost")
        said = "stalled" if number == signal.SIGSTOP else f"died of signal {number.value}: check the camera"
        assert said in one_sentence(lost.figures["reason"])
        until(source, "reconnected")
        source.close()


@POSIX
def test_no_second_process_beside_one_that_cannot_be_killed(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the middle of a driver's system call. When it is gone after all, capture goes on."""
    monkeypatch.setattr(_live, "LAST_PAUSE_S", 0.1)
    monkeypatch.setattr(_process, "CLOSE_S", 0.1)
    monkeypatch.setattr(_process, "_DEATH_S", 0.1)
    with mjpeg_server(numbered) as url:
        source = told.open_url(url, stall_s=0.2)
        next(only(source))
        before = told.pids
        stuck = before[-1]  # on a slow machine not the first
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "kill", lambda self: None)
            os.kill(stuck, signal.SIGSTOP)
            started = time.monotonic()
            for item in source.frames():
                assert isinstance(item, Notice)
                assert told.pids == before
                if time.monotonic() - started > 2:
                    break
            assert capture_threads() == 1
        os.kill(stuck, signal.SIGKILL)
        until(source, "reconnected")
        source.close()


def test_the_capture_process_ends_with_the_program(told: Told) -> None:
    with mjpeg_server(numbered) as url:
        code = (
            f"import sys, os; sys.path[:] = {sys.path!r}\n"
            "from deco_runtime.sources._live import Live\n"
            f"source = Live('a camera', {TELLING!r}, {told.arguments(url)!r}); os._exit(1)"
        )
        subprocess.run([sys.executable, "-c", code], timeout=30)
        (pid,) = told.pids
        limit = time.monotonic() + 10
        while not is_gone(pid):
            assert time.monotonic() < limit
            time.sleep(0.05)


# --- odd pictures


def test_half_frames_are_counted_and_left_out() -> None:
    """OpenCV's own capture would show the lower half of the picture before."""
    with mjpeg_server(numbered, "half") as url:
        source = _live.open_url(url)
        frames = [frame for frame, _ in zip(only(source), range(20), strict=False)]
        source.close()
    assert all(number_of(frame.pixels) % 3 != 2 for frame in frames)
    for frame in frames:
        np.testing.assert_allclose(frame.pixels[:8].mean((0, 1)), frame.pixels[-8:].mean((0, 1)), atol=4)
    assert source.figures()["damaged"] >= 5


def test_frames_without_end_marks_are_whole() -> None:
    with mjpeg_server(numbered, "endless") as url:
        source = _live.open_url(url)
        numbers = [number_of(frame.pixels) for frame, _ in zip(only(source), range(15), strict=False)]
        source.close()
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 15
    assert source.figures()["damaged"] == source.figures()["stalls"] == 0


def noise(i: int) -> Pixels:
    return np.random.default_rng(i).integers(0, 256, (48, 64, 3), np.uint8)


def test_frames_with_wrong_bytes_are_counted_and_left_out() -> None:
    with mjpeg_server(noise, "wrong") as url:
        source = _live.open_url(url)
        frames = [frame for frame, _ in zip(only(source), range(20), strict=False)]
        source.close()
    assert source.figures()["damaged"] >= 5
    for frame in frames:
        np.testing.assert_allclose(frame.pixels[:24].std(), frame.pixels[24:].std(), rtol=0.2)


def test_a_stream_of_nothing_but_damage_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    import mjpeg_server as server

    monkeypatch.setattr(server, "jpeg", lambda picture: server.with_zeros(jpeg(picture)))
    with mjpeg_server(noise) as url:
        source = _live.open_url(url, stall_s=0.7)
        lost = until(source, "lost")
        assert "all" in one_sentence(lost.figures["reason"])
        assert "came damaged: check its cable or the network" in lost.figures["reason"]
        assert lost.figures["stalled"] is False
        source.close()
    assert source.figures()["damaged"] > 5
    assert source.figures()["stalls"] == 0


def test_what_is_a_damaged_jpeg() -> None:
    whole = jpeg(noise(7))
    for cut in (whole[: len(whole) // 2], whole[:-40], b"\xff\xd8\xff\xd9", b"\0" * 40):
        assert to_picture(np.frombuffer(cut, np.uint8)[None]) is None
    intact = to_picture(np.frombuffer(whole, np.uint8)[None])
    assert intact is not None
    for same in (whole[:-2], whole[:-1], whole + b"\0" * 100, whole[:-2] + b"\0" * 8 + whole[-2:]):
        np.testing.assert_array_equal(to_picture(np.frombuffer(same, np.uint8)[None]), intact)


def test_another_size_in_mid_stream_goes_on_and_is_said_once() -> None:
    def picture(i: int) -> Pixels:
        return numbered(i) if i // 10 % 2 == 0 else cv2.resize(numbered(i), (32, 24))

    with mjpeg_server(picture) as url:
        source = _live.open_url(url)
        sizes, said = [], []
        for item in source.frames():
            if isinstance(item, Notice):
                said += [item] if item.action != "waiting" else []
            else:
                sizes.append(item.pixels.shape)
                if len(sizes) == 35:
                    break
        source.close()
    changes = [a for a, b in pairwise(sizes) if a != b]
    assert len(changes) >= 3
    assert set(sizes) == {(48, 64, 3), (24, 32, 3)}
    assert [(notice.action, notice.figures) for notice in said] == [("resized", {"width": 32, "height": 24})]
    assert "32×24" in said[0].words


def test_a_frozen_stream_is_said_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The camera goes on sending, and all it sends for a second is one picture."""
    monkeypatch.setattr(_faults, "TOLD_S", 0.5)
    with mjpeg_server(lambda i: numbered(i if i < 10 else max(10, i - 50))) as url:
        source = _live.open_url(url)
        faults, said = [], []
        for item in source.frames():
            if isinstance(item, Frame):
                faults.append(item.fault)
            elif item.action != "waiting":
                said.append(item.action)
            if "cleared" in said:
                break
        source.close()
    assert said == ["frozen", "cleared"]
    assert faults[-1] == "frozen"
    assert faults.count(None) <= 12
    assert source.figures()["frozen_frames"] == faults.count("frozen") > 5


def test_grey_and_transparent_pictures_become_bgr() -> None:
    grey, thin = np.full((8, 6), 7, np.uint8), np.full((8, 6, 1), 8, np.uint8)
    alpha = np.full((8, 6, 4), (1, 2, 3, 255), np.uint8)
    seen = [to_picture(pixels) for pixels in (grey, thin, alpha)]
    assert [pixels.shape for pixels in seen if pixels is not None] == [(8, 6, 3)] * 3
    assert [pixels[0, 0].tolist() for pixels in seen if pixels is not None] == [[7, 7, 7], [8, 8, 8], [1, 2, 3]]
