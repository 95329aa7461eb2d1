"""deco-export as a user meets it, on a small image folder: in a process of its own where that can matter."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cv2 = pytest.importorskip("cv2")

import onnx  # noqa: E402
from deco_export import models, ort_artifacts, pretrain  # noqa: E402
from deco_export.cli import main  # noqa: E402
from deco_export.export import guard_images  # noqa: E402
from deco_export.images import Images  # noqa: E402
from deco_runtime.engine import EXACT, REPRESENTATION  # noqa: E402
from deco_runtime.engines.registry import open_engine  # noqa: E402
from deco_runtime.errors import BundleError, UsageError  # noqa: E402
from deco_runtime.learning import registry, voter  # noqa: E402
from deco_runtime.learning.buffer import initial  # noqa: E402
from deco_runtime.learning.calibrate import MIXED, NETWORK, REGRESSION, WORTH  # noqa: E402
from deco_runtime.learning.origin import fitted  # noqa: E402
from deco_runtime.learning.registry import named  # noqa: E402
from deco_runtime.storage.bundle import open_bundle  # noqa: E402
from processes import here  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
COLOURS = {"blue": (200, 40, 40), "green": (40, 200, 40), "red": (40, 40, 200)}
IMAGES = 10
SMALL = ("--image-size", "16", "--width", "4", "--depth", "1", "--ipc", "1", "--labelled", "0.6")
USUAL = (*SMALL, "--epochs", "2")
ENDLESS = (*SMALL, "--epochs", "1000000")
ENGINES = ("portable", "ort-training") if util.find_spec("onnxruntime.training") else ("portable",)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from deco_export.cli import main; main()", *map(str, arguments)]


def export(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run to the end in a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


@pytest.fixture
def models_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], None]]:
    """Have a module my_models with this content below this folder."""

    def write(folder: Path, content: str) -> None:
        (folder / "my_models.py").write_text(content)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "my_models", raising=False)

    yield write
    sys.modules.pop("my_models", None)


def interrupt(stage: str, number: int, *arguments: object) -> tuple[int, str]:
    """Send a signal once `stage` is announced; exit status and the rest of stderr. A process that stays is killed."""
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Tests started in the background inherit an ignored SIGINT, and Python then leaves it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        limit = threading.Timer(120, process.kill)
        limit.start()
        for line in process.stderr:
            if line.startswith(stage):
                process.send_signal(number)
                break
        rest = process.stderr.read()
        limit.cancel()
        return process.wait(timeout=120), rest


def refused(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one error line of a command that failed as it should."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == status, done.stderr
    assert len(errors) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == errors[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return errors[0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(IMAGES):
            noisy = np.clip(np.asarray(colour) + rng.normal(0, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(root / name / f"{i}.png"), noisy)
    return root


@pytest.fixture(scope="module")
def exported(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("out") / "bundle"
    return out, export("--data", photos, "--out", out, *USUAL)


def test_an_export_ends_with_a_bundle(photos: Path, exported: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = exported
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    assert "labelled images    18" in done.stdout
    made_with = open_bundle(out).made_with
    held = sum(counts["held_out"] for counts in made_with["by_class"].values())
    right = sum(counts["right"] for counts in made_with["by_class"].values())
    assert (held, right / held) == (made_with["validation_images"], made_with["validation_accuracy"])
    assert f"balanced over classes {made_with['validation_balanced_accuracy']:.1%}" in done.stdout
    assert "note: fewer than 10 images are held out of 3 of 3 classes ('blue': " in done.stderr
    assert sorted(path.name for path in out.parent.iterdir()) == ["bundle", "bundle-report.html"]
    bundle = open_bundle(out)
    assert bundle.classes == ("blue", "green", "red")
    assert bundle.image_shape == (3, 16, 16)
    assert bundle.engines == ENGINES
    assert bundle.weight_count == 4 * 27 + 4 + 2 * 4 + 3 * (4 * 8 * 8 + 1) == len(bundle.weights())
    assert bundle.features == 4 * 8 * 8
    assert initial(bundle).y_syn.tolist() == [0, 1, 2]
    pixels, labels = bundle.labelled_pixels("guard.npz")
    brightest = pixels.mean(axis=(1, 2)).argmax(axis=1)  # B, G, R: the colours in the order of the classes
    np.testing.assert_array_equal(brightest, labels)
    assert set(labels) == {0, 1, 2}
    assert len(pixels) == bundle.made_with["validation_images"] == 3
    assert (bundle.made_with["seed"], bundle.made_with["epochs"], bundle.made_with["ipc"]) == (0, 2, 1)
    assert bundle.made_with["largest_relative_error"] <= 1e-4
    assert bundle.made_with["mirrored"] in (True, False)
    assert bundle.recipe == named("deco+")
    assert json.loads((out / "manifest.json").read_text("utf-8"))["recipe"] == {
        "name": "deco+",
        "segment": 128,
        "retrain_interval": 1,
        "taught_weight": 10.0,
    }
    fits = {name for name in bundle.files if name.startswith("fitted/")}
    assert {fitted("deco+"), fitted("slda")} <= fits <= {fitted(name) for name in registry.learners()}
    engine = open_engine(bundle, "portable")
    assert bundle.represented == engine.represent(np.zeros((1, 3, 16, 16), np.float32))[0].shape[1]
    for kind in registry.learners().values():
        learner = kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))
        assert np.isfinite(learner.predict(bundle.golden()["x"])).all()
    start = voter.start(bundle)
    assert start.statistics.a[-1] == start.statistics.b[-1].sum() == bundle.made_with["train_images"] == 18 - 3
    everything = {hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in photos.rglob("*.png")}
    assert len(bundle.trained_on()) == 18
    assert bundle.trained_on() < everything


@pytest.mark.parametrize(("size", "expected"), [(8, 500), (128, 325)])
def test_guard_images_are_held_out_ones_of_every_class_in_turn_within_bounds(size: int, expected: int) -> None:
    labels = np.sort(np.random.default_rng(0).permutation(np.r_[np.zeros(550, np.int64), np.ones(40, np.int64)]))
    pixels = np.broadcast_to(np.arange(590, dtype=np.uint16)[:, None, None, None] % 251, (590, size, size, 3))
    guard = guard_images(Images(pixels.astype(np.uint8), labels))
    assert len(guard) == expected
    assert np.bincount(guard.labels).tolist() == [expected - 40, 40]
    first = np.r_[np.arange(expected - 40), np.arange(550, 590)]
    assert guard.pixels[:, 0, 0, 0].tolist() == (first % 251).tolist()


def test_many_classes_share_the_guard_images() -> None:
    labels = np.repeat(np.arange(1000), 2)
    guard = guard_images(Images(np.zeros((2000, 8, 8, 3), np.uint8), labels))
    assert guard.labels.tolist() == list(range(500))


def test_deco_plus_needs_no_condensed_images_and_gets_none_unless_asked(photos: Path, tmp_path: Path) -> None:
    place = USUAL.index("--ipc")
    done = here(main, "--data", photos, "--out", tmp_path / "bundle", *USUAL[:place], *USUAL[place + 2 :])
    assert done.returncode == 0, done.stderr
    assert "condensing" not in done.stderr
    bundle = open_bundle(tmp_path / "bundle")
    assert "buffer.npz" not in bundle.files
    assert bundle.made_with["ipc"] == 0
    with pytest.raises(BundleError, match="with condensed images, which the paper's recipe starts from"):
        initial(bundle)


def test_nothing_held_out_means_no_guard_images_and_is_said(photos: Path, tmp_path: Path) -> None:
    done = here(main, "--data", photos, "--out", tmp_path / "bundle", *USUAL, "--val", "0", "--recipe", "paper")
    assert done.returncode == 0, done.stderr
    assert "note: made without images for the guard of updates" in done.stderr
    bundle = open_bundle(tmp_path / "bundle")
    assert "guard.npz" not in bundle.files
    assert bundle.guard_images == 0
    assert bundle.recipe == named("paper")
    start = voter.start(bundle)  # for whoever wants deco+ all the same, by what is expected beforehand
    assert start.network_temperature == pytest.approx(NETWORK)
    assert start.regression_temperature == pytest.approx(REGRESSION)
    assert (start.mixed_temperature, start.worth) == (MIXED, WORTH)


def test_the_bundle_gives_its_golden_values_on_every_engine(
    exported: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    bundle = open_bundle(exported[0])
    golden, theta = bundle.golden(), bundle.weights()
    for name in bundle.engines:
        engine = open_engine(bundle, name)
        logits, features = engine.predict(theta, golden["x"])
        loss, by_weight = engine.weight_gradient(theta, golden["x"], golden["t"])
        representation, votes = engine.represent(golden["x"])
        found = {
            "logits": logits,
            "features": features,
            "loss": np.asarray(loss),
            "weight_gradient": by_weight,
            "input_gradient": engine.input_gradient(theta, golden["x"], golden["t"]),
            "feature_gradient": engine.feature_gradient(theta, golden["x"], golden["u"]),
            EXACT: engine.input_gradient_tangent(theta, golden["x"], golden["t"], golden["v"]),
            REPRESENTATION: representation,
            "votes": votes,
        }
        assert set(golden) == {*found, "x", "t", "u", "v"}
        for quantity, value in found.items():
            scale = np.abs(golden[quantity]).max()
            assert np.abs(value - golden[quantity]).max() <= 1e-4 * scale, (name, quantity)


def test_help_teaches() -> None:
    done = here(main, "--help")
    assert done.returncode == 0
    for needed in ("--data", "--out", "--ipc", "--labelled", "DIR/<class>/<image>", "deco-export --out digits-bundle"):
        assert needed in done.stdout


def test_a_missing_out_is_a_usage_error() -> None:
    done = here(main)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert "Traceback" not in done.stderr


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no-folder": (("--data", "{tmp}/absent"), 3, "absent"),
    "one-class": (("--data", "{tmp}/single"), 3, "only 'red'"),
    "ipc": (("--data", "{photos}", "--ipc", "50"), 2, "--ipc 50"),
    "no-images": (
        ("--data", "{photos}", "--recipe", "paper", "--ipc", "0"),
        2,
        "--ipc of at least 1 for --recipe paper",
    ),
    "unknown-model": (("--data", "{photos}", "--model", "perceptron"), 2, "convnet, mobilenet, resnet"),
    "broken-model": (("--data", "{photos}", "--model", "my_models:broken"), 2, "my_models:broken"),
    "out-exists": (("--data", "{photos}", "--out", "{tmp}/taken"), 2, "remove it or choose another name"),
}
"""Arguments, exit status, and what the sentence names."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_and_all_is_left_as_it_was(
    case: str, photos: Path, tmp_path: Path, models_in: Callable[[Path, str], None]
) -> None:
    for folder in ("single/red", "taken", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "taken" / "diary.txt").write_text("dear")
    models_in(tmp_path, MY_MODELS)
    given, status, named = REFUSED[case]
    arguments = [argument.format(tmp=tmp_path, photos=photos) for argument in given]
    assert named in refused(here(main, "--out", tmp_path / "out" / case, *USUAL, *arguments), status)
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] == ".") == []
    assert [(path.name, path.read_text()) for path in (tmp_path / "taken").iterdir()] == [("diary.txt", "dear")]


