"""What a user can get wrong with deco-run: one sentence, an exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import util
from pathlib import Path

import cv2
import deco_runtime
import numpy as np
import pytest
from bundles import without
from deco_runtime.commands.run import main
from deco_runtime.engines.registry import engines
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import initial
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.state import CURRENT, LearnedState, save
from deco_runtime.storage.state import load as load_like
from fake_engine import fresh
from processes import here

RUNTIME = Path(deco_runtime.__file__).parents[1]
PROGRAM = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
"""No device has torch, and the training build of onnxruntime, where it finds it, takes seconds to import it."""

FEW = ("--set", "iterations=1", "--max-segments", "1")


def deco_run(*arguments: str | Path, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """deco-run in a process of its own."""
    # Last, because an installed package lies in a folder with all others, a test's own among them.
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(RUNTIME)])
    engine = ("--engine", "portable") if "--bundle" in arguments else ()  # auto would time all engines in every test
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *engine, *arguments],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
        preexec_fn=limit,
    )


def refused(code: int, words: str, *arguments: str | Path, limit: Callable[[], None] | None = None) -> None:
    """The run ends with this exit code and one sentence that contains these words, and says nothing else."""
    refuses(deco_run(*arguments, limit=limit), code, words)


def refused_here(code: int, words: str, *arguments: str | Path) -> None:
    """The same of a run in this process, which keeps the lock on its --state: for what comes once, or before that."""
    engine = ("--engine", "portable") if "--bundle" in arguments else ()
    refuses(here(main, *engine, *arguments), code, words)


def refuses(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert done.returncode == code
    assert done.stdout == ""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def copy(tmp_path: Path, bundle_path: Path) -> Path:
    """A copy of the small bundle that a test may damage."""
    return shutil.copytree(bundle_path, tmp_path / "copy")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with one image in each of two classes of the bundle."""
    for name in ("3", "7"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "photos" / name / "a.png"), np.full((20, 20, 3), 90, np.uint8))
    return tmp_path / "photos"


def learned(path: Path, directory: Path, bundle: str | None = None) -> None:
    """Save the state of a learner that has learned nothing yet, perhaps in the name of another bundle."""
    opened = open_bundle(path)
    made = LearnedState.of(fresh(opened), opened, "", 0)
    save(directory, replace(made, bundle=bundle or opened.hash))


def load(directory: Path, bundle: Bundle) -> tuple[LearnedState | None, str | None]:
    return load_like(directory, bundle, fresh(bundle))


@pytest.mark.everywhere
def test_precision(bundle_path: Path, tmp_path: Path) -> None:
    run = ("--bundle", bundle_path, "--state", tmp_path / "s", "--demo", "--precision", "bf16")
    refused_here(2, "expected --engine auto beside --precision bf16, but found --engine portable; leave one", *run)
    if util.find_spec("openvino") is None:
        refused_here(5, "pip install 'deco-edge[openvino]'", *run, "--engine", "auto")


