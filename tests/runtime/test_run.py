"""deco-run as its users run it: real processes, real signals, real sockets, real files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.guard import Unguarded
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Frame
from fake_engine import fresh
from mjpeg_server import mjpeg_server, numbered
from processes import events, started, wait_for

# No torch: the training build of onnxruntime, where it finds it, takes seconds to import it.
COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()",
]
QUICK = ["segment=16", "retrain_interval=2", "retrain_epochs=3", "iterations=2"]
PLUS = ["segment=16", "retrain_interval=2"]
both_recipes = pytest.mark.parametrize(("name", "recipe"), [("paper", QUICK), ("deco+", PLUS)])
VIDEOS = Path(__file__).parents[2].parent / "shared" / "data" / "videos"


def arguments(bundle: Path, *more: str, name: str = "paper", recipe: list[str] = QUICK) -> list[str]:
    settings = [text for setting in recipe for text in ("--set", setting)]
    # Not auto, which would time all engines in every test's fresh state directory.
    return [*COMMAND, "--bundle", str(bundle), "--engine", "portable", "--recipe", name, *settings, *more]


def run(bundle: Path, *more: str, name: str = "paper", recipe: list[str] = QUICK) -> tuple[dict, str]:
    """Run to the end; the summary and what was said on stderr."""
    command = arguments(bundle, *more, name=name, recipe=recipe)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "; the run goes on" not in done.stderr  # as the bus says of a listener that failed
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def start_of(bundle: Path, name: str = "paper") -> Unguarded:
    return fresh(open_bundle(bundle), name)


def load(directory: Path, bundle: Path, name: str) -> tuple[states.LearnedState | None, str | None]:
    return states.load(directory, open_bundle(bundle), start_of(bundle, name))


def learned(directory: Path, bundle: Path, name: str = "paper") -> states.LearnedState:
    state, note = load(directory, bundle, name)
    assert state is not None
    assert note is None
    return state


def counts(state: states.LearnedState) -> dict[str, int]:
    found: dict[str, int] = state.values["counts"]
    return found


def same(a: states.LearnedState, b: states.LearnedState) -> bool:
    """Bit for bit: what was learned, what the guard keeps, where generator and stream are."""
    arrays = [{name: array.tobytes() for name, array in s.arrays.items()} for s in (a, b)]
    return arrays[0] == arrays[1] and (a.values, a.position, a.digest) == (b.values, b.position, b.digest)


@both_recipes
def test_demo_learns_scores_and_reports(name: str, recipe: list[str], bundle_path: Path, tmp_path: Path) -> None:
    """Scored at every fifth segment or the update behind it."""
    more = ["--demo", "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e", "--max-segments", "13"]
    summary, said = run(bundle_path, *more, name=name, recipe=recipe)
    assert summary["segments"] == 13
    assert summary["retrains"] == 6
    assert summary["frames"] == 208
    assert 0.5 < summary["frozen"] <= 1
    assert summary["frozen"] + (0.02 if name == "deco+" else -0.02) <= summary["learned"] <= 1
    assert "before: deployed model" in said
    assert "after: deployed model" in said
    lines = events(tmp_path / "e")
    for line in lines:
        assert {"event", "time", "monotonic"} <= line.keys()
    assert [line["number"] for line in lines if line["event"] == "segment"] == list(range(1, 14))
    scored = [("before", 0), ("during", 6), ("during", 12), ("after", 13)]
    assert [(line["when"], line["segment"]) for line in lines if line["event"] == "score"] == scored
    assert [line["action"] for line in lines if line["event"] == "source"] == ["opened", "ended"]
    assert [line["found"] for line in lines if line["event"] == "state"] == [False]
    first = events(tmp_path / "e", "segment")[0]
    assert sum(first["votes"].values()) == 16
    assert 0 <= first["kept"] <= 1
    retrains = events(tmp_path / "e", "retrain")
    if name == "paper":
        assert len(first["distances"]) == 2
        assert isinstance(first["contrastive"], float)
        assert "unknown" not in first
        assert retrains[0]["loss"][1] < retrains[0]["loss"][0]
    else:
        assert retrains[0]["loss"] is None
        assert first["unknown"] == 0
        assert not {"distances", "contrastive"} & first.keys()
    assert retrains[0]["accepted"]
    dropped = sum(not line["accepted"] for line in retrains)
    state = learned(tmp_path / "s", bundle_path, name)
    assert counts(state) == {
        "segments": 13,
        "since_retrain": 1,
        "retrains": 6,
        "dropped": dropped,
        "merges": 0,
        "offers": 0,
    }
    assert state.position == 208
    assert not np.array_equal(state.arrays["model"], start_of(bundle_path, name).learner.model)
    assert summary["learned"] == events(tmp_path / "e", "score")[-1]["deployed"]
    assert summary["before"] == events(tmp_path / "e", "score")[0]["deployed"]
    assert name == "deco+" or summary["before"] == summary["frozen"]


def test_the_stream_makes_deco_plus_better_than_the_model_it_came_with(bundle_path: Path, tmp_path: Path) -> None:
    """What the product is for, as its users get it: a whole stream, and none of the recipe's values changed."""
    more = ["--demo", "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e"]
    summary, said = run(bundle_path, *more, name="deco+", recipe=[])
    assert summary["learned"] >= summary["frozen"] + 0.02
    assert summary["learned"] > summary["before"] > summary["frozen"]
    assert summary["stream_accuracy"] >= plain_accuracy(bundle_path, summary["frames"]) + 0.02
    assert summary["retrains"] == summary["segments"] == 11  # the last one is not complete, and is learned from too
    assert summary["unlearned_frames"] == summary["dropped_updates"] == 0
    scores = events(tmp_path / "e", "score")
    assert [(line["when"], line["segment"]) for line in scores] == [
        ("before", 0), ("during", 5), ("during", 10), ("after", 11),
    ]  # fmt: skip
    assert {line["frozen"] for line in scores} == {summary["frozen"]}
    assert [scores[0]["deployed"], scores[-1]["deployed"]] == [summary["before"], summary["learned"]]
    assert f"after: deployed model {summary['learned']:.1%}, never updated {summary['frozen']:.1%}" in said
    _, note = load(tmp_path / "s", bundle_path, "deco+")
    assert note is None
    again, _ = run(bundle_path, *more, "--max-segments", "1", name="deco+", recipe=[])
    assert again["before"] == summary["learned"]  # what was learned is there at the next start


