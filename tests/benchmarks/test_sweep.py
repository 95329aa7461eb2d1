"""deco-eval as its users run it, on the digits and the smallest preset; in processes where these can matter."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")

from bases import quick_base
from click.testing import CliRunner
from deco_benchmarks import sweep
from deco_benchmarks.config import Config
from deco_benchmarks.eval_cli import command, main
from deco_benchmarks.sweep import read
from deco_benchmarks.trial import base_bundle, order_of, split
from deco_export.data import digits
from deco_runtime.errors import DecoError, UsageError
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.storage.lock import lock, unlock
from processes import here

pytestmark = pytest.mark.usefixtures("one_thread")
KEYS = (
    "row", "dataset", "labelled", "ipc", "stream", "seed", "final_accuracy", "frozen_accuracy", "seconds",
    "peak_memory_mb",
)  # fmt: skip


COMMAND = (sys.executable, "-c", "from deco_benchmarks.eval_cli import main; main()")


def deco_eval(*arguments: object) -> subprocess.CompletedProcess[str]:
    return here(main, *arguments)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a sweep in a process of its own."""
    out = tmp_path_factory.mktemp("results")
    asked = ["run", "--rows", "DECO,Frozen,Head", "--ipc", "2", "--seeds", "1", "--out", str(out)]
    done = subprocess.run([*COMMAND, *asked], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def begun(swept: Path, tmp_path: Path) -> Path:
    """A folder without results, beside which lies the bundle that its trials start from, as from an earlier sweep."""
    shutil.copytree(swept / ".bases", tmp_path / "out" / ".bases")
    return tmp_path / "out"


def results(out: Path) -> dict[str, dict]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return {f"{r['row']}-{r['seed']}": r for r in found}


def test_each_trial_is_one_file_with_everything_to_rerun_it(swept: Path) -> None:
    found = results(swept)
    assert sorted(found) == ["DECO-0", "Frozen-0", "Head-0"]
    for result in found.values():
        assert set(KEYS) <= result.keys()
        assert result["segments"] == 5
        assert [point["frames"] for point in result["curve"]] == [0, 80, 160, 200]
        assert result["curve"][-1]["accuracy"] == result["final_accuracy"]
        assert result["curve"][0]["accuracy"] == result["before_accuracy"] == result["before_accuracy_clean"]
        assert {"config", "recipe", "bundle", "versions"} <= result.keys()
    frozen = found["Frozen-0"]
    assert frozen["final_accuracy"] == frozen["frozen_accuracy"] == frozen["before_accuracy"] > 0.5
    assert found["Head-0"]["before_accuracy"] != frozen["before_accuracy"]  # a classifier of its own from the start
    assert len({r["bundle"] for r in found.values()}) == 1
    assert {r["frozen_accuracy"] for r in found.values()} == {frozen["final_accuracy"]}
    deco = found["DECO-0"]
    assert deco["before_accuracy"] == frozen["before_accuracy"]
    assert deco["state_bytes"] == 2 * 4 * 20 * 3 * 16 * 16  # two images of each class and their velocity, float32
    for name, iterations in (("DECO-0", deco["recipe"]["iterations"]), ("Frozen-0", 0), ("Head-0", 0)):
        assert [len(of_segment) for of_segment in found[name]["distances"]] == 5 * [iterations]  # of what condenses
    for name in ("deco", "frozen", "head"):
        (pictures,) = swept.glob(f"{name}-*.npz")
        with np.load(pictures) as buffer:
            if name == "deco":
                assert (buffer["before"] != buffer["after"]).any()
            else:
                assert not buffer.files  # no images are kept
    assert found["Head-0"]["state_bytes"] > found["Frozen-0"]["state_bytes"]


def test_what_is_there_is_not_done_again(swept: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.glob("*.json")}
    done = deco_eval("run", "--rows", "DECO,Frozen", "--ipc", 2, "--seeds", 1, "--out", swept)
    assert "2 of 2 trials are in" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in swept.glob("*.json")} == before