MY_MODELS = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, classes, image_size):
        super().__init__()
        self.head = nn.Linear(6, classes)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6), nn.GELU())
        nn.init.normal_(self.head.weight, std=0.1)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def mine(classes, image_size):
    return Mine(classes, image_size)


def broken(classes):
    return nn.Identity()


def raising(classes, image_size):
    raise RuntimeError("no such weights\\nsecond line")


def no_module(classes, image_size):
    return 3


def other_size(classes, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))


def other_classes(classes, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 10))
"""


def test_a_users_own_model_is_exported_into_one_file(
    photos: Path, tmp_path: Path, models_in: Callable[[Path, str], None]
) -> None:
    models_in(tmp_path, MY_MODELS)
    out = tmp_path / "out" / "mine.deco"
    usual = ("--image-size", "16", "--epochs", "2", "--ipc", "1", "--labelled", "0.6")
    done = here(main, "--data", photos, "--out", out, "--model", "my_models:mine", *usual)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine.deco", "mine.deco-report.html"]
    assert zipfile.is_zipfile(out)
    bundle = open_bundle(out)
    assert bundle.features == 6
    kinds = {p.name: p.kind for p in bundle.parameters}
    assert kinds["head.weight"] == "normal"
    assert kinds["body.0.weight"] == "uniform"
    assert bundle.made_with["model"] == "my_models:mine"


HARD = """
from torch import nn


