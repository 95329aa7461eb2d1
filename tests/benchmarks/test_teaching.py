"""The measurement of a class that is taught, on digits and boxes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_benchmarks.teaching import main
from deco_runtime.commands.terminal import exit_with
from deco_runtime.storage.bundle import open_bundle
from processes import here

PROGRAM = (
    "import runpy, sys; sys.modules['torch'] = None; runpy.run_module('deco_benchmarks.teaching', None, '__main__')"
)
"""Without torch, which it does not need, and which the training build of onnxruntime takes seconds to import."""


@pytest.fixture(scope="module")
def data(bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/ and test/ of digits, and of boxes, which the bundle does not know."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    pixels, labels = open_bundle(bundle_path).labelled_pixels("demo/test.npz")
    for part, which in (("train", slice(0, None, 2)), ("test", slice(1, None, 2))):
        for number, (image, label) in enumerate(zip(pixels[which], labels[which], strict=True)):
            place = root / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(place / f"{number}.png"), image)
        (root / part / "box").mkdir()
        for number in range(60):
            image, half = np.zeros((64, 64, 3), np.uint8), int(rng.integers(16, 24))
            corners = (32 - half, 32 - half), (32 + half, 32 + half)
            cv2.rectangle(image, *corners, (255, 255, 255), int(rng.integers(4, 8)))
            image += rng.integers(0, 20, image.shape, np.uint8)
            cv2.imwrite(str(root / part / "box" / f"{number}.png"), image)
    return root


def test_a_new_class_before_and_after(bundle_path: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    asked = ["--bundle", bundle_path, "--data", data, "--class", "box", "--out", out, "--frames", 128, "--seeds", 1]
    asked += ["--engine", "portable", "--pictures", 10]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, asked)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    (trial,) = report["trials"]
    assert (report["class"], report["pictures"], report["recipe"]) == ("box", 10, "deco+")
    assert trial["before"]["new"] == trial["undone"]["new"] == trial["untaught"]["new"] == 0
    assert trial["refused"] is None
    assert trial["taught"]["new"] >= 0.6
    assert trial["taught"]["others"] >= trial["before"]["others"] - 0.01
    assert abs(trial["undone"]["others"] - trial["untaught"]["others"]) <= 0.03
    assert "taught: box" in done.stdout


def test_what_cannot_be_measured_is_said(bundle_path: Path, data: Path, tmp_path: Path) -> None:
    for name, words in (("3", "expected a class that"), ("nothing", "expected class folders named among")):
        asked = ["--bundle", bundle_path, "--data", data, "--class", name, "--out", tmp_path / "x.json"]
        done = here(lambda: sys.exit(exit_with(main)), *asked)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