def test_augmented_pretraining_makes_a_base_of_its_own(swept: Path) -> None:
    plain = Config("DECO+", "digits", 0.1, 2, "stc=500", 0, "smoke", engine="portable")
    augmented, dataset, folder = replace(plain, pretraining="augmented"), read("digits", 16), swept / ".bases"
    (old,) = folder.iterdir()
    assert base_bundle(dataset, plain, folder, lambda *_: None) == old
    new = quick_base(augmented, folder)
    assert base_bundle(dataset, augmented, folder, lambda *_: pytest.fail("exported again")) == new != old
    made = [open_bundle(path) for path in (old, new)]
    assert [bundle.recipe.name for bundle in made] == ["paper", "deco+"]
    assert [bundle.made_with["epochs"] for bundle in made] == [30, 30]
    assert plain.key != augmented.key


def test_two_jobs_give_what_one_gives(swept: Path, begun: Path) -> None:
    done = deco_eval("run", "--rows", "DECO,Frozen", "--ipc", 2, "--seeds", 1, "--jobs", 2, "--out", begun)
    assert done.returncode == 0, done.stderr
    one, two = results(swept), results(begun)
    for name in ("DECO-0", "Frozen-0"):
        assert two[name]["final_accuracy"] == pytest.approx(one[name]["final_accuracy"], abs=0.03)


def trial_processes(parent: int, title: str) -> list[int]:
    """Processes below `parent` whose command line holds `title`."""
    parents, titled = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if title in (folder / "cmdline").read_text(errors="replace"):
                titled.append(pid)

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == parent:
                return True
        return False

    return [pid for pid in titled if below(pid)]