class Squeeze(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())

    def forward(self, x):
        return x * self.scale(x)


def hard(classes, image_size):
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish(), Squeeze()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)),
    )
"""
Spoil = Callable[[onnx.GraphProto], object]


@pytest.mark.skipif("ort-training" not in ENGINES, reason="no onnxruntime-training here")
@pytest.mark.parametrize(
    ("spoil", "model", "reason"),
    [
        (None, ("my_models:hard",), "The gradient builder has not been registered"),
        # One that onnxruntime does not open, and one that gives other values than torch.
        (lambda graph: graph.input.pop(0), ("convnet", "--width", "4", "--depth", "1"), ""),
        (lambda graph: setattr(graph.node[-1], "op_type", "Neg"), ("convnet", "--width", "4", "--depth", "1"), ""),
    ],
)
def test_whatever_the_optional_graphs_die_of_there_is_a_bundle(
    spoil: Spoil | None,
    model: tuple[str, ...],
    reason: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    models_in: Callable[[Path, str], None],
) -> None:
    models_in(tmp_path, HARD)
    made = ort_artifacts.gradient_graphs

    def wrong(fresh: Any) -> dict[str, Any]:
        graphs = made(fresh)
        if spoil is not None:
            spoil(next(iter(graphs.values())).graph)
        return graphs

    monkeypatch.setattr(ort_artifacts, "gradient_graphs", wrong)
    usual = ("--image-size", "16", "--epochs", "0", "--labelled", "0.6", "--model", *model)
    done = here(main, "--data", photos, "--out", tmp_path / "b", *usual)
    assert done.returncode == 0, done.stderr
    (note,) = [line for line in done.stderr.splitlines() if "made without --engine ort-training" in line]
    assert note.startswith(f"note: made without --engine ort-training: {reason}")
    assert "onnxruntime_src" not in note
    assert not (tmp_path / "b" / "ort_training").exists()
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["engines"] == ["portable"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_models:absent", "absent"),
        ("absent_package:mine", "absent_package"),
        ("bad_syntax:mine", "bad_syntax.py"),
        ("my_models:broken", "image_size"),
        ("my_models:raising", "no such weights"),
        ("my_models:no_module", "int, which is no torch.nn.Module"),
        ("my_models:other_size", "shapes"),
        ("my_models:other_classes", r"\(2, 10\) for 2 images and 3 classes"),
    ],
)
def test_a_broken_model_is_refused_in_one_sentence(
    name: str, reason: str, tmp_path: Path, models_in: Callable[[Path, str], None]
) -> None:
    models_in(tmp_path, MY_MODELS)
    (tmp_path / "bad_syntax.py").write_text("def mine(:")
    with pytest.raises(UsageError, match=reason) as refusal:
        models.factory(name, 3, 16, None, None)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_batch_norm_trains_on_any_number_of_images() -> None:
    """65 images must not leave a batch of one, on which torch refuses to train."""
    torch.manual_seed(0)
    labels = np.arange(pretrain.BATCH + 1) % 2
    pixels = np.random.default_rng(0).integers(0, 100, (len(labels), 4, 4, 3)).astype(np.uint8)
    images = Images(pixels + 100 * labels[:, None, None, None].astype(np.uint8), labels)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    how, losses = pretrain.statistics(images, 4), list[float]()
    pretrain.pretrain(model, images, how, 20, 0, lambda _, loss: losses.append(loss), images[:0], False)
    assert len(losses) == 20
    assert losses[-1] < 0.5 * losses[0]
    assert not model.training
    assert pretrain.accuracy(model, images, how) == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_no_room_for_the_pixels_is_told(photos: Path, tmp_path: Path) -> None:
    import resource

    arguments = ("--data", photos, "--out", tmp_path / "bundle", *USUAL, "--image-size", "256")
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert "free space or choose another --out" in refused(done, 8)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_leaves_nothing(photos: Path, tmp_path: Path) -> None:
    status, rest = interrupt("pre-training", signal.SIGINT, "--data", photos, "--out", tmp_path / "bundle", *ENDLESS)
    assert status == 130
    assert rest.splitlines()[-1] == "interrupted"
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_after_a_kill_the_next_export_gives_the_same_bundle(
    photos: Path, exported: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    status, _ = interrupt("condensing", signal.SIGKILL, "--data", photos, "--out", out, *USUAL)
    assert status == -signal.SIGKILL
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".bundle.partial"]  # no process is left that could remove it

    done = export("--data", photos, "--out", out, *USUAL)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "bundle-report.html"]
    first, second = (json.loads((path / "manifest.json").read_text("utf-8")) for path in (exported[0], out))
    # All but ONNX Runtime's training artifacts, whose checkpoint format promises nothing of the kind.
    ours = [{k: v for k, v in m["files"].items() if not k.startswith("ort_training/")} for m in (first, second)]
    assert ours[0] == ours[1]
    for manifest in (first, second):
        del manifest["files"], manifest["made_with"]["time"]
    assert first == second
