"""deco-run teach as people use it: real processes, with a run and without one, and whatever one can get wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import deco_runtime
import numpy as np
import pytest
from deco_runtime.commands.run import main
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.control import observed_in
from deco_runtime.running.door import SOCKET
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import CURRENT
from deco_runtime.types import Pixels
from drawn import box, boxes, folder_of
from mjpeg_server import mjpeg_server
from processes import events, here, started, wait_for

PROGRAM = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "COLUMNS": "120"}
ENVIRONMENT.pop("http_proxy", None)  # FFmpeg would ask it for the loopback server


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of twelve boxes."""
    return folder_of(tmp_path_factory.mktemp("shown") / "boxes", 0, 12)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of boxes."""
    return film(tmp_path_factory.mktemp("clips") / "boxes.avi", [box(i) for i in range(150)])


def film(path: Path, pictures: list[Pixels]) -> Path:
    size = pictures[0].shape[1], pictures[0].shape[0]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, size)
    for picture in pictures:
        writer.write(picture)
    writer.release()
    return path


def deco_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, errors="surrogateescape", timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def teach(state: Path, *arguments: str | Path, bundle: Path | None = None) -> subprocess.CompletedProcess[str]:
    named = ("--bundle", bundle) if bundle is not None else ()
    return deco_run("teach", "--state", state, *named, *arguments)


def taught(state: Path, *arguments: str | Path, bundle: Path | None = None) -> str:
    """What is said of a teaching that is done."""
    done = teach(state, *arguments, bundle=bundle)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines, done
    return lines[-1]


def teach_here(state: Path, *arguments: str | Path, bundle: Path) -> subprocess.CompletedProcess[str]:
    """The same without a process, as for mistakes it does not matter."""
    return here(main, "teach", "--state", state, "--bundle", bundle, *arguments)


def refused(code: int, words: str, state: Path, *arguments: str | Path, bundle: Path | None = None) -> None:
    """One sentence with these words, this exit code, and what was learned is as it was."""
    before = files_of(state)
    done = teach_here(state, *arguments, bundle=bundle) if bundle else teach(state, *arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: expected "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert files_of(state) == before


def files_of(state: Path) -> dict[str, bytes]:
    if not state.is_dir():
        return {}
    found = [path for path in state.iterdir() if path.name.startswith("learned")]
    return {path.name: path.read_bytes() for path in found}


def learned(state: Path, bundle: Bundle, recipe: str = "deco+") -> Any:
    """The guard and learner that a run would take up."""
    kind = registry.learner(recipe)
    engine = open_engine(bundle, "portable")
    it, _ = open_guard(bundle, kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0)))
    loaded, note = states.load(state, bundle, it)
    assert loaded is not None
    assert note is None
    return it


def knows_boxes(state: Path, bundle: Bundle) -> float:
    """Share of other boxes that are answered as what was taught first."""
    it = learned(state, bundle).learner
    return float((it.answer(it.model, observed_in(it, boxes(bundle, 500, 40), bundle)).argmax(axis=1) == 10).mean())


@contextmanager
def running(bundle: Path, state: Path, log: Path, *more: str, recipe: str = "deco+") -> Iterator[subprocess.Popen[str]]:
    """A run that goes on, once it predicts."""
    command = [sys.executable, "-c", PROGRAM, "--bundle", str(bundle), "--engine", "portable", "--recipe", recipe]
    command += ["--state", str(state), "--events", str(log), "--set", "segment=16", *more]
    command += ["--set", "retrain_interval=1", *(["--set", "iterations=1"] if recipe == "paper" else [])]
    with started(command, env=ENVIRONMENT) as process:
        limit = time.monotonic() + 60
        while not (state / SOCKET).exists() or not events(log, "source"):
            assert time.monotonic() < limit
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> dict[str, Any]:
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "; the run goes on" not in said  # as the bus says of a listener that failed
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def digits(bundle: Bundle, classes: tuple[int, ...] = tuple(range(10))) -> list[Pixels]:
    """Test images of these classes, large enough for a camera."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    return [cv2.resize(each, (64, 64), interpolation=cv2.INTER_NEAREST) for each in pixels[np.isin(labels, classes)]]


