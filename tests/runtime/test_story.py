"""The story of a run: event files in any state, what is counted of them, and the page that tells it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from deco_runtime.errors import StateError
from deco_runtime.learning.guard import Unguarded
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.story import learned, lines
from deco_runtime.story.page import page
from deco_runtime.story.story import Story
from deco_runtime.story.timeline import MOST, Bucket, Timeline
from fake_engine import fresh
from hypothesis import given
from hypothesis import strategies as st

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'deco-run'; sys.modules['torch'] = None; "
    "from deco_runtime.commands.run import main; main()",
]
EVIL = "<b>bold</b>&\"'</title><script>alert(1)</script>\u202e\udce9"


def line(event: str, monotonic: float = 0.0, **figures: Any) -> bytes:
    told = {"event": event, "time": "2030-01-02T03:04:05.678+00:00", "monotonic": monotonic, **figures}
    return json.dumps(told).encode() + b"\n"


def story_of(*data: bytes) -> tuple[Story, lines.Reading]:
    story, reading = Story(), lines.Reading()
    for event in lines.events(io.BytesIO(b"".join(data)), reading):
        story.take(event)
    story.end()
    return story, reading


def shown(*data: bytes, name: str = "events.jsonl") -> str:
    story, reading = story_of(*data)
    return page(name, story, reading, None).decode()


class Strict(HTMLParser):
    """Reads a page; every element is closed in its order, and nothing points or runs anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object", "a", "form", "b" * (self.open[-1:] == ["td"]))
        assert not {name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")}
        if tag not in ("meta", "rect", "line", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> str:
    """The text of a page that is well formed and needs nothing else."""
    reader = Strict()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert "http" not in re.sub(r"http-equiv", "", html)
    assert "url(" not in html
    return " ".join(reader.text)


def segment(number: int, votes: dict[str, int], **figures: Any) -> bytes:
    frames = {"frames": 10 * number, "dropped_frames": number, "unknown_frames": 2 * number, "dropped_segments": 0}
    return line("segment", 10.0 * number, number=number, votes=votes, **{**frames, **figures})


def opened(name: str = "camera /dev/video0", at: float = 1.0, live: bool = True) -> bytes:
    return line("source", at, action="opened", name=name, live=live, skipped=0)


STATE = line("state", found=False, segments=0, retrains=0, passed_over=None, unwritable=None)
RUN = [
    STATE,
    opened(),
    line("score", 2.0, when="before", segment=0, deployed=0.5, frozen=0.5, images=40),
    segment(1, {"cat": 8, "dog": 2}, frame_age_ms={"median": 20.0, "max": 90.0}, seconds=0.5),
    line("retrain", 11.0, number=1, segment=1, loss=None, accepted=True, seconds=0.25),
    line("guard", 11.0, decision="accepted", update=1, segment=1, reason=None, rejections=0, pause=0, scores={}),
    line("source", 12.0, action="lost", name="camera /dev/video0", reason="it ended", stalled=False),
    line("source", 15.0, action="reconnected", name="camera /dev/video0", seconds=3.0),
    line("resources", 16.0, decision="paused", reason="temperature", measured=80.0, limit=75, sensor="cpu"),
    line("resources", 18.5, decision="resumed", reason="temperature", measured=70.0, limit=75),
    segment(2, {"cat": 1, EVIL[:40]: 9}, frame_age_ms={"median": 40.0, "max": 50.0}, seconds=0.5),
    line("guard", 21.0, decision="rejected", update=2, segment=2, reason="it loses 3 takes", rejections=1, pause=8),
    line("save", 22.0, ok=True, bytes=1000, seconds=0.1, segment=2, written=1000, per_day=None),
    line("save", 23.0, ok=False, reason="No space left on device"),
    line("source", 24.0, action="ended", name="camera /dev/video0", frames=25, dropped=4, note="left out 1 frame"),
    line("score", 25.0, when="after", segment=2, deployed=0.75, frozen=0.5, images=40),
]


def test_a_run_in_figures() -> None:
    story, reading = story_of(*RUN)
    assert reading == lines.Reading(lines=len(RUN))
    (run,) = story.runs
    assert (run.frames, run.dropped, run.unknown, run.segments) == (25, 4, 4, 2)
    assert (run.accepted, run.rejected, run.lost, run.finished, run.live) == (1, 1, 1, True, True)
    assert (run.before, run.after, run.frozen, run.seconds) == (0.5, 0.75, 0.5, 25.0)
    assert story.timeline.votes() == {"cat": 9, "dog": 2, EVIL[:40]: 9}
    assert [bucket.unknown for bucket in story.timeline.buckets] == [2, 2]
    assert story.pause_seconds == {"temperature": 2.5}
    assert (story.saves, story.saved_bytes, story.refused_saves) == (1, 1000, 1)
    assert (story.away_seconds, story.learning_seconds) == (3.0, 1.25)
    assert story.decisions == {"accepted": 1, "rejected": 1, "pause": 1}


def test_the_page_tells_it() -> None:
    text = read(shown(*RUN, name=EVIL))
    for words in (
        *("25 frames answered", "cat", "never updated", "75.0 %", "50.0 %", "it loses 3 takes"),
        *("The camera was lost 1 time and came back 1 of these, away for 3.0 s in all.", "left out 1 frame"),
        *("temperature", "2.5 s", "1 save, 1.0 kB in all. 1 save was refused:", "No space left on device"),
        *("it loses N takes", "after which learning paused 1 time", "90 ms", "<b>bold</b>"),
    ):
        assert words in text


def test_nothing_yet_is_a_page_too() -> None:
    assert "no event was told yet" in read(shown())
    assert "No segment was gathered yet" in read(shown(STATE))
    assert "Nothing had labels" in read(shown(STATE, opened(), segment(1, {"cat": 10})))


@pytest.mark.parametrize("rest", [b'{"event": "segm', b'{"event": "x"', b"\xff\xfe", b"{", b"nonsense"])
def test_a_last_line_that_is_cut_short(rest: bytes) -> None:
    story, reading = story_of(*RUN, rest)
    assert (reading.damaged, reading.cut, story.events) == (1, True, len(RUN))
    text = read(shown(*RUN, rest))
    assert "The last line of the events is cut short" in text
    assert "damaged line" not in text


def test_lines_that_are_damaged_are_left_out_and_counted() -> None:
    wrong = [b"[1]\n", b'"x"\n', b'{"event": 1}\n', b"{}\n", b"\0\0\0\n", b"[" * 100_000 + b"\n", b"9" * 9000 + b"\n"]
    story, reading = story_of(b"\n", *wrong, *RUN, b"x" * (3 << 20) + b"\n", b" \n", opened("b", 30.0))
    assert (reading.damaged, reading.cut) == (len(wrong) + 1, False)
    assert story.events == len(RUN) + 1
    assert f"{len(wrong) + 1} damaged lines were left out" in read(shown(*wrong, *RUN, b"x\n"))


def test_what_follows_a_power_cut_in_the_same_line_is_read() -> None:
    story, reading = story_of(*RUN[:-2], b'{"event": "segment", "ti', *RUN)
    assert (reading.damaged, story.run_count, story.events) == (1, 2, 2 * len(RUN) - 2)


def test_events_and_keys_of_later_versions() -> None:
    text = read(shown(*RUN, line("hologram", 30.0, beam=[1]), line(EVIL, 31.0), segment(3, {"cat": 1}, warmth={})))
    assert "Of events that this version does not know nothing is shown: <b>bold</b>" in text
    assert "hologram (1)" in text


def test_several_runs_in_one_file() -> None:
    """With and without learning, killed and ended; the machine's clock begins anew when it is started again."""
    ended = line("source", 101.0, action="ended", name="film.avi", frames=7)
    unlearned = [opened("film.avi", 100.0, live=False), ended]
    killed = [opened("film.avi", 102.0), opened("other.avi", 102.0)]  # two cameras, one run
    restarted = [opened("third.avi", 3.0), segment(1, {"cat": 5}, frames=10)]
    story, _ = story_of(*RUN, *RUN[:4], *unlearned, *killed, *restarted)
    found = [(run.sources, run.frames, run.finished) for run in story.runs]
    camera = "camera /dev/video0"
    assert found == [
        ([camera], 25, True),
        ([camera], 10, False),
        (["film.avi"], 7, True),
        (["film.avi", "other.avi"], 0, False),
        (["third.avi"], 10, False),
    ]
    assert story.total.frames == 52
    assert story.total.segments == 4


def test_what_people_said_and_what_each_camera_saw() -> None:
    """Events of a run that was taught, and of one with several cameras."""
    text = read(
        shown(
            *RUN,
            line("teach", 30.0, action="taught", name="otter", frames=12, new=True, reason=None, teachings=1),
            line("teach", 31.0, action="refused", name="cat", frames=3, new=False, reason="it harms", teachings=1),
            line("teach", 32.0, action="undone", teachings=0),
            line("judged", 33.0, answer="cat", right=True, frames=3),
            line("judged", 33.0, answer=None, right=False, frames=1),
            line("fleet", 33.5, action="merged", frames=500, reason=None),
            line("fleet", 33.6, action="refused", frames=700, reason="loses 9 images"),
            line("hold", 34.0, held=True),
            line("back", 35.0, to="start", segments=0),
            segment(3, {"cat": 1}, stream="camera 0"),
            segment(4, {"cat": 1}, stream="camera 1"),
        )
    )
    for words in (
        *("1 teaching was taken, 1 refused, 1 taken back.", "Of 4 frames that were judged 75.0 % were answered right"),
        *("12 frames are the new class otter", "3 frames are cat; refused: it harms", "learning was told to wait"),
        *("what was learned went back to: start", "camera 0", "camera 1"),
        "The fleet's sums were taken up 1 time and refused 1; the last were of 700 frames.",
    ):
        assert words in text
    assert "does not know" not in text


def test_runs_of_state_that_was_passed_over_are_told_beforehand() -> None:
    state = line("state", found=True, segments=9, retrains=1, passed_over="it is damaged", unwritable="read-only")
    text = read(shown(state, opened()))
    assert "it is damaged" in text
    assert "read-only" in text


@given(st.lists(st.integers(0, 5), max_size=60), st.sampled_from([2, 4, 8]))
def test_a_timeline_loses_nothing(votes: list[int], most: int) -> None:
    timeline = Timeline(most)
    for i, each in enumerate(votes):
        timeline.add(Bucket(begin=str(i), segments=1, votes=Counter(cat=each), oldest_ms=float(each)))
    assert len(timeline.buckets) <= most
    assert timeline.segments == len(votes)
    assert timeline.votes()["cat"] == sum(votes)
    assert [b.segments for b in timeline.buckets[:-1]] == [timeline.width] * (len(timeline.buckets) - 1)
    assert [int(b.begin) for b in timeline.buckets] == list(range(0, len(votes), timeline.width))
    assert max((b.oldest_ms for b in timeline.buckets), default=None) == max(map(float, votes), default=None)


def test_a_file_without_end_takes_bounded_memory() -> None:
    """Thousands of names of classes, sources, events and reasons, which nothing may keep all of."""

    class Endless(io.RawIOBase):
        """Lines as they are asked for."""

        def __init__(self, count: int) -> None:
            self.made = self.lines(count)

        def lines(self, count: int) -> Iterator[bytes]:
            yield STATE
            for i in range(count):
                yield opened(f"source {i}", i)
                yield segment(i, {f"class {i % 9000}": 10, "cat": 1}, frame_age_ms={"median": 1.0, "max": 2.0})
                yield line(f"kind {i}", i)
                yield line("guard", i, decision="rejected", reason="x" * 500 + chr(0x4E00 + i), pause=1)
                yield line("score", i, when="during", deployed=0.5, frozen=0.4)
                yield line("resources", i, decision="paused", reason=f"reason {i}")

        def readline(self, size: int | None = -1, /) -> bytes:
            return next(self.made, b"")

    def peak(count: int) -> int:
        story, reading = Story(), lines.Reading()
        tracemalloc.start()
        for event in lines.events(Endless(count), reading):  # type: ignore[arg-type]
            story.take(event)
        made = page("x", story, reading, None)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(made) < 1 << 20
        assert len(story.timeline.buckets) <= MOST
        return found

    assert peak(2000) < 1.8 * peak(1000)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KINDS = [*("teach", "judged", "hold", "back", "fleet"), "state", "source", "segment", "retrain", "guard"]
KINDS += ["resources", "score", "save", "x"]
KEYS = [
    *("time", "monotonic", "lost", "action", "name", "live", "frames", "dropped", "note", "reason", "seconds", "votes"),
    *("frame_age_ms", "unknown_frames", "stream_accuracy", "pseudo_accuracy", "decision", "pause", "when", "deployed"),
    *("to", "held", "right", "new", "stream"),
    *("frozen", "images", "ok", "bytes", "dropped_frames", "dropped_segments", "passed_over"),
]
WORDS = ["opened", "ended", "lost", "reconnected", "paused", "resumed", "accepted", "rejected", "before", "after"]
PLAIN = st.sampled_from([*WORDS, EVIL, {EVIL: 3}, "temperature"]) | st.sampled_from(
    [0, 1, 2.5, 1e17, -3, True, False, {"cat": 3}, {"median": 2, "max": 9}]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(KEYS), PLAIN | values, max_size=9)),
        max_size=12,
    )
)
def test_whatever_values_events_have_there_is_a_page(told: list[tuple[str, dict[str, Any]]]) -> None:
    data = [json.dumps({"event": kind, **figures}).encode() + b"\n" for kind, figures in told]
    read(shown(*data))