def plain_accuracy(bundle: Path, frames: int) -> float:
    """Share of the first frames of the demo stream that the bundle's model answers right as it is."""
    from deco_runtime.engines.registry import open_engine
    from deco_runtime.preprocess import preprocess
    from deco_runtime.sources import _playback

    opened, labels, right = open_bundle(bundle), np.load(bundle / "demo" / "labels.npy"), 0
    engine, theta = open_engine(opened, "portable"), opened.weights()
    with closing(_playback.open_file(bundle / "demo" / "stream.avi")) as stream:
        for label, frame in zip(labels[:frames], stream.frames(), strict=False):
            assert isinstance(frame, Frame)
            x = preprocess(frame.pixels, opened.preprocessing)[None]
            right += int(engine.predict(theta, x)[0].argmax() == label)
    return right / frames


@pytest.mark.everywhere
def test_both_engines_learn_the_same(bundle_path: Path, tmp_path: Path) -> None:
    from deco_runtime.engines.registry import engines

    if reason := engines()["ort-training"].unusable(open_bundle(bundle_path)):
        pytest.skip(reason)
    for name in ("portable", "ort-training"):
        state = ["--state", f"{tmp_path}/{name}"]
        summary, _ = run(bundle_path, "--demo", *state, "--engine", name, "--max-segments", "2")
        assert summary["engine"] == name
    a, b = (learned(tmp_path / name, bundle_path).arrays["model"] for name in ("portable", "ort-training"))
    assert not np.array_equal(a, open_bundle(bundle_path).weights())
    assert np.abs(a - b).max() <= 1e-3 * np.abs(b).max()