# --- without a run


def test_a_class_is_taught_before_the_first_run_and_undone(
    bundle_path: Path, bundle: Bundle, shown: Path, clip: Path, tmp_path: Path
) -> None:
    """The bundle's recipe is the paper's, which can learn no class: the state is that of a run with deco+."""
    state = made_state(tmp_path / "state", bundle)
    said = taught(state, "--class", "box", "--images", shown, bundle=bundle_path)
    assert said == f"taught 12 frames of the new class 'box'; classes: {', '.join(bundle.classes)}, box"
    assert knows_boxes(state, bundle) > 0.6
    said = taught(state, "--class", "box", "--video", clip, bundle=bundle_path)
    assert said.startswith("taught 75 frames of 'box'; classes: ")
    one_of_three = folder_of(tmp_path / "one", 900, 1)
    assert taught(state, "--class", " none ", "--images", one_of_three, bundle=bundle_path).startswith(
        "taught 1 frame of the new class 'none'"
    )
    assert learned(state, bundle).learner.taught.classes == ("box", "none")
    for left in (2, 1, 0):
        classes = (*bundle.classes, "box")[: 10 + (left > 0)]
        expected = f"took back the last teaching; {left} are left, classes: {', '.join(classes)}"
        assert taught(state, "--undo", bundle=bundle_path) == expected
    refused(2, "found nothing to undo; teach first", state, "--undo", bundle=bundle_path)


def made_state(state: Path, bundle: Bundle, recipe: str = "deco+") -> Path:
    """As a run leaves it that has learned nothing."""
    kind = registry.learner(recipe)
    start = kind.open(bundle, open_engine(bundle, "portable"), kind.RECIPE, np.random.default_rng(0))
    fresh, _ = open_guard(bundle, start)
    states.save(state, states.LearnedState.of(fresh, bundle, "", 0))
    return state


def test_the_bundle_is_found_beside_its_state(bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle_path, tmp_path / "mine")
    state = made_state(tmp_path / "mine-state", bundle)
    taught(state, "--class", "box", "--images", shown)
    assert knows_boxes(state, bundle) > 0.6
    assert copy.exists()


def test_pictures_that_cannot_be_read_are_passed_over_and_said(
    bundle_path: Path, bundle: Bundle, tmp_path: Path
) -> None:
    state, folder = made_state(tmp_path / "state", bundle), folder_of(tmp_path / "boxes", 0, 5)
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "notes.txt").write_text("about boxes")
    done = teach(state, "--class", "box", "--images", folder, bundle=bundle_path)
    assert done.returncode == 0
    note, said = done.stderr.splitlines()
    assert note.startswith("note: ")
    assert "broken.png" in note
    assert said.startswith("taught 5 frames of the new class 'box'")