def test_labels_are_of_a_video_file(bundle_path: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("frame,label\n0,cow\n")
    given = ("--bundle", bundle_path, "--state", tmp_path / "s", "--labels", tmp_path / "l.csv")
    for source in (("--demo",), ("--images", tmp_path), ("--video", "http://127.0.0.1:1/v")):
        refused_here(2, "expected --labels beside --video FILE, whose frames it numbers, but found", *given, *source)
    video = ("--video", bundle_path / "demo" / "stream.avi")
    refused_here(3, "l.csv, line 2, found 'cow'", *given, *video)


PLUS = ("--demo", "--recipe", "deco+")


def test_values_that_only_the_other_recipe_has(bundle_path: Path, state: Path) -> None:
    words = (
        "expected --set KEY=VALUE with KEY one of segment, retrain_interval, taught_weight for --recipe deco+, but "
        "found 'alpha=0'; correct it"
    )
    refused_here(2, words, "--bundle", bundle_path, "--state", state, *PLUS, "--set", "alpha=0")


@pytest.mark.everywhere
def test_precision_of_a_recipe_without_gradients(bundle_path: Path, state: Path) -> None:
    if (reason := engines()["openvino-bf16"].unusable(open_bundle(bundle_path))) is not None:
        pytest.skip(reason)
    bf16 = ("--precision", "bf16", "--engine", "auto")
    words = "expected --precision fp32 with --recipe deco+, which computes no gradients, but found bf16; leave the"
    refused_here(2, words, "--bundle", bundle_path, "--state", state, *PLUS, *bf16)


@pytest.mark.parametrize("lacks", ["graphs/representation.onnx", "fitted/deco+.npz"])
def test_a_bundle_made_before_deco_plus(lacks: str, copy: Path, state: Path) -> None:
    without(copy, lacks)
    words = "expected a bundle with the graph representation and fitted/deco+.npz for --recipe deco+, but"
    refused(4, words, "--bundle", copy, "--state", state, *PLUS)
    done = deco_run("--bundle", copy, "--state", state, "--demo", *FEW)
    assert done.returncode == 0, done.stderr


def test_the_bundles_recipe_holds_unless_another_is_asked_for(copy: Path, state: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["recipe"] = registry.named("deco+").to_json()
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    usual = ["--bundle", copy, "--demo", "--max-segments", "1"]
    words = "retrain_interval, taught_weight for --recipe deco+, but found 'iterations=1'; correct it"
    refused(2, words, *usual, "--state", state, "--set", "iterations=1")
    paper = deco_run(*usual, "--state", state, "--recipe", "paper", "--set", "iterations=1")
    assert paper.returncode == 0, paper.stderr
    assert json.loads(paper.stdout)["retrains"] == 0
    plus = deco_run(*usual, "--state", state.with_name("other"))
    assert plus.returncode == 0, plus.stderr
    assert json.loads(plus.stdout)["retrains"] == 1
    refused(7, "expected learned state of --recipe deco+", *usual, "--state", state)


def test_a_bundle_without_condensed_images_learns_by_deco_plus_alone(copy: Path, state: Path) -> None:
    without(copy, "buffer.npz")
    words = (
        f"expected a bundle with condensed images, which the paper's recipe starts from, but {copy} was exported "
        "without; export it again"
    )
    refused(4, words, "--bundle", copy, "--state", state, "--demo", *FEW)
    usual = ("--bundle", copy, "--state", state, "--demo", "--recipe", "deco+")
    done = deco_run(*usual, "--max-segments", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retrains"] == 1
    again = deco_run(*usual, "--max-segments", "1")
    assert again.returncode == 0, again.stderr
    assert f"goes on from {state}: 1 segments, 1 updates" in again.stderr


def test_help_teaches() -> None:
    done = deco_run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("--bundle", "--camera", "--video", "--images", "--demo", "--state", "--set KEY=VALUE", "--test"):
        assert word in done.stdout
    assert "deco-run --bundle digits-bundle --demo" in done.stdout  # a line to copy
    assert done.stdout == deco_run("-h").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--bundle'"),
        (["--bundle", "B"], "expected exactly one of --camera, --demo, --images, --video, but found 0"),
        (["--bundle", "B", "--demo", "--camera", "0"], "but found 2"),
        (
            ["--bundle", "B", "--demo", "--engine", "cuda"],
            "'cuda' is not one of 'auto', 'openvino', 'openvino-bf16', 'openvino-fp16', 'ort-training', 'portable'",
        ),
        (["--bundle", "B", "--demo", "--nonsense"], "No such option"),
        (["--bundle", "B", "--demo", "--cpu-share", "0"], "'--cpu-share': 0 is not in the range 1<=x<=100; see --help"),
        (["--bundle", "B", "--demo", "--threads", "9999"], "the CPUs that may be used, but found 9999; lower it"),
        (["--bundle", "B", "--demo", "--memory-limit", "0"], "'--memory-limit': 0 is not in the range x>=1"),
        (["--bundle", "B", "--demo", "--max-temperature", "hot"], "'hot' is not a valid integer range"),
        (["--bundle", "B", "--demo", "--recipe", "papers"], "'papers' is not one of 'deco+', 'paper', 'slda'"),
    ],
)
def test_wrong_options(arguments: list[str], words: str) -> None:
    refused_here(2, words, *arguments)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("segmnt=1", "expected --set KEY=VALUE with KEY one of segment, retrain_interval, vote"),
        ("alpha=-1", "expected recipe value alpha to be a finite number of"),
    ],
)
def test_wrong_settings(setting: str, words: str, bundle_path: Path, state: Path) -> None:
    """Of the bundle's recipe, unless another is given."""
    refused_here(2, words, "--bundle", bundle_path, "--state", state, "--demo", "--set", setting)
    assert not state.exists()