@both_recipes
def test_a_run_goes_on_where_the_last_one_stopped(
    name: str, recipe: list[str], bundle_path: Path, tmp_path: Path
) -> None:
    by = {"name": name, "recipe": recipe}
    run(bundle_path, "--demo", "--state", f"{tmp_path}/whole", "--max-segments", "5", **by)
    for count in ("1", "2", "2"):
        _, said = run(bundle_path, "--demo", "--state", f"{tmp_path}/parts", "--max-segments", count, **by)
    assert "goes on with" in said
    assert same(learned(tmp_path / "whole", bundle_path, name), learned(tmp_path / "parts", bundle_path, name))


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("paper", ["segment=16", "retrain_interval=1", "retrain_epochs=3", "iterations=2"]), ("deco+", ["segment=16"])],
)
def test_kill_nine_at_any_moment_loses_nothing_but_time(
    name: str, recipe: list[str], bundle_path: Path, tmp_path: Path
) -> None:
    """A run killed again and again ends with the very state of one that was left alone."""
    total, by = 40, {"name": name, "recipe": recipe}
    demo = ["--video", str(bundle_path / "demo" / "stream.avi"), "--save-every", "0"]  # as --demo, but not scored
    run(bundle_path, *demo, "--max-segments", str(total), "--state", f"{tmp_path}/whole", **by)
    target = learned(tmp_path / "whole", bundle_path, name)
    chance = random.Random(0)
    kills = 0
    for _ in range(40):
        state, _ = load(tmp_path / "killed", bundle_path, name)
        left = total - (counts(state)["segments"] if state else 0)
        if left == 0:
            break
        command = arguments(bundle_path, *demo, "--max-segments", str(left), "--state", f"{tmp_path}/killed", **by)
        before = counts(state)["segments"] if state else 0
        with started(command, stdout=subprocess.DEVNULL) as process:
            if kills < 5:
                wait_for_progress(tmp_path / "killed", before)
                time.sleep(chance.uniform(0, 0.05))
                if process.poll() is None:
                    process.kill()
                    kills += 1
            assert process.wait(60) in (0, -signal.SIGKILL)
    assert kills >= 3
    assert same(learned(tmp_path / "killed", bundle_path, name), target)


def wait_for_progress(directory: Path, before: int) -> None:
    """Until the state file was written anew."""
    old = saved_at(directory)
    deadline = time.monotonic() + 60
    while saved_at(directory) in (old, 0):
        assert time.monotonic() < deadline, f"no progress beyond {before} segments"
        time.sleep(0.01)


def saved_at(directory: Path) -> int:
    """When the state file was written, in ns; 0 while there is none, as between the two renames of a save."""
    try:
        return (directory / states.CURRENT).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_quickly(number: signal.Signals, bundle_path: Path, tmp_path: Path) -> None:
    """Even in the middle of a long retraining: what was condensed is kept, the update is taken up by the next run."""
    recipe = ["segment=16", "retrain_interval=2", "retrain_epochs=100000", "iterations=2"]
    log = tmp_path / "e"
    command = arguments(
        bundle_path, "--demo", "--state", f"{tmp_path}/s", "--events", str(log),
        recipe=recipe,
    )  # fmt: skip
    with started(command) as process:
        wait_for(log, "segment", 2)
        time.sleep(0.3)  # now it retrains, for hours
        summary, _ = stop(process, number)
    assert summary["segments"] == 2
    state = learned(tmp_path / "s", bundle_path)
    assert counts(state) == {"segments": 2, "since_retrain": 2, "retrains": 0, "dropped": 0, "merges": 0, "offers": 0}
    summary, _ = run(bundle_path, "--demo", "--state", f"{tmp_path}/s", "--max-segments", "1")
    assert summary["retrains"] == 1  # the one that was due
    run(bundle_path, "--demo", "--state", f"{tmp_path}/whole", "--max-segments", "3")
    assert same(learned(tmp_path / "s", bundle_path), learned(tmp_path / "whole", bundle_path))


HARM = ["segment=16", "retrain_interval=1", "retrain_epochs=1", "iterations=1", "retrain_rate=1e4"]
"""At this rate weight decay turns the weights round: every update is useless."""