def test_what_was_learned_without_a_guard_is_still_judged_by_the_next_run(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    state, log = tmp_path / "state", tmp_path / "e"
    usual = ("--bundle", bundle_path, "--state", state, "--engine", "portable", "--recipe", "deco+")
    video = ("--video", bundle_path / "demo" / "stream.avi")
    assert deco_run(*usual, *video, "--no-guard", "--max-segments", "1").returncode == 0
    taught(state, "--class", "box", "--images", shown, bundle=bundle_path)
    assert deco_run(*usual, *video, "--max-segments", "2", "--events", log).returncode == 0
    assert len(events(log, "guard")) >= 1
    assert knows_boxes(state, bundle) > 0.6


# --- what one can get wrong


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (3, "expected a folder of pictures, but found none at {tmp}/no", ["--class", "x", "--images", "{tmp}/no"]),
        (3, "found none in {tmp}/empty that can be read", ["--class", "x", "--images", "{tmp}/empty"]),
        (3, "a folder of pictures, but found none at {tmp}/a.txt", ["--class", "x", "--images", "{tmp}/a.txt"]),
        (6, "expected a video file, but found none at {tmp}/no.avi", ["--class", "x", "--video", "{tmp}/no.avi"]),
        (6, "{tmp}/a.txt", ["--class", "x", "--video", "{tmp}/a.txt"]),
        (6, "{tmp}/nothing.avi", ["--class", "x", "--video", "{tmp}/nothing.avi"]),
        (6, "expected a video file, but found none at {shown}", ["--class", "x", "--video", "{shown}"]),
        (2, "no --class; say what shows it", ["--images", "{shown}"]),
        (2, "but found 0 of these; say what shows it", ["--class", "x"]),
        (2, "but found 2 of these", ["--class", "x", "--images", "{shown}", "--last", "5"]),
        (2, "but found 0 of these and no --class", []),
        (2, "expected --undo alone", ["--undo", "--class", "x"]),
        (2, "expected --undo alone", ["--undo", "--images", "{shown}"]),
        (2, "expected a class's name of 1 to 100 printable characters", ["--class", "   ", "--images", "{shown}"]),
        (2, "expected a class's name of 1 to 100 printable characters", ["--class", "", "--images", "{shown}"]),
        (2, "expected a class's name of 1 to 100 printable characters", ["--class", " ", "--images", "{tmp}/no"]),
        (2, "'a\\n\\x1b[2J'", ["--class", "a\n\x1b[2J", "--images", "{shown}"]),
        (2, "expected a class's name of 1 to 100 printable characters", ["--class", "\udce9", "--images", "{shown}"]),
        (2, "expected a class's name of 1 to 100 printable characters", ["--class", "x" * 101, "--images", "{shown}"]),
        (7, "expected a run that goes on with --state {tmp}/state for --last", ["--class", "x", "--last", "5"]),
        (2, "found nothing to undo", ["--undo"]),
    ],
)  # fmt: skip
def test_wrong_inputs_are_one_sentence(
    code: int, words: str, arguments: list[str], bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    state = made_state(tmp_path / "state", bundle)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("a line\n" * 100)
    (tmp_path / "nothing.avi").write_bytes(b"")

    def filled(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path)).replace("{shown}", str(shown))

    refused(code, filled(words), state, *map(filled, arguments), bundle=bundle_path)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_that_are_none(seconds: str, bundle_path: Path, bundle: Bundle, tmp_path: Path) -> None:
    state = made_state(tmp_path / "state", bundle)
    done = teach_here(state, "--class", "x", "--last", seconds, bundle=bundle_path)
    assert done.returncode in (2, 7)
    assert "error: " in done.stderr.lower()


def test_no_state_is_made_of_a_mistyped_name(bundle_path: Path, shown: Path, tmp_path: Path) -> None:
    refused(4, "give --bundle", tmp_path / "nowhere", "--class", "x", "--images", shown)
    refused(4, "give --bundle", tmp_path / "nowhere-state", "--class", "x", "--images", shown)
    (tmp_path / "file").write_bytes(b"")
    refused(7, "nowhere/at/all", tmp_path / "file" / "nowhere/at/all", "--undo", bundle=bundle_path)
    refused(7, "expected a place for learned state at", tmp_path / "file", "--undo", bundle=bundle_path)
    assert sorted(os.listdir(tmp_path)) == ["file"]


@pytest.mark.parametrize("undo", [False, True])
def test_without_a_state_nothing_is_left_behind_by_what_is_refused(
    undo: bool, bundle_path: Path, tmp_path: Path
) -> None:
    """The bundle's recipe is the paper's."""
    arguments: list[str | Path] = ["--undo"] if undo else ["--class", "x", "--images", tmp_path / "nowhere"]
    done = teach(tmp_path / "state", *arguments, bundle=bundle_path)
    assert done.returncode in (2, 3)
    assert files_of(tmp_path / "state") == {}