def test_no_bundle(tmp_path: Path) -> None:
    refused_here(
        4,
        f"expected a bundle at {tmp_path / 'b'}, but found nothing",
        "--bundle",
        tmp_path / "b",
        "--demo",
    )


def test_a_file_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "b.deco").write_bytes(b"hello")
    words = f"expected a bundle at {tmp_path / 'b.deco'}, but found a file that is no plain zip"
    refused_here(4, words, "--bundle", tmp_path / "b.deco", "--demo")


def test_an_altered_bundle(copy: Path, state: Path) -> None:
    weights = bytearray((copy / "weights.npy").read_bytes())
    weights[-1] ^= 1
    (copy / "weights.npy").write_bytes(weights)
    refused_here(4, f"expected {copy / 'weights.npy'} as it was exported", "--bundle", copy, "--state", state, "--demo")
    assert not state.exists()


def test_a_newer_bundle(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    (copy / "manifest.json").write_text(json.dumps({**manifest, "schema": 5}), "utf-8")
    refused(4, "is of schema 5; use the deco-edge version", "--bundle", copy, "--demo")


@pytest.mark.skipif(util.find_spec("onnxruntime.training") is not None, reason="needs the inference build")
def test_the_wrong_runtime_for_an_engine(bundle_path: Path, state: Path) -> None:
    words = "expected the training build of onnxruntime for --engine ort-training"
    refused(5, words, "--bundle", bundle_path, "--state", state, "--demo", "--engine", "ort-training")


def test_a_missing_or_foreign_test_folder(bundle_path: Path, state: Path, photos: Path) -> None:
    usual = ["--bundle", bundle_path, "--state", state, "--demo"]
    refused(3, "found nothing at missing", *usual, "--test", "missing")
    (photos / "3").rename(photos / "cat")
    refused(3, "found cat in", *usual, "--test", photos)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("libGL.so.1: cannot open shared object file: No such file or directory", "opencv-python-headless"),
        ("libatomic.so.1: cannot open shared object file: No such file or directory", "run deco-doctor"),
    ],
)
def test_an_opencv_that_cannot_be_imported(
    said: str, advice: str, bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "cv2.py").write_text(f"raise ImportError({said!r}, name='cv2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    refused(5, f"expected to import cv2, but: {said}; ", "--bundle", bundle_path, "--demo")
    refused(5, advice, "--bundle", bundle_path, "--camera", "0")


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        (["--camera", "99"], 6, "expected a camera at /dev/video99"),
        (["--camera", "hello"], 6, "expected a camera at hello"),
        (["--video", "missing.avi"], 6, "expected a video file, found nothing at missing.avi"),
        (["--video", __file__], 6, "expected a video that OpenCV can decode"),
        (["--images", "missing"], 3, "found nothing at missing"),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Video4Linux devices")
def test_a_source_that_is_absent(bundle_path: Path, state: Path, source: list[str], code: int, words: str) -> None:
    refused_here(code, words, "--bundle", bundle_path, "--state", state, *source)


def test_images_of_an_unknown_class(bundle_path: Path, state: Path, photos: Path) -> None:
    (photos / "3").rename(photos / "cat")
    refused_here(
        3, "expected class folders named among 0, 1, 2", "--bundle", bundle_path, "--state", state, "--images", photos
    )


def test_images_that_cannot_be_read(bundle_path: Path, state: Path, photos: Path) -> None:
    """Noticed while running, so the state is saved and the note comes first."""
    for file in photos.glob("*/*.png"):
        file.write_bytes(b"no image")
    done = deco_run("--bundle", bundle_path, "--state", state, "--images", photos)
    assert done.returncode == 3
    note, error = done.stderr.splitlines()
    assert note.startswith("note: skipped 2 unreadable images")
    assert error.startswith("error: expected images in")
    assert done.stdout == ""


def test_a_bundle_without_a_stream(copy: Path, state: Path) -> None:
    usual = ["--bundle", copy, "--state", state, "--demo"]
    for name, words in (
        ("demo/labels.npy", "expected the classes of the demo stream in"),
        ("demo/stream.avi", "expected a bundle with a stream of its own for --demo"),
    ):
        without(copy, name)
        refused(6, words, *usual)


def test_events_that_cannot_be_written(bundle_path: Path, state: Path, tmp_path: Path) -> None:
    usual = ["--bundle", bundle_path, "--state", state, "--demo"]
    (tmp_path / "file").write_text("precious")
    refused(2, "expected --events to name a file", *usual, "--events", tmp_path / "file" / "deeper" / "e.jsonl")
    refused(2, "expected --events to name a file", *usual, "--events", tmp_path)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_disk_that_is_full_for_events_does_not_stop_learning(bundle_path: Path, state: Path) -> None:
    done = deco_run("--bundle", bundle_path, "--state", state, "--demo", "--events", "/dev/full", *FEW)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("warning: ") == 1
    assert "warning: expected to write events to /dev/full, but the system says: No space left" in done.stderr
    assert json.loads(done.stdout)["segments"] == 1
    assert load(state, open_bundle(bundle_path))[0] is not None


def test_state_of_another_bundle(bundle_path: Path, state: Path) -> None:
    learned(bundle_path, state, bundle="0" * 64)
    before = (state / CURRENT).read_bytes()
    refused_here(7, "belongs to another one; give that bundle", "--bundle", bundle_path, "--state", state, "--demo")
    assert (state / CURRENT).read_bytes() == before


def test_state_of_the_version_before(bundle_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of schema 5: refused in one sentence and left alone, and predicting without learning does not need it."""
    with monkeypatch.context() as patch:
        patch.setattr("deco_runtime.storage.state.SCHEMA", 5)
        learned(bundle_path, state)
    before = (state / CURRENT).read_bytes()
    words = (
        f"expected learned state of schema 8, but {state / CURRENT} is of schema 5; "
        "use the deco-edge version that wrote it, or another --state"
    )
    usual = ("--bundle", bundle_path, "--state", state, "--demo")
    for recipe in ("paper", "deco+", "slda"):
        refused(7, words, *usual, "--recipe", recipe)
    done = deco_run(*usual, "--no-learn", "--max-segments", "1")
    assert done.returncode == 0, done.stderr
    assert os.listdir(state) == [CURRENT]
    assert (state / CURRENT).read_bytes() == before


def test_the_model_that_never_learns_is_no_recipe(bundle_path: Path, state: Path) -> None:
    """It is what --no-learn runs, whose recipe the state is not of."""
    words = "'frozen' is not one of 'deco+', 'paper', 'slda'"
    refused_here(2, words, "--bundle", bundle_path, "--state", state, "--demo", "--recipe", "frozen")
    assert not state.exists()


def test_damaged_state(bundle_path: Path, state: Path) -> None:
    learned(bundle_path, state)
    (state / CURRENT).write_bytes((state / CURRENT).read_bytes()[:-7])
    before = (state / CURRENT).read_bytes()
    refused_here(7, "is damaged", "--bundle", bundle_path, "--state", state, "--demo")
    assert (state / CURRENT).read_bytes() == before


def test_a_file_where_the_state_should_go(bundle_path: Path, tmp_path: Path) -> None:
    """Said before anything is learned that could not be kept."""
    (tmp_path / "file").write_text("precious")
    refused_here(
        7, "expected a place for learned state", "--bundle", bundle_path, "--state", tmp_path / "file", "--demo"
    )
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("option", ["--bundle", "--state", "--images"])
def test_a_name_that_no_file_can_have(bundle_path: Path, state: Path, option: str) -> None:
    given = {"--bundle": str(bundle_path), "--state": str(state), option: "a" * 300}
    source = [] if option == "--images" else ["--demo"]
    done = deco_run(*(text for pair in given.items() for text in pair), *source)
    assert done.returncode != 0
    assert done.stderr.startswith("error: expected ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_more_than_the_memory_holds(bundle_path: Path, state: Path) -> None:
    resource = pytest.importorskip("resource")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))  # some systems promise any amount

    arguments = ["--bundle", bundle_path, "--state", state, "--images", "missing"]
    usual = ["--bundle", bundle_path, "--state", state, "--demo", "--set"]
    refused(3, "found nothing at missing", *arguments, limit=limit)  # the limit itself does no harm
    done = deco_run(*usual, "segment=2147483647", limit=limit)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: expected enough memory, but: Unable to allocate")
    refused(2, "expected recipe value segment to be from 1 to 2147483647", *usual, f"segment={10**30}")


def test_names_that_are_no_text(copy: Path, state: Path, photos: Path, tmp_path: Path) -> None:
    """File names are bytes; OpenCV's video crashes on those that are not UTF-8, everything else takes them."""
    latin = tmp_path / "caf\udce9"
    try:
        latin.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system wants text")
    video = shutil.copy(copy / "demo" / "stream.avi", latin / "a.avi")
    usual = ["--bundle", copy, "--state", state]
    refused(6, "expected a name in UTF-8, found", *usual, "--video", video)
    refused(6, "expected a name in UTF-8, found", *usual, "--video", "http://caf\udce9/")
    refused(6, "expected a camera at", *usual, "--camera", latin / "camera")

    events = latin / "events.jsonl"
    usual = ["--bundle", copy, "--state", latin / "state", "--events", events, "--set", "segment=1", *FEW]
    images = photos.rename(latin / "photos")
    done = deco_run(*usual, "--images", images)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segments"] == 1
    lines = [json.loads(line) for line in events.read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines[:2]] == ["state", "source"]
    assert lines[1]["name"] == f"images in {images}, stc 500, seed 0"
    loaded, _ = load(latin / "state", open_bundle(copy))
    assert loaded is not None
    assert loaded.source == f"images in {images}, stc 500, seed 0"


def test_numbers_far_too_large(bundle_path: Path, state: Path, photos: Path) -> None:
    huge = str(10**30)
    usual = ["--bundle", bundle_path, "--state", state, "--images", photos, "--stc", huge, "--seed", huge]
    done = deco_run(
        *usual, "--max-segments", huge, "--set", "epsilon=1e300", "--set", "segment=1", "--set", "iterations=1"
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "RuntimeWarning" not in done.stderr
    assert json.loads(done.stdout)["frames"] == 2


def test_steps_that_are_not_finite_are_dropped_and_counted(bundle_path: Path, state: Path, tmp_path: Path) -> None:
    other = tmp_path / "unguarded"
    values = ["synthetic_rate=1e300", "retrain_rate=1e300", "retrain_interval=1", "retrain_epochs=3", "iterations=2"]
    settings = [text for value in values for text in ("--set", value)]
    done = deco_run("--bundle", bundle_path, "--state", state, "--demo", "--max-segments", "1", *settings)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "RuntimeWarning" not in done.stderr
    assert "2 updates dropped, not finite" in done.stderr
    assert "update 1 rejected, it is not finite: goes back to what was accepted before it" in done.stderr
    few = ("--bundle", bundle_path, "--demo", "--max-segments", "1", *settings)
    unguarded = deco_run(*few, "--no-guard", "--state", other)
    assert "an update of the model was dropped because it was not finite" in unguarded.stderr
    assert json.loads(done.stdout)["dropped_updates"] == 3
    bundle = open_bundle(bundle_path)
    loaded, _ = load(state, bundle)
    assert loaded is not None
    assert loaded.arrays["model"].tobytes() == bundle.weights().tobytes()
    assert loaded.arrays["x_syn"].tobytes() == initial(bundle).x_syn.tobytes()
    assert not loaded.arrays["velocity"].any()