def test_harm_is_rolled_back_then_learning_pauses_and_is_tried_again(bundle_path: Path, tmp_path: Path) -> None:
    more = ["--demo", "--max-segments", "7", "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e"]
    summary, said = run(bundle_path, *more, recipe=HARM)
    guard = events(tmp_path / "e", "guard")
    # after the third a pause of one segment, after the fourth one of two
    expected = [("rejected", 1), ("rejected", 2), ("rejected", 3), ("resumed", 4), ("rejected", 5), ("resumed", 7)]
    assert [(line["decision"], line["segment"]) for line in guard] == expected
    rejected = [line for line in guard if line["decision"] == "rejected"]
    assert [(line["rejections"], line["pause"]) for line in rejected] == [(1, 0), (2, 0), (3, 1), (4, 2)]
    assert all(line["reason"] and line["scores"]["images"] == 10 for line in rejected)
    assert not any(line["accepted"] for line in events(tmp_path / "e", "retrain"))
    assert f"update 1 rejected, it {rejected[0]['reason']}: goes back" in said
    assert "learning pauses for 1 segments after 3 rejections in a row; prediction goes on" in said
    assert "the pause is over: learning goes on" in said
    assert summary["learned"] == summary["frozen"]
    assert summary["frames"] == 112
    assert summary["dropped_updates"] == 4
    state, bundle = learned(tmp_path / "s", bundle_path), open_bundle(bundle_path)
    assert np.array_equal(state.arrays["model"], bundle.weights())
    assert np.array_equal(state.arrays["x_syn"], initial(bundle).x_syn)


def test_a_run_goes_on_in_the_middle_of_a_pause(bundle_path: Path, tmp_path: Path) -> None:
    run(bundle_path, "--demo", "--state", f"{tmp_path}/whole", "--max-segments", "9", recipe=HARM)
    for count in ("5", "4"):
        run(bundle_path, "--demo", "--state", f"{tmp_path}/parts", "--max-segments", count, recipe=HARM)
    whole, parts = learned(tmp_path / "whole", bundle_path), learned(tmp_path / "parts", bundle_path)
    assert same(whole, parts)
    assert whole.values["guard"] == parts.values["guard"] == {"rejections": 5, "pause": 3}
    for state in (whole, parts):  # nothing was ever accepted, and the guard keeps no other memory
        assert np.array_equal(state.arrays["x_syn"], initial(open_bundle(bundle_path)).x_syn)
        assert not state.arrays["velocity"].any()
        assert "guard_x_syn" not in state.arrays
    assert np.array_equal(whole.arrays["guard_best"], parts.arrays["guard_best"])


def test_what_was_learned_without_a_guard_is_judged_by_the_next_run(bundle_path: Path, tmp_path: Path) -> None:
    more = ["--demo", "--state", f"{tmp_path}/s", "--max-segments", "1"]
    summary, _ = run(bundle_path, *more, "--no-guard", recipe=HARM)
    assert summary["learned"] < summary["frozen"] - 0.1
    assert "guard" not in learned(tmp_path / "s", bundle_path).values
    summary, said = run(bundle_path, *more, "--events", f"{tmp_path}/e")
    assert "goes back to what the bundle starts with" in said
    assert events(tmp_path / "e", "guard")[0]["decision"] == "rolled back"
    assert summary["learned"] == summary["frozen"]
    assert np.array_equal(learned(tmp_path / "s", bundle_path).arrays["model"], open_bundle(bundle_path).weights())