def test_state_of_another_bundle_is_refused(bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path) -> None:
    state = made_state(tmp_path / "state", bundle)
    it = learned(state, bundle)
    states.save(state, replace(states.LearnedState.of(it, bundle, "", 0), bundle="0" * 64))
    refused(7, "belongs to another one; give that bundle", state, "--class", "x", "--images", shown, bundle=bundle_path)
    refused(4, "nowhere", state, "--class", "x", "--images", shown, bundle=tmp_path / "nowhere")


def test_damaged_state_is_refused_and_stays(bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path) -> None:
    state = made_state(tmp_path / "state", bundle)
    path = state / CURRENT
    path.write_bytes(path.read_bytes()[:-1])
    refused(7, "is damaged", state, "--class", "x", "--images", shown, bundle=bundle_path)


def test_a_teaching_that_does_harm_is_refused(bundle_path: Path, bundle: Bundle, tmp_path: Path) -> None:
    """All digits as one new class: no step makes that harmless."""
    state, folder = made_state(tmp_path / "state", bundle), tmp_path / "all"
    folder.mkdir()
    for i, picture in enumerate(digits(bundle)):
        cv2.imwrite(str(folder / f"{i:03}.png"), picture)
    before = files_of(state)
    done = teach(state, "--class", "3", "--images", folder, bundle=bundle_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: expected 359 frames of '3' to do no harm, but the guard says that it loses")
    assert done.stderr.endswith("; choose other frames\n")
    assert done.stderr.count("\n") == 1
    assert files_of(state) == before


# --- through a run


@pytest.mark.parametrize("source", ["live", "replayed"])
def test_a_run_is_taught_while_it_goes_on(
    source: str, bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    """Its events name the new class, it answers with it, and the next run goes on with it."""
    state, log = tmp_path / "state", tmp_path / "e"
    seen = digits(bundle)
    if source == "live":
        showing = ["digits"]

        def picture(i: int) -> Pixels:
            return box(1000 + i) if showing[0] == "boxes" else seen[i // 40 % len(seen)]

        with mjpeg_server(picture, fps=60) as url, running(bundle_path, state, log, "--video", url) as process:
            wait_for(log, "segment", 1)
            said = taught(state, "--class", "box", "--images", shown)
            assert said.startswith("taught 12 frames of the new class 'box'")
            showing[0] = "boxes"
            wait_for_votes(log, "box")
            time.sleep(2.5)  # until no digit is among the last two seconds: taught as cases too, they are refused
            said = taught(state, "--class", "case", "--last", "2")
            assert "frames of the new class 'case'" in said
            assert taught(state, "--undo").startswith("took back the last teaching; 1 are left")
            refused(2, "found none of these", state, "--class", "x", "--last", "0.0001")
            refused(2, "printable characters", state, "--class", " ", "--images", shown)
            ended(process)
    else:
        mixed = [box(i) if i % 3 else seen[i // 3 % len(seen)] for i in range(600)]
        clip = film(tmp_path / "long.avi", mixed * 20)
        slowly = ("--cpu-share", "10")  # it lasts longer than four processes take to start
        with running(bundle_path, state, log, "--video", str(clip), *slowly) as process:
            wait_for(log, "segment", 1)
            taught(state, "--class", "box", "--images", shown)
            wait_for_votes(log, "box")
            taught(state, "--class", "none", "--last", "1")
            taught(state, "--undo")
            ended(process)
    told = events(log, "teach")
    assert [(each["action"], each.get("name")) for each in told][:1] == [("taught", "box")]
    assert told[-1]["action"] == "undone"
    assert events(log, "guard")[-1]["reason"] is None
    assert not os.path.lexists(state / SOCKET)
    it = learned(state, bundle)
    assert it.learner.taught.classes == ("box",)
    assert knows_boxes(state, bundle) > 0.6


def wait_for_votes(log: Path, name: str) -> None:
    limit = time.monotonic() + 60
    while not any(each["votes"].get(name, 0) > 8 for each in events(log, "segment")):
        assert time.monotonic() < limit, events(log, "segment")[-3:]
        time.sleep(0.05)


def test_after_a_teaching_a_run_answers_with_the_class_scores_it_and_guards_it(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    """--test DIR counts a folder of the class; its frames are voted for; what is none of the classes is unknown."""
    state, test, log = made_state(tmp_path / "state", bundle), tmp_path / "test", tmp_path / "e"
    taught(state, "--class", "box", "--images", shown, bundle=bundle_path)
    folder_of(test / "box", 700, 30)
    (test / "3").mkdir()
    for i, picture in enumerate(digits(bundle, (3,))):
        cv2.imwrite(str(test / "3" / f"{i:03}.png"), picture)
    clip = film(tmp_path / "stream.avi", [box(i) for i in range(200, 264)])
    usual = ("--bundle", bundle_path, "--state", state, "--engine", "portable", "--recipe", "deco+")
    done = deco_run(*usual, "--video", clip, "--set", "segment=16", "--test", test, "--events", log)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    scores = events(log, "score")
    assert scores[0]["images"] == 30 + 37
    assert summary["learned"] > 0.9
    assert summary["frozen"] < 0.7  # which cannot know it
    assert all(max(each["votes"], key=each["votes"].get) == "box" for each in events(log, "segment"))
    assert all("box" in each["active"] for each in events(log, "segment"))
    judged = [each["scores"] for each in events(log, "guard")]
    assert judged
    assert all(each["images"] == bundle.guard_images + 2 for each in judged)
    assert {each["worst_class"] for each in judged} <= {*bundle.classes, "box"}
    assert summary["unknown_frames"] == 0


def test_frames_that_were_taught_as_none_are_answered_as_unknown(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    state, log = made_state(tmp_path / "state", bundle), tmp_path / "e"
    taught(state, "--class", "none", "--images", shown, bundle=bundle_path)
    clip = film(tmp_path / "stream.avi", [box(i) for i in range(200, 264)])
    usual = ("--bundle", bundle_path, "--state", state, "--engine", "portable", "--recipe", "deco+")
    done = deco_run(*usual, "--video", clip, "--set", "segment=16", "--events", log)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["unknown_frames"] > 50


def test_a_recipe_that_cannot_be_taught_a_class_says_what_to_do(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    """The paper's, whose graphs have the bundle's classes."""
    state = made_state(tmp_path / "state", bundle, "paper")
    words = "with more --spare, or learn by --recipe deco+ in another --state"
    refused(2, words, state, "--class", "box", "--images", shown, bundle=bundle_path)


def test_the_papers_recipe_takes_corrections(bundle_path: Path, bundle: Bundle, tmp_path: Path) -> None:
    """Without a run and through one, whose model they outlast; a new class is refused there too."""
    state, folder, log = made_state(tmp_path / "state", bundle, "paper"), tmp_path / "nines", tmp_path / "e"
    start = learned(state, bundle, "paper").learner
    folder.mkdir()
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    answers = start.answer(start.model, observed_in(start, pixels, bundle)).argmax(axis=1)
    missed = pixels[(labels == 9) & (answers != 9)][:5]
    assert len(missed) == 5
    for i, picture in enumerate(missed):
        cv2.imwrite(str(folder / f"{i}.png"), cv2.resize(picture, (64, 64), interpolation=cv2.INTER_NEAREST))
    taught(state, "--class", "9", "--images", folder, bundle=bundle_path)
    it = learned(state, bundle, "paper").learner
    seen, guards = it.taught.observed["x"], it.taught.guards
    assert (it.answer(it.model, {"x": seen[~guards]}).argmax(axis=1) == 9).mean() >= 2 / 3
    taught(state, "--undo", bundle=bundle_path)
    assert learned(state, bundle, "paper").learner.model.tobytes() == start.model.tobytes()
    many = digits(bundle)
    with (
        mjpeg_server(lambda i: many[i // 40 % len(many)], fps=60) as url,
        running(bundle_path, state, log, "--video", url, recipe="paper") as process,
    ):
        wait_for(log, "segment", 1)
        taught(state, "--class", "9", "--images", folder)
        refused(2, "export a bundle with these pictures too", state, "--class", "box", "--images", folder)
        wait_for(log, "retrain", 1)
        ended(process)
    it = learned(state, bundle, "paper").learner
    assert it.taught.teachings == 1
    assert (it.answer(it.model, {"x": seen[~guards]}).argmax(axis=1) == 9).mean() > 0.5


# --- power that goes


def test_kills_in_the_middle_of_a_teaching_leave_a_good_state(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    state, rng = made_state(tmp_path / "state", bundle), random.Random(0)
    command = [sys.executable, "-c", PROGRAM, "teach", "--state", str(state), "--bundle", str(bundle_path)]
    command += ["--class", "box", "--images", str(shown)]
    began = time.monotonic()
    with started(command, env=ENVIRONMENT) as process:
        assert process.wait(60) == 0
    took, done = time.monotonic() - began, 1
    for _ in range(6):
        with started(command, env=ENVIRONMENT) as process:
            time.sleep(took * rng.uniform(0.5, 1.0))
            process.kill()
            process.communicate()
        teachings = learned(state, bundle).learner.taught.teachings
        assert teachings in (done, done + 1)
        done = teachings
    taught(state, "--undo", bundle=bundle_path)
    assert learned(state, bundle).learner.taught.teachings == done - 1


def test_kills_of_a_run_that_is_taught_leave_a_good_state(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    """Who teaches is told in one sentence, and what was said to be taught is there."""
    state, seen = tmp_path / "state", digits(bundle)
    said = 0
    with mjpeg_server(lambda i: seen[i // 40 % len(seen)], fps=60) as url:
        for delay in (0.0, 0.15, 0.3):
            log = tmp_path / f"e{delay}"
            with running(bundle_path, state, log, "--video", url, "--save-every", "0") as process:
                command = [sys.executable, "-c", PROGRAM, "teach", "--state", str(state), "--class", "box"]
                wait_for(log, "segment", 1)
                with started([*command, "--images", str(shown)], env=ENVIRONMENT) as asking:
                    time.sleep(0.5 + delay)
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    _, words = asking.communicate(timeout=60)
            assert "Traceback" not in words
            assert asking.returncode in (0, 4, 7), words
            assert words.count("\n") == 1
            said += asking.returncode == 0
            if (state / CURRENT).exists():
                assert learned(state, bundle).learner.taught.teachings >= said
    assert (state / CURRENT).exists()


def test_a_run_that_is_stopped_while_it_is_taught_ends_well(
    bundle_path: Path, bundle: Bundle, shown: Path, tmp_path: Path
) -> None:
    state, log, seen = tmp_path / "state", tmp_path / "e", digits(bundle)
    with (
        mjpeg_server(lambda i: seen[i // 40 % len(seen)], fps=60) as url,
        running(bundle_path, state, log, "--video", url) as process,
    ):
        wait_for(log, "segment", 1)
        command = [sys.executable, "-c", PROGRAM, "teach", "--state", str(state), "--class", "box"]
        with started([*command, "--images", str(shown)], env=ENVIRONMENT) as asking:
            time.sleep(0.6)
            ended(process)
            _, words = asking.communicate(timeout=60)
    assert "Traceback" not in words
    assert asking.returncode in (0, 4, 7), words
    assert (asking.returncode == 0) == (learned(state, bundle).learner.taught.teachings == 1)
