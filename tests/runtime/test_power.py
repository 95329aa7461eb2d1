"""Power that goes and disks that refuse, for real: killed processes, full and read-only file systems, half a save."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import deco_runtime
import numpy as np
import pytest
from deco_runtime.errors import StateError
from deco_runtime.learning.guard import Unguarded
from deco_runtime.running.autosave import DAY_S, LONG_ENOUGH_S, Saver, per_day
from deco_runtime.running.resume import Place
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import CURRENT, PREVIOUS, LearnedState, save
from deco_runtime.storage.state import load as load_like
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.terminal_view import View
from fake_engine import fresh
from processes import events, started, wait_for

TEMPORARY = f"{CURRENT}.tmp"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "COLUMNS": "120"}
QUICK = [
    word for s in ("segment=16", "retrain_interval=2", "retrain_epochs=2", "iterations=1") for word in ("--set", s)
]


def command(bundle: Path, state: Path, *more: str) -> list[str]:
    # No torch: the training build of onnxruntime, where it finds it, takes seconds to import it.
    program = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
    usual = ["--bundle", str(bundle), "--engine", "portable", "--state", str(state)]
    recipe = [] if "--recipe" in more else QUICK
    return [sys.executable, "-c", program, *usual, *recipe, *more]


def run(*arguments: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit
    )
    assert "Traceback" not in done.stderr
    return done


def video(bundle: Path) -> list[str]:
    """The demo stream without its test images, on which --demo would be scored."""
    return ["--video", str(bundle / "demo" / "stream.avi")]


def load(place: Path, bundle: Bundle, recipe: str = "paper") -> tuple[LearnedState | None, str | None]:
    """As the module's, into a learner that is then sure to be what was loaded."""
    learner = make_learner(bundle, 0, recipe)
    found, note = load_like(place, bundle, learner)
    assert learner.learner.segments == (count_of(found) if found else 0)
    assert found is None or learner.learner.model.tobytes() == found.arrays["model"].tobytes()
    return found, note


def make_learner(bundle: Bundle, segments: int, recipe: str = "paper") -> Unguarded:
    """The model is all `segments`."""
    it = fresh(bundle, recipe)
    it.learner.model = np.full_like(it.learner.model, segments)
    it.learner.segments = segments
    return it


def state(bundle: Bundle, segments: int, recipe: str = "paper") -> LearnedState:
    return LearnedState.of(make_learner(bundle, segments, recipe), bundle, "stream", 16 * segments)


def count_of(state: LearnedState) -> int:
    """Segments that it has learned."""
    count: int = state.values["counts"]["segments"]
    return count