def test_statistics_learned_without_a_guard_are_judged_by_the_next_run(bundle_path: Path, tmp_path: Path) -> None:
    """No setting of deco+ does harm, so what is saved here learned that every digit is the one opposite."""
    start = start_of(bundle_path, "deco+")
    learner = start.learner
    before, memory = learner.model, learner.memory
    learner.memory = replace(memory, b=memory.b[:, ::-1])
    assert start.retrain().accepted
    states.save(tmp_path / "s", states.LearnedState.of(start, open_bundle(bundle_path), "", 0))
    more = ["--demo", "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e", "--max-segments", "1"]
    seldom = ["segment=16", "retrain_interval=9"]
    for guarded in (False, True):
        summary, said = run(bundle_path, *more, *([] if guarded else ["--no-guard"]), name="deco+", recipe=seldom)
        score = events(tmp_path / "e", "score")[-1]
        assert (
            (score["deployed"] > score["frozen"] - 0.1)
            is ("goes back to what the bundle starts with" in said)
            is guarded
        )
        assert score["deployed"] == summary["learned"]
        first = [line for line in events(tmp_path / "e", "score") if line["when"] == "before"][-1]
        assert summary["before"] == first["deployed"]
        assert (summary["before"] > summary["frozen"] - 0.1) is guarded  # a run starts with what was learned
    assert [line["decision"] for line in events(tmp_path / "e", "guard")] == ["rolled back"]
    state = learned(tmp_path / "s", bundle_path, "deco+")
    assert np.array_equal(state.arrays["model"], before)
    assert "guard" in state.values
    assert all(np.array_equal(state.arrays[f"guard_{name}"], array) for name, array in arrays_of(memory).items())
    assert not all(np.array_equal(state.arrays[name], array) for name, array in arrays_of(memory).items())


def test_without_guard_images_the_other_checks_are_on_and_it_is_said(bundle_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    del manifest["files"]["guard.npz"]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    summary, said = run(copy, "--demo", "--max-segments", "2", "--events", f"{tmp_path}/e", recipe=HARM)
    assert "note: the bundle holds no labelled images for the guard" in said
    assert [line["decision"] for line in events(tmp_path / "e", "guard")] == ["rejected", "rejected"]
    assert summary["learned"] == summary["frozen"]


def test_a_finished_stream_starts_over(bundle_path: Path, tmp_path: Path) -> None:
    recipe = ["segment=400", "retrain_interval=9", "iterations=1"]
    for segments in (3, 6):
        run(bundle_path, "--demo", "--state", f"{tmp_path}/s", recipe=recipe)
        state = learned(tmp_path / "s", bundle_path)
        assert counts(state)["segments"] == segments
        assert state.position == 0


def test_plain_inference_learns_and_saves_nothing(bundle_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    summary, _ = run(copy, "--demo", "--no-learn", "--events", f"{tmp_path}/e", "--max-segments", "4")
    assert summary["learned"] == summary["frozen"]
    assert summary["retrains"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "e"]
    assert [sum(e["votes"].values()) for e in events(tmp_path / "e", "segment")] == [16] * 4


@both_recipes
def test_plain_inference_never_changes_and_takes_up_nothing(
    name: str, recipe: list[str], bundle_path: Path, tmp_path: Path
) -> None:
    """Every answer of a whole stream is that of the bundle's model, though a better one was learned already."""
    demo = ["--demo", "--state", f"{tmp_path}/s"]
    run(bundle_path, *demo, "--max-segments", "3", name=name, recipe=recipe)
    assert counts(learned(tmp_path / "s", bundle_path, name))["retrains"] == 1
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "s").iterdir()}
    more = ["--no-learn", "--events", f"{tmp_path}/e", "--save-every", "0"]
    summary, said = run(bundle_path, *demo, *more, name=name, recipe=recipe)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "s").iterdir()} == before
    assert summary["learned"] == summary["before"] == summary["frozen"]
    assert summary["frames"] == len(np.load(bundle_path / "demo" / "labels.npy"))
    assert summary["stream_accuracy"] == plain_accuracy(bundle_path, summary["frames"])
    assert [summary[key] for key in ("retrains", "dropped_updates", "saved_bytes", "unlearned_frames")] == [0] * 4
    lines = events(tmp_path / "e")
    assert {line["event"] for line in lines} == {"source", "segment", "score"}
    assert [(line["when"], line["deployed"]) for line in lines if line["event"] == "score"] == [
        ("before", summary["frozen"]), ("after", summary["frozen"]),
    ]  # fmt: skip
    for line in events(tmp_path / "e", "segment"):
        assert not {"active", "kept", "dropped", "pseudo_accuracy"} & line.keys()
    assert "goes on with" not in said


