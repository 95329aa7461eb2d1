"""The report as deco-export writes it: beside the bundle, whatever the recipe and the data, and never at its cost."""

from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cv2 = pytest.importorskip("cv2")

from deco_export.cli import main  # noqa: E402
from deco_export.export import Exported, Options, export  # noqa: E402
from deco_runtime.storage.bundle import open_bundle  # noqa: E402
from processes import here  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
COLOURS = {"blue": (200, 40, 40), "green": (40, 200, 40), "red": (40, 40, 200)}


def photos(root: Path, classes: int, of_class: int, none: int = 0, takes: bool = False) -> Path:
    rng = np.random.default_rng(0)
    for name, colour in list(COLOURS.items())[:classes] + [("none", (128, 128, 128))] * bool(none):
        for i in range(none if name == "none" else of_class):
            noisy = np.clip(np.asarray(colour) + rng.normal(0, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            file = root / name / "walk" / f"{i}.png" if takes else root / name / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), noisy)
    return root


def made(data: Path | str, out: Path, validation: float = 0.3, recipe: str = "deco+") -> tuple[Exported, str]:
    ipc = 1 if recipe == "paper" else 0
    how = ("convnet", 4, 1, 16, ipc, 2, 0, validation, recipe)
    done = export(Options(str(data), out, 1.0, *how, report=True), lambda *_: None)
    assert done.report == out.with_name(f"{out.name}-report.html"), done.notes
    return done, done.report.read_text("utf-8")


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    small = ("--image-size", "16", "--width", "8", "--depth", "2", "--epochs", "10", "--labelled", "0.3")
    return here(main, *small, *arguments)


def test_a_digits_export_writes_one_unless_told_not_to(tmp_path: Path) -> None:
    done = cli("--data", "digits", "--out", tmp_path / "with")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "with-report.html"
    assert str(report) in done.stdout
    assert "writing the report (41)" in done.stderr
    text = report.read_text("utf-8")
    HTMLParser().feed(text)
    assert "434 labelled pictures" in text
    assert "digit " in text
    assert "With twice the labels expect" in text
    assert len(text) < 500_000
    bundle = open_bundle(tmp_path / "with")
    accuracy = bundle.made_with["validation_accuracy"]
    assert f"{100 * accuracy:.0f}\N{NO-BREAK SPACE}%" in text
    assert not [name for name in bundle.files if "html" in name]

    done = cli("--data", "digits", "--out", tmp_path / "without", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "report" not in done.stdout + done.stderr
    assert not (tmp_path / "without-report.html").exists()
    files = [{k: v for k, v in open_bundle(tmp_path / name).files.items() if "ort_training" not in k}
             for name in ("with", "without")]  # fmt: skip
    assert files[0] == files[1]  # the report changes nothing of the bundle


def test_help_says_that_it_holds_pictures() -> None:
    said = " ".join(cli("--help").stdout.split())
    assert "It holds small copies of labelled pictures, so it is not in the bundle that goes to devices." in said


@pytest.mark.parametrize("recipe", ["deco+", "slda", "paper"])
def test_every_recipe_has_one(recipe: str, tmp_path: Path) -> None:
    _, text = made(photos(tmp_path / "photos", 3, 20), tmp_path / "bundle", recipe=recipe)
    assert f"recipe {recipe}" in text
    assert "green/" in text or "agree with every label" in text


def test_odd_data_has_one(tmp_path: Path) -> None:
    _, text = made(photos(tmp_path / "a", 3, 12), tmp_path / "none held out", validation=0.0)
    assert "Nothing was held out" in text
    _, text = made(photos(tmp_path / "b", 2, 12, none=6), tmp_path / "two and none")
    assert "2 classes" in text
    _, text = made(photos(tmp_path / "c", 3, 12, takes=True), tmp_path / "one take each")
    assert "Too few takes to judge" in text
    assert "36 labelled pictures of 3 takes" in text


def test_a_report_that_fails_costs_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle-report.html" / "full").mkdir(parents=True)  # a folder of this name cannot be replaced
    done = cli("--data", photos(tmp_path / "photos", 3, 20), "--out", tmp_path / "bundle", "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert "note: made without a report: " in done.stderr
    assert "Traceback" not in done.stderr
    assert open_bundle(tmp_path / "bundle").classes == tuple(COLOURS)
    assert "report  " not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "bundle-report.html", "photos"]
