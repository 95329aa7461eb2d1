"""What scripts/pictures draws: pictures.py BUNDLE OUT."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from deco_benchmarks import table
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "tests" / "runtime"))  # its camera and its browser are those of the tests

from page_runs import Picture, page_of  # noqa: E402

LEARNED, NEVER = "#0072B2", "#555555"


def learning_curve(out: Path) -> None:
    """Traffic signs, without and with a backbone: never updated, before the stream, and while frames come."""
    own = [r for r in table.read(RESULTS / "gtsrb-tracks") if r["row"] == "DECO+"]
    frames = [point["frames"] for point in own[0]["curve"]]
    accuracy = np.array([[100 * point["accuracy"] for point in r["curve"]] for r in own]).mean(axis=0)
    files = sorted((RESULTS / "backbone").glob("tracks-*.json"))
    runs = [json.loads(path.read_text("utf-8"))["run"] for path in files]
    frozen, before, after = (100 * np.mean([r[key] for r in runs]) for key in ("frozen", "before", "learned"))
    matplotlib.rcParams.update({"svg.hashsalt": "deco", "font.size": 11})
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    curve(left, frames, accuracy, 100 * float(np.mean([r["frozen_accuracy"] for r in own])))
    left.set(title="a small network of its own", ylabel="test accuracy, %", ylim=(25, 80))
    curve(right, [0, runs[0]["frames"]], np.array([before, after]), float(frozen), linestyle=":")
    right.set(title="EfficientNet-Lite0 in front (--backbone)")
    classes = len(own[0]["forgetting_per_class"])
    figure.suptitle(f"Traffic signs, {classes} classes, two labelled takes of each; mean of {len(own)} seeds")
    figure.savefig(out, metadata={"Date": None})


def curve(axes: Axes, frames: list[int], accuracy: np.ndarray, never: float, linestyle: str = "-") -> None:
    """linestyle: dotted where nothing was measured between before and after."""
    axes.axhline(never, color=NEVER, linestyle="--", linewidth=1.2)
    axes.text(frames[-1], never - 1, f"never updated: {never:.1f}", color=NEVER, ha="right", va="top")
    axes.plot(frames, accuracy, color=LEARNED, linewidth=2, linestyle=linestyle)
    axes.plot([frames[0], frames[-1]], [accuracy[0], accuracy[-1]], "o", color=LEARNED)
    axes.text(frames[0], accuracy[0] - 1.5, f"before the stream: {accuracy[0]:.1f}", color=LEARNED, va="top")
    axes.text(frames[-1], accuracy[-1] + 1.5, f"after it: {accuracy[-1]:.1f}", color=LEARNED, ha="right")
    axes.set(xlabel="unlabelled frames seen")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def page(bundle: Path, out: Path) -> None:
    """The page before a camera that shows the demo's stream, after so many segments."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with (
        tempfile.TemporaryDirectory() as state,
        sync_playwright() as it,
        page_of(bundle, Path(state), stream(bundle), fps=40) as opened,
    ):
        window = it.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page(
            viewport={"width": 1120, "height": 1320}
        )
        window.goto(opened.address, wait_until="commit")
        opened.until(lambda now: now.get("segment", 0) >= 60, "segments")
        window.click("#refresh")
        window.wait_for_function(
            "() => [...document.querySelectorAll('#groups img')].filter((i) => i.complete).length > 8"
        )
        window.wait_for_timeout(1000)  # the small pictures come one by one
        shot = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
    shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, optimize=True)


def stream(bundle: Path) -> Callable[[int], Picture]:
    """The demo's stream as a camera sees things: each for 50 frames, in which it moves a little."""
    film, seen = cv2.VideoCapture(str(bundle / "demo" / "stream.avi")), []
    while (read := film.read())[0]:
        seen.append(cv2.resize(read[1], (320, 320), interpolation=cv2.INTER_NEAREST))
    chosen = seen[:: len(seen) // 50]

    def picture(i: int) -> Picture:
        return np.roll(chosen[i // 50 % len(chosen)], (i % 5 - 2, i % 7 - 3), axis=(0, 1))

    return picture


if __name__ == "__main__":
    places = Path(sys.argv[2])
    places.mkdir(parents=True, exist_ok=True)
    learning_curve(places / "learning-curve.svg")
    page(Path(sys.argv[1]), places / "page.png")
    for path in sorted(places.iterdir()):
        print(f"{path} {path.stat().st_size / 1000:.0f} kB")