@given(st.binary(max_size=300))
def test_whatever_bytes_a_file_has_there_is_a_page(data: bytes) -> None:
    read(shown(data))


# --- learned state


def saved(directory: Path, bundle: Path) -> Unguarded:
    learner = fresh(open_bundle(bundle), "paper")
    states.save(directory, states.LearnedState.of(learner, open_bundle(bundle), "film.avi", 12, "d"))
    return learner


def test_state_without_its_bundle(tmp_path: Path, bundle_path: Path) -> None:
    saved(tmp_path, bundle_path)
    for place in (tmp_path, tmp_path / states.CURRENT):
        found = learned.read(place)
        assert found is not None
        assert (found.recipe, found.meta["position"], found.note) == ("paper", 12, None)
        assert found.bytes == (tmp_path / states.CURRENT).stat().st_size
    text = read(page("x", Story(), lines.Reading(), found).decode())
    assert "film.avi" in text
    assert "paper" in text


def test_state_that_is_damaged(tmp_path: Path, bundle_path: Path) -> None:
    saved(tmp_path, bundle_path)
    saved(tmp_path, bundle_path)
    (tmp_path / states.CURRENT).write_bytes(b"x" * 100)
    found = learned.read(tmp_path)
    assert found is not None
    assert found.path.name == states.PREVIOUS
    assert found.note is not None
    assert "its checksum is wrong); this is the one before" in found.note
    (tmp_path / states.PREVIOUS).write_bytes(b"")
    with pytest.raises(StateError, match=r"expected learned state in .* is damaged"):
        learned.read(tmp_path)
    with pytest.raises(StateError, match="found nothing"):
        learned.read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert learned.read(tmp_path / "empty") is None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StateError, match="it is no file"):
        learned.read(tmp_path / "pipe")