FILES: dict[str, Callable[[bytes], bytes | None]] = {
    "good": lambda good: good,
    "absent": lambda good: None,
    "empty": lambda good: b"",
    "cut short": lambda good: good[: len(good) // 2],
    "zeros": lambda good: bytes(len(good)),
    "ends in zeros": lambda good: good[: len(good) // 2] + bytes(len(good) - len(good) // 2),
}


@pytest.mark.parametrize("recipe", ["paper", "deco+"])
def test_every_way_in_which_a_power_cut_can_leave_the_files(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    """The newest good state loads and what was passed over is said; then saving works, and keeps the good one before.

    A temporary file is never taken, not even a whole one: its save was not reported as done.
    """
    contents = []
    for segments in (1, 2, 3):
        save(tmp_path / "made", state(bundle, segments, recipe))
        contents.append((tmp_path / "made" / CURRENT).read_bytes())
    place = tmp_path / "state"
    for kinds in itertools.product(FILES, repeat=3):
        place.mkdir()
        for name, kind, good in zip((PREVIOUS, CURRENT, TEMPORARY), kinds, contents, strict=True):
            if (data := FILES[kind](good)) is not None:
                (place / name).write_bytes(data)
        previous, current, _ = kinds
        expected = 2 if current == "good" else 1 if previous == "good" else None
        if expected is None and (previous, current) != ("absent", "absent"):
            with pytest.raises(StateError, match=r"is damaged .*; move the directory away to start anew"):
                load(place, bundle, recipe)
        else:
            assert segments_of(place, bundle, recipe) == (expected, expected == 1 and current != "absent")
            save(place, state(bundle, 9, recipe))
            assert TEMPORARY not in os.listdir(place)
            assert segments_of(place, bundle, recipe) == (9, False)
            (place / CURRENT).unlink()
            if expected:
                assert segments_of(place, bundle, recipe) == (expected, False)
        shutil.rmtree(place)


def segments_of(place: Path, bundle: Bundle, recipe: str = "paper") -> tuple[int | None, bool]:
    """Segments of the state that loads, None without any, and whether something was said about it."""
    loaded, note = load(place, bundle, recipe)
    assert loaded is None or loaded.arrays["model"][0] == count_of(loaded)
    return count_of(loaded) if loaded else None, note is not None


def test_a_damaged_file_is_said_once_and_reported(bundle_path: Path, tmp_path: Path, bundle: Bundle) -> None:
    place, log = tmp_path / "state", tmp_path / "e"
    save(place, state(bundle, 4))
    save(place, state(bundle, 5))
    (place / CURRENT).write_bytes((place / CURRENT).read_bytes()[:1000])
    done = run(*command(bundle_path, place, *video(bundle_path), "--max-segments", "1", "--events", str(log)))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    (found,) = events(log, "state")
    assert f"warning: {found['passed_over']}" in done.stderr.splitlines()
    assert "is damaged (its checksum is wrong); went on from the one before" in found["passed_over"]
    assert (found["found"], found["segments"], found["unwritable"]) == (True, 4, None)
    loaded, note = load(place, bundle)
    assert loaded is not None
    assert (count_of(loaded), note) == (5, None)


@pytest.fixture(scope="module")
def own_mounts() -> list[str]:
    """Runs a shell script where it may mount file systems that nobody else sees and that end with it."""
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-euc"]
    try:
        ready = subprocess.run([*prefix, "mount -t tmpfs none /mnt"], capture_output=True, timeout=30, check=False)
    except OSError:
        pytest.skip("needs unshare, to mount small disks of its own")
    if ready.returncode:
        pytest.skip(f"may not mount here: {ready.stderr.decode(errors='replace').strip()}")
    return prefix


def test_a_full_disk_keeps_the_last_good_state_and_predicting(
    own_mounts: list[str], bundle_path: Path, tmp_path: Path, bundle: Bundle
) -> None:
    """A file system with room for one state file, and not for the next beside it."""
    place, log = tmp_path / "state", tmp_path / "e"
    place.mkdir()
    arguments = [*video(bundle_path), "--no-guard", "--save-every", "0", "--events", str(log), "--max-segments", "5"]
    script = f'mount -t tmpfs -o size=200k none "{place}"; "$@"; cp -r "{place}" "{tmp_path}/left"; df "{place}"'
    done = run(*own_mounts, script, "sh", *command(bundle_path, place, *arguments))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1  # not one per save
    assert "warning: expected to write learned state to" in done.stderr
    assert "No space left on device; free space or choose another --state" in done.stderr
    summary = json.loads(done.stdout.splitlines()[0])
    assert (summary["segments"], summary["frames"], summary["retrains"]) == (5, 80, 2)
    saves = events(log, "save")
    assert [event["ok"] for event in saves] == [True, *[False] * 5]
    assert summary["saved_bytes"] == saves[0]["bytes"]
    assert os.listdir(tmp_path / "left") == [CURRENT]  # half a file was removed again
    loaded, note = load(tmp_path / "left", bundle)
    assert loaded is not None
    assert (count_of(loaded), note) == (1, None)


def test_a_read_only_disk_does_not_keep_a_camera_from_predicting(
    own_mounts: list[str], bundle_path: Path, tmp_path: Path, bundle: Bundle
) -> None:
    """As a kernel makes it of a card that it found faults on: taken up, learned from in memory, and said."""
    place, log = tmp_path / "state", tmp_path / "e"
    save(tmp_path / "before", state(bundle, 4))
    place.mkdir()
    arguments = [*video(bundle_path), "--save-every", "0", "--events", str(log), "--max-segments", "3"]
    script = (
        f'mount -t tmpfs none "{place}"; cp "{tmp_path}/before/{CURRENT}" "{place}"; mount -o remount,ro "{place}"; '
        f'"$@"; cmp "{tmp_path}/before/{CURRENT}" "{place}/{CURRENT}"; ls "{place}"'
    )
    done = run(*own_mounts, script, "sh", *command(bundle_path, place, *arguments))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert f"warning: expected to save in {place}, but it may not be written: the disk is read-only" in done.stderr
    summary, listing = done.stdout.splitlines()
    assert listing == CURRENT
    assert (json.loads(summary)["segments"], json.loads(summary)["saved_bytes"]) == (3, 0)
    (found,) = events(log, "state")
    assert (found["segments"], found["found"]) == (4, True)
    assert "read-only" in found["unwritable"]
    assert [event["number"] for event in events(log, "segment")] == [5, 6, 7]
    assert {event["ok"] for event in events(log, "save")} == {False}


def test_a_place_that_cannot_be_is_a_mistake(own_mounts: list[str], bundle_path: Path, tmp_path: Path) -> None:
    """A name below a read-only disk that is not there has never held anything: somebody mistyped it."""
    place = tmp_path / "disk"
    place.mkdir()
    script = f'mount -t tmpfs -o ro none "{place}"; "$@"'
    done = run(*own_mounts, script, "sh", *command(bundle_path, place / "mistyped", *video(bundle_path)))
    assert done.returncode == 7
    assert done.stderr.startswith("error: expected a place for learned state at")
    assert "Read-only file system; choose another --state" in done.stderr
    assert done.stdout == ""


def test_a_log_on_a_read_only_disk_is_done_without(own_mounts: list[str], bundle_path: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    more = [*video(bundle_path), "--events", f"{tmp_path}/disk/events/e", "--max-segments", "1"]
    script = f'mount -t tmpfs -o ro none "{tmp_path}/disk"; "$@"'
    done = run(*own_mounts, script, "sh", *command(bundle_path, tmp_path / "state", *more))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert (
        f"warning: expected to write events to {tmp_path}/disk/events/e, but the system says: Read-only" in done.stderr
    )
    assert os.listdir(tmp_path / "state") == [CURRENT]


def test_files_that_may_not_grow(bundle_path: Path, tmp_path: Path) -> None:
    """A quota, which stops the write in the middle of a file; needs no rights to try, unlike a full disk."""
    resource = pytest.importorskip("resource")
    done = run(
        *command(bundle_path, tmp_path / "state", *video(bundle_path), "--max-segments", "2"),
        limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: ") == 1
    assert "File too large; free space" in done.stderr
    assert json.loads(done.stdout)["saved_bytes"] == 0
    assert os.listdir(tmp_path / "state") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_disk_that_is_mended_has_everything(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "e"
    events_out = EventLog(log)
    saver = Saver(tmp_path / "state", bundle, 0, Bus(events_out, View("test")))
    learner = make_learner(bundle, 1)
    saver.save(learner, "s", Place(16, "a"))
    for segments in (2, 3):
        (tmp_path / "state" / TEMPORARY).symlink_to("/dev/full")  # gone again after each try
        learner.learner.segments = segments
        saver.save(learner, "s", Place(16 * segments, "a"))
    learner.learner.segments = 4
    saver.save(learner, "s", Place(64, "a"))
    saver.save(learner, "s", Place(64, "a"))  # the same again, as at the end of a run
    events_out.settle()
    assert [event["ok"] for event in events(log, "save")] == [True, False, False, True]
    loaded, note = load(tmp_path / "state", bundle)
    assert loaded is not None
    assert (count_of(loaded), note) == (4, None)
    said = capsys.readouterr().err
    assert [line.partition(":")[0] for line in said.splitlines()] == ["warning", "note"]
    size = (tmp_path / "state" / CURRENT).stat().st_size
    assert saver.written == events(log, "save")[-1]["written"] == 2 * size


def test_state_of_the_other_recipe_is_left_alone(bundle_path: Path, tmp_path: Path) -> None:
    """Refused in one sentence, after which the recipe that it was learned with goes on from it."""
    place = tmp_path / "state"
    few = [*video(bundle_path), "--max-segments", "2"]
    plus = ["--recipe", "deco+", "--set", "segment=16"]
    assert run(*command(bundle_path, place, *few, *plus)).returncode == 0
    before = (place / CURRENT).read_bytes()
    done = run(*command(bundle_path, place, *few))  # the bundle's own recipe is the paper's
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.splitlines()[-1] == (
        f"error: expected learned state of --recipe paper, but {place / CURRENT} was learned with 'deco+'; "
        "give that recipe, or another --state"
    )
    assert (place / CURRENT).read_bytes() == before
    done = run(*command(bundle_path, place, *few, *plus))
    assert done.returncode == 0, done.stderr
    assert "2 segments, 2 updates" in done.stderr
    assert json.loads(done.stdout)["segments"] == 2


def test_a_second_run_is_refused_until_the_first_is_gone_however_it_went(bundle_path: Path, tmp_path: Path) -> None:
    place, log = tmp_path / "state", tmp_path / "e"
    endless = ["--set", "retrain_epochs=100000", "--events", str(log)]
    with started(command(bundle_path, place, *video(bundle_path), *endless), env=ENVIRONMENT) as first:
        wait_for(log, "segment")
        second = run(*command(bundle_path, place, *video(bundle_path)))
        assert first.poll() is None
        predicts = run(*command(bundle_path, place, *video(bundle_path), "--no-learn", "--max-segments", "1"))
    assert (second.returncode, second.stdout) == (7, "")
    assert second.stderr == (
        f"error: expected to be the only run with the learned state in {place}, but another one has it; "
        "stop that one, or choose another --state\n"
    )
    assert predicts.returncode == 0, predicts.stderr
    third = run(*command(bundle_path, place, *video(bundle_path), "--max-segments", "1"))
    assert first.returncode == -signal.SIGKILL
    assert third.returncode == 0, third.stderr


def test_events_go_on_in_a_file_that_logrotate_cut(tmp_path: Path) -> None:
    """With copytruncate; a hole of zeros in its front would be no JSON."""
    log = EventLog(tmp_path / "e")
    for number in range(3):
        log.write("segment", number=number)
    log.settle()
    os.truncate(tmp_path / "e", 0)
    log.write("segment", number=3)
    log.close()
    assert [event["number"] for event in events(tmp_path / "e", "segment")] == [3]


def test_a_start_without_anything_learned_writes_nothing(bundle_path: Path, tmp_path: Path, bundle: Bundle) -> None:
    """As of a service whose camera is away, again and again; but a damaged file is replaced."""
    place, log = tmp_path / "state", tmp_path / "e"
    made = replace(state(bundle, 4), source=str(bundle_path / "demo" / "stream.avi"), position=0)
    save(place, made)
    more = ["--no-guard", "--set", "segment=100000", "--events", str(log)]  # a guard would judge what it did not see
    arguments = command(bundle_path, place, *video(bundle_path), *more)
    before = (place / CURRENT).stat().st_mtime_ns
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert (place / CURRENT).stat().st_mtime_ns == before
    assert (events(log, "save"), json.loads(done.stdout)["saved_bytes"]) == ([], 0)
    save(place, made)
    (place / CURRENT).write_bytes(b"damaged")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert [event["ok"] for event in events(log, "save")] == [True]
    assert segments_of(place, bundle) == (4, False)


@pytest.mark.parametrize(("every", "saves"), [("0", [1, 2, 3, 4, 5]), ("3600", [5])])
def test_what_is_written_is_what_was_asked_for(every: str, saves: list[int], bundle_path: Path, tmp_path: Path) -> None:
    place, log = tmp_path / "state", tmp_path / "e"
    more = ["--max-segments", "5", "--save-every", every, "--events", str(log)]
    done = run(*command(bundle_path, place, *video(bundle_path), *more))
    assert done.returncode == 0, done.stderr
    found = events(log, "save")
    assert [event["segment"] for event in found] == saves
    assert found[-1]["bytes"] == (place / CURRENT).stat().st_size
    summary = json.loads(done.stdout)
    assert summary["saved_bytes"] == found[-1]["written"] == sum(event["bytes"] for event in found)
    assert summary["saved_bytes_per_day"] is found[-1]["per_day"] is None  # too short a run to tell


def test_bytes_a_day() -> None:
    assert per_day(5_000_000, LONG_ENOUGH_S - 1) is None
    assert per_day(5_000_000, DAY_S / 2) == 10_000_000
    assert per_day(0, DAY_S) == 0