def write_folder(bundle: Path, root: Path, per_class: int) -> None:
    """Digits of the bundle's test images as root/<class>/<n>.png."""
    import cv2

    opened = open_bundle(bundle)
    pixels, labels = opened.labelled_pixels("demo/test.npz")
    for c, name in enumerate(opened.classes):
        (root / name).mkdir(parents=True)
        for i, image in enumerate(pixels[labels == c][:per_class]):
            assert cv2.imwrite(str(root / name / f"{i}.png"), image)


def test_a_folder_as_a_stream_with_hidden_labels(bundle_path: Path, tmp_path: Path) -> None:
    write_folder(bundle_path, tmp_path / "images", 12)
    write_folder(bundle_path, tmp_path / "all", 24)
    (tmp_path / "images" / "3" / "broken.png").write_bytes(b"\x89PNG nonsense")
    more = ["--images", f"{tmp_path}/images", "--stc", "12", "--test", f"{tmp_path}/all"]
    summary, said = run(bundle_path, *more, "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e")
    assert summary["frames"] == 120
    assert summary["before"] == summary["frozen"]
    assert summary["segments"] == 7
    assert "broken.png" in said
    assert "note: left out of the test images those that the model learns from (120 streamed)" in said
    assert summary["stream_accuracy"] == pytest.approx(summary["frozen"], abs=0.15)
    assert any(line["pseudo_accuracy"] is not None for line in events(tmp_path / "e", "segment"))


def test_the_order_of_a_folder_is_in_its_name_and_so_in_the_state(bundle_path: Path, tmp_path: Path) -> None:
    write_folder(bundle_path, tmp_path / "images", 4)
    more = ["--images", f"{tmp_path}/images", "--state", f"{tmp_path}/s", "--max-segments", "1"]
    _, said = run(bundle_path, *more, "--order", "recorded")
    assert "note: 4 file names are in more than one class" in said
    assert learned(tmp_path / "s", bundle_path).source.endswith("images, as recorded")
    _, said = run(bundle_path, *more)
    assert "goes on with" not in said
    _, said = run(bundle_path, *more)
    assert "goes on with" in said


def ones_of(bundle: Path) -> list[np.ndarray]:
    import cv2

    pixels, labels = open_bundle(bundle).labelled_pixels("demo/test.npz")
    return [cv2.resize(p, (64, 48)) for p in pixels[labels == 1][:8]]


def test_a_live_stream_learns_in_its_own_thread(bundle_path: Path, tmp_path: Path) -> None:
    ones = ones_of(bundle_path)
    with mjpeg_server(lambda i: ones[i % 8], fps=200) as url:
        summary, _ = run(
            bundle_path, "--video", url, "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e", "--max-segments", "4"
        )
    assert summary["segments"] == 4
    state = learned(tmp_path / "s", bundle_path)
    assert counts(state)["segments"] + summary["dropped_segments"] == 4
    assert counts(state)["segments"] >= 1
    assert state.position == 0
    opened, *segments = events(tmp_path / "e", "source")[:1] + events(tmp_path / "e", "segment")
    assert [opened[key] for key in ("action", "width", "height", "fourcc")] == ["opened", 64, 48, "MJPG"]
    for line in [summary, *segments]:
        assert 0 < line["frame_age_ms"]["median"] <= line["frame_age_ms"]["max"] < 60_000