# --- the command


def show(*arguments: str | Path, code: int = 0, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "show", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, input=given)
    text = subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert text.returncode == code, text.stderr
    assert "Traceback" not in text.stderr
    return text


def test_the_command(tmp_path: Path, bundle_path: Path) -> None:
    file, out = tmp_path / "events.jsonl", tmp_path / "r.html"
    file.write_bytes(b"".join(RUN))
    saved(tmp_path / "state", bundle_path)
    assert show(tmp_path / "state", "--events", file, "--out", out).stdout == f"wrote {out}: 16 events of 1 runs\n"
    text = read(out.read_text("utf-8"))
    assert "25 frames answered" in text
    assert "film.avi" in text
    show("--events", "-", "--out", out, given=b"".join(RUN))
    assert "25 frames answered" in read(out.read_text("utf-8"))
    closed = ["sh", "-c", 'exec "$0" "$@" <&-', *COMMAND, "show", "--events", "-", "--out", str(out)]
    assert subprocess.run(closed, capture_output=True, text=True, timeout=60, check=True).stdout.endswith("0 runs\n")
    show(tmp_path / "state", "--out", out)
    assert "Only the learned state was given" in read(out.read_text("utf-8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "r.html", "state"]


def test_what_a_real_run_told(tmp_path: Path, bundle_path: Path) -> None:
    more = ["--engine", "portable", "--demo", "--recipe", "paper", "--set", "segment=64", "--set", "iterations=2"]
    more += ["--set", "retrain_interval=2", "--set", "retrain_epochs=3"]
    run = [*COMMAND, "--bundle", bundle_path, "--state", tmp_path / "s", "--events", tmp_path / "e", *more]
    done = subprocess.run(list(map(str, run)), capture_output=True, text=True, timeout=120, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    show(tmp_path / "s", "--events", tmp_path / "e", "--out", tmp_path / "r.html")
    text = read((tmp_path / "r.html").read_text("utf-8")).replace("\u202f", "")
    assert f"{summary['frames']} frames answered" in text
    assert f"{summary['learned']:.1%}".replace("%", " %") in text
    assert f"{summary['before']:.1%}".replace("%", " %") in text
    assert "To know beforehand" not in text or "left out" in text


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    file = tmp_path / "e"
    file.write_bytes(b"".join(RUN))
    for arguments, code, words in (
        ([], 2, "error: expected the learned state, --events or both, but found neither"),
        (["--events", tmp_path / "none"], 1, f"error: expected to use {tmp_path / 'none'}, but the system says: No"),
        (["--events", tmp_path], 1, f"error: expected to use {tmp_path}, but the system says: Is a directory"),
        (["--events", file, "--out", file], 2, f"error: expected --out to be another file than {file}"),
        (["--events", file, "--out", tmp_path / "no" / "r"], 2, "error: expected --out to name a file that can be"),
        (["--events", file, "--out", tmp_path], 2, "error: expected --out to name a file that can be written, but"),
        (["--events", file, "--out", "/"], 2, "error: expected --out to name a file that can be written, but"),
        ([tmp_path / "none"], 7, f"error: expected learned state at {tmp_path / 'none'}, but found nothing"),
    ):
        done = show(*arguments, code=code)
        assert done.stderr.startswith(words)
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""
    assert file.read_bytes() == b"".join(RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["e"]