@contextlib.contextmanager
def sweeping(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """deco-eval, in a process group of its own that is gone afterwards."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill_one(process: subprocess.Popen[str], title: str, least: int) -> None:
    """SIGKILL one process below that has `title`, as soon as there are so many: a trial here is over in a moment."""
    deadline, killed = time.monotonic() + 120, False
    while not killed:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        if len(found := trial_processes(process.pid, title)) < least:
            time.sleep(0.01)
            continue
        with contextlib.suppress(ProcessLookupError):  # it may have ended since
            os.kill(found[0], signal.SIGKILL)
            killed = True


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker in /proc")
def test_a_ray_worker_killed_in_the_middle_of_a_trial(swept: Path, begun: Path) -> None:
    """Two workers; the trial of the killed one is done again, and all results are what one process gives."""
    pytest.importorskip("ray")
    asked = ("--rows", "DECO,Frozen,Head", "--ipc", 2, "--seeds", 1, "--ray", "local", "--jobs", 2)
    with sweeping("run", *asked, "--out", begun) as process:
        kill_one(process, "ray::_attempt_far_away", 1)
        _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert not list(begun.glob("*.failed"))
    one, two = results(swept), results(begun)
    assert two.keys() == one.keys()
    for name, result in two.items():
        assert result["final_accuracy"] == pytest.approx(one[name]["final_accuracy"], abs=0.03)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker in /proc")
def test_a_killed_worker_of_jobs_is_one_sentence(begun: Path) -> None:
    with sweeping("run", "--rows", "DECO,Head", "--ipc", 2, "--seeds", 1, "--jobs", 2, "--out", begun) as process:
        kill_one(process, "spawn_main", 2)
        _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "expected the workers of --jobs to live, but one was killed" in said
    assert "Traceback" not in said


def test_a_ray_cluster_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = deco_eval("run", "--rows", "Frozen", "--ray", "127.0.0.1:1", "--out", tmp_path)
    assert done.returncode == 2
    assert "expected a Ray cluster at --ray 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_trial_is_recorded_and_the_others_go_on(begun: Path) -> None:
    done = deco_eval("run", "--rows", "Frozen", "--ipc", "2,500", "--seeds", 1, "--out", begun)
    assert done.returncode == 0, done.stderr
    assert "1 trials failed" in done.stderr
    assert [r["ipc"] for r in results(begun).values()] == [2]
    (failed,) = begun.glob("*.failed")
    assert "--ipc 500" in json.loads(failed.read_text())["error"]
    assert "ipc 500, seed 0: failed: expected" in done.stdout


@pytest.mark.parametrize("pretraining", ["plain", "augmented"])
def test_rows_that_keep_no_image_start_from_a_bundle_without_a_buffer(
    pretraining: str, swept: Path, tmp_path: Path
) -> None:
    if pretraining == "augmented":  # which takes minutes
        quick_base(Config("DECO+", "digits", 0.1, 0, "", 0, "smoke", pretraining=pretraining), tmp_path / ".bases")
    rows = ("--rows", "DECO+,Frozen,Head", "--ipc", 0, "--seeds", 1, "--pretraining", pretraining)
    done = deco_eval("run", *rows, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path)
    assert sorted(found) == ["DECO+-0", "Frozen-0", "Head-0"]
    for result in found.values():
        assert (result["ipc"], result["buffer_right_before"]) == (0, None)
        assert len(result["curve"]) > 2
    (bundle,) = (tmp_path / ".bases").iterdir()
    assert "buffer.npz" not in open_bundle(bundle).files
    (with_images,) = (swept / ".bases").glob("*-ipc2-seed0")
    same = np.array_equal(open_bundle(bundle).weights(), open_bundle(with_images).weights())
    assert same is (pretraining == "plain")


def test_a_drifting_stream_is_scored_at_its_end_and_clean(begun: Path) -> None:
    drifting = ("--stream", "stc=50,interleave=2,drift=5")
    done = deco_eval("run", "--rows", "Frozen", "--ipc", 2, "--seeds", 1, *drifting, "--out", begun)
    assert done.returncode == 0, done.stderr
    (result,) = results(begun).values()
    assert result["final_accuracy"] == result["frozen_accuracy"] < result["final_accuracy_clean"]
    assert result["final_accuracy_clean"] == result["frozen_accuracy_clean"] == result["before_accuracy_clean"]
    said = f"before the stream {result['before_accuracy']:.1%}, after it {result['final_accuracy']:.1%}, never updated"
    assert said in done.stdout


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as photos/<class>/<n>.png, and 90 others below room/stream that a camera saw one after the other, 2 to 9
    in turn; test images in room/test."""
    root, images, rng = tmp_path_factory.mktemp("recording"), digits(16), np.random.default_rng(0)
    left = [rng.permutation(np.flatnonzero(images.labels == c)).tolist() for c in range(10)]

    def write(part: str, name: str, c: int) -> None:
        (root / part / str(c)).mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(root / part / str(c) / f"{name}.png"), images.pixels[left[c].pop()])

    for c in range(10):
        for number in range(12):
            write("photos", str(number), c)
            write("room/test", str(number), c)
    for number in range(90):
        write("room/stream", f"{number // 50}_{number % 50}", 2 + number // 5 % 8)
    return root


def test_a_recorded_stream_and_labelled_images_of_another_folder(recording: Path, tmp_path: Path) -> None:
    data = ("--data", recording / "room", "--labelled-from", recording / "photos", "--stream", "recorded")
    rows = ("--rows", "Frozen,Head", "--ipc", 0, "--seeds", 1)
    done = deco_eval("run", *data, *rows, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note:" not in done.stderr
    found = results(tmp_path)
    assert sorted(found) == ["Frozen-0", "Head-0"]
    for result in found.values():
        assert (result["dataset"], result["labelled"], result["labelled_from"]) == ("room", 1.0, "photos")
        assert (result["segments"], result["test_images"]) == (2, 100)  # of 40 frames; the preset scores on 100
        assert result["config"]["labelled_from"] == "photos"
    (base,) = (tmp_path / ".bases").iterdir()
    assert base.name == "room-smoke-labelled1-ipc0-seed0-from-photos"
    made_with = open_bundle(base).made_with
    assert made_with["train_images"] + made_with["validation_images"] == 120
    table = deco_eval("table", tmp_path)
    assert "### room, labelled images of photos, recorded, preset smoke" in table.stdout


def test_recorded_images_come_as_the_camera_saw_them(recording: Path) -> None:
    dataset = read(str(recording / "room"), 16, str(recording / "photos"))
    config = Config("Frozen", "room", 1.0, 0, "recorded", 3, "smoke", labelled_from="photos")
    _, stream, _ = split(dataset, config)
    assert stream.labels[order_of(stream, config)].tolist() == [2 + n // 5 % 8 for n in range(90)]


def test_names_that_repeat_are_told(recording: Path, tmp_path: Path) -> None:
    asked = ("--data", recording / "photos", "--stream", "recorded", "--rows", "Frozen", "--ipc", 0, "--seeds", 1)
    done = deco_eval("run", *asked, "--labelled", 0.5, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: 12 file names are in more than one class, so by name" in done.stderr
    (result,) = results(tmp_path).values()
    assert (result["labelled"], result["labelled_from"]) == (0.5, None)


def test_two_sweeps_into_one_folder(tmp_path: Path) -> None:
    held, _ = lock(tmp_path)  # as another sweep has it
    done = deco_eval("run", "--rows", "Frozen", "--ipc", 0, "--seeds", 1, "--out", tmp_path)
    unlock(held)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: expected to be the only sweep that writes to --out {tmp_path}, but another one does now; wait until "
        "that ends or, for more trials at a time, give --jobs to one sweep\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_a_result_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_file(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config, outcome = Config("Frozen", "digits", 0.1, 0, "stc=500", 0, "smoke"), sweep.Outcome({"row": "Frozen"}, {})
    monkeypatch.setattr(sweep, "base_bundle", lambda *_: tmp_path)
    monkeypatch.setattr(os, "replace", replace_file)
    said = rf"^expected to write results to {tmp_path}, but the system says: No space left on device; free space or"
    with pytest.raises(DecoError, match=said):
        sweep.run_sweep(
            *([config], "digits", None, tmp_path, lambda _: iter([(config, outcome)]), lambda *_: None),
            lambda *_: pytest.fail("it is not on the disk"),
        )
    unlock(lock(tmp_path)[0])  # the next sweep may have the folder


@pytest.mark.parametrize("words", [["run", "--rows", "Frozen", "--ipc", "0"], ["plot", "nowhere"]])
def test_no_directory_for_temporary_files(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    done = CliRunner().invoke(command, [*words, "--out", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "set TMPDIR" in str(done.exception)


def test_a_disk_that_fails_a_trial_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_trial(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "weights.npy")

    monkeypatch.setattr(sweep, "run_trial", run_trial)
    config = Config("Frozen", "digits", 0.1, 0, "stc=500", 0, "smoke")
    outcome = sweep.attempt(sweep.Task(config, "digits", None, tmp_path, None))
    said = "expected to use weights.npy, but the system says: Input/output error; check it"
    assert outcome.result == {"error": said, "row": "Frozen", "ipc": 0, "seed": 0}


def test_the_table_of_a_sweep(swept: Path) -> None:
    done = deco_eval("table", swept)
    assert done.returncode == 0, done.stderr
    assert "### digits, 10% labelled, stc=500, preset smoke" in done.stdout
    assert done.stdout.count("| 2 | 1 |") == 3


def test_a_setting_is_one_of_every_row(tmp_path: Path) -> None:
    asked = ["run", "--rows", "DECO,DECO+", "--set", "alpha=0", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(command, asked)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(
        "expected --set KEY=VALUE with KEY one of segment, retrain_interval, taught_weight for --recipe deco+, but"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--rows", "Nonsense"), "expected --rows all or names among"),
        (("run", "--ipc", "ten"), "expected --ipc as whole numbers"),
        (
            ("run", "--rows", "DECO+,DECO,Head", "--ipc", "0,10"),
            "of at least 1, for row DECO, which keeps images, but found 0",
        ),
        (("run", "--rows", "DECO+", "--ipc", "-1"), "expected --ipc of at least 0, which is no images, but found -1"),
        (("run", "--stream", "stc=zero", "--rows", "Frozen"), "stc"),
        (("run", "--stream", "recorded,stc=5", "--rows", "Frozen"), "expected --stream as recorded alone, or as KEY"),
        (("run", "--stream", "recorded", "--rows", "Frozen"), "expected --data to be an image folder for --stream rec"),
        (("run", "--labelled-from", "x", "--rows", "Frozen"), "expected --data to be an image folder for --labelled-f"),
        (("run", "--labelled-from", "x", "--labelled", "0.1", "--rows", "Frozen"), "expected --labelled-from alone"),
        (("run", "--set", "alhpa=0", "--rows", "DECO"), "expected --set KEY=VALUE with KEY one of"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = deco_eval(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