def test_nothing_is_learned_from_frozen_black_and_half_frames(bundle_path: Path, tmp_path: Path) -> None:
    """Of six frames, two are good; one of them is shown again, one is black, and two come by half."""
    ones = ones_of(bundle_path)

    def picture(i: int) -> np.ndarray:
        return np.zeros_like(ones[0]) if i % 6 == 4 else ones[i // 3 % 8]

    with mjpeg_server(picture, "half") as url:
        summary, _ = run(bundle_path, "--video", url, "--state", f"{tmp_path}/s", "--max-segments", "3")
    assert min(summary["frozen_frames"], summary["black_frames"], summary["damaged"]) >= 5
    assert summary["frames"] - summary["frozen_frames"] - summary["black_frames"] == 3 * 16


def running(bundle: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(arguments(bundle, *more))


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[dict, str]:
    """The summary, and what was said on stderr; it ends cleanly and within seconds."""
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 10
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


def test_a_camera_that_was_away_is_learned_from_again(bundle_path: Path, tmp_path: Path) -> None:
    ones, e = ones_of(bundle_path), tmp_path / "e"
    with ExitStack() as stack:
        with mjpeg_server(lambda i: ones[i % 8], fps=60) as url:
            options = ["--video", url, "--state", f"{tmp_path}/s", "--events", str(e)]
            process = stack.enter_context(running(bundle_path, *options))
            wait_for(e, "segment")
        (lost,) = wait_for(e, "source", action="lost")
        assert lost["stalled"] is False
        assert "ended or the connection dropped" in lost["reason"]
        before = len(events(e, "segment"))
        with mjpeg_server(lambda i: ones[i % 8], fps=60, port=int(url.split(":")[2].split("/")[0])):
            (back,) = wait_for(e, "source", action="reconnected")
            assert back["width"] == 64
            wait_for(e, "segment", before + 2)  # the first of these may have been in work before
        wait_for(e, "source", 2, action="lost")
        summary, said = stop(process, signal.SIGTERM)  # while it waits
    assert summary["reconnects"] == 1
    assert said.count("it is tried again until it is back") == 2
    assert said.count("is back after") == 1
    assert counts(learned(tmp_path / "s", bundle_path))["segments"] == len(events(e, "segment")) >= before + 2
    assert events(e, "source")[-1]["action"] == "ended"
    assert events(e, "source")[-1]["reconnects"] == 1


def test_opencv_that_never_comes_back_does_not_keep_the_run(bundle_path: Path, tmp_path: Path) -> None:
    """A stream goes silent: the read blocks inside OpenCV, and after it the opening, which gets no picture."""
    from deco_runtime.sources._live import STALL_S

    clients, over = [], threading.Event()

    def picture(i: int) -> np.ndarray:
        clients.extend([1] if i == 0 else [])
        if len(clients) > 1:  # the next one gets a header, and then nothing
            over.wait()
        return numbered(i)

    with mjpeg_server(picture, "stall", after=40) as url:
        options = ["--video", url, "--state", f"{tmp_path}/s", "--events", f"{tmp_path}/e"]
        with running(bundle_path, *options) as process:
            (lost,) = wait_for(tmp_path / "e", "source", action="lost")
            assert lost["stalled"] is True
            assert f"every {STALL_S:g} s" in lost["reason"]
            limit = time.monotonic() + 60
            while len(clients) < 2:
                assert time.monotonic() < limit, "it does not try again"
                time.sleep(0.02)
            time.sleep(0.5)  # now it hangs in opening
            summary, _ = stop(process, signal.SIGINT)
        over.set()
    assert summary["frames"] > 0
    assert summary["stalls"] == 1


@pytest.mark.skipif(not VIDEOS.is_dir(), reason="the project's shared sample videos are not on this machine")
@pytest.mark.parametrize("name", ["cockatoo", "realshort"])
def test_real_clips_go_through_the_capture_path(name: str, bundle_path: Path, tmp_path: Path) -> None:
    summary, _ = run(bundle_path, "--video", str(VIDEOS / f"{name}.mp4"), "--state", f"{tmp_path}/s")
    assert summary["frames"] >= 30
    assert summary["dropped_frames"] == 0
    assert counts(learned(tmp_path / "s", bundle_path))["segments"] == summary["segments"] >= 1


def test_two_runs_do_not_need_each_other(bundle_path: Path, tmp_path: Path) -> None:
    """Without --state the state lies beside the bundle, under the bundle's name."""
    copy = tmp_path / "mine"
    shutil.copytree(bundle_path, copy)
    run(copy, "--demo", "--max-segments", "1")
    assert (tmp_path / "mine-state" / states.CURRENT).is_file()
    assert sorted(os.listdir(copy)) == sorted(os.listdir(bundle_path))
