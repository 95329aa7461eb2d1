"""What viewers of the page cost a run: memory with twenty of them, frames per second with one, time with none.

    python tests/stress/viewers.py BUNDLE OUT.json [--seconds 120] [--viewers 20]

Ratios of things measured in turn in one go. A real run, a real server, viewers that are programs of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from page_runs import COMMAND, Open, digits, page_of

VIEWER = """
import sys, threading, urllib.request
def read(path):
    with urllib.request.urlopen(sys.argv[1] + path) as stream:
        while stream.read1(1 << 16):
            pass
threading.Thread(target=read, args=("/events",), daemon=True).start()
read("/live.mjpg")
"""
WINDOWS, WINDOW_S = 8, 1.5
RUNS, FRAMES = 3, 3000


@contextmanager
def viewers(address: str, count: int) -> Iterator[None]:
    """So many viewers look at the page."""
    them = [subprocess.Popen([sys.executable, "-c", VIEWER, address]) for _ in range(count)]
    try:
        yield
    finally:
        for each in them:
            each.kill()
            each.wait()


def memory(bundle: Path, place: Path, count: int, seconds: float) -> dict[str, object]:
    """Resident memory of a run with so many viewers, MiB, every few seconds."""
    found = []
    with page_of(bundle, place / "memory", digits(bundle), "--recipe", "deco+", fps=25) as page:
        alone = page.state()["memory_mb"]
        with viewers(page.root, count):
            for _ in range(12):
                time.sleep(seconds / 12)
                found.append(page.state()["memory_mb"])
            frames = page.state()["fps"]
    return {"viewers": count, "seconds": seconds, "alone_mib": alone, "mib": found, "frames_per_second": frames}


def clip(bundle: Path, file: Path, frames: int) -> Path:
    """A clip of 320 × 240 pixels."""
    picture = digits(bundle)
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*"MJPG"), 30, (320, 240))
    for i in range(frames):
        writer.write(cv2.resize(picture(i), (320, 240)))
    writer.release()
    return file


def rate(page: Open, seconds: float) -> float:
    """Frames a second of a replayed clip, which goes on as fast as it can."""
    before, started = page.state()["frames"], time.monotonic()
    time.sleep(seconds)
    return float((page.state()["frames"] - before) / (time.monotonic() - started))


def one_viewer(bundle: Path, place: Path) -> dict[str, object]:
    """Frames a second without and with one viewer, in turn."""
    file = clip(bundle, place / "long.avi", 40_000)
    command = [*COMMAND, "--bundle", str(bundle), "--video", str(file), "--state", str(place / "one")]
    command += ["--recipe", "deco+", "--page", "127.0.0.1:0", "--engine", "portable", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("page: "):
        assert line, "the run ended"
    page, alone, seen = Open(line.split()[1]), [], []
    try:
        page.until(lambda now: now["frames"] > 100, "frames")
        for _ in range(WINDOWS):
            alone.append(rate(page, WINDOW_S))
            with viewers(page.root, 1):
                time.sleep(1.0)  # until it has started
                seen.append(rate(page, WINDOW_S))
    finally:
        process.kill()
        process.communicate()
    ratio = [with_one / without for without, with_one in zip(alone, seen, strict=True)]
    return {"alone": alone, "with_one": seen, "median_ratio": statistics.median(ratio)}


def no_viewer(bundle: Path, place: Path) -> dict[str, object]:
    """Seconds of a whole run without the page, and with it and nobody looking, in turn."""
    file, times = clip(bundle, place / "short.avi", FRAMES), {"without": [], "with": []}
    for number in range(RUNS):
        for how, more in (("without", []), ("with", ["--page", "127.0.0.1:0"])):
            state = place / f"none-{number}-{how}"
            command = [*COMMAND, "--bundle", str(bundle), "--video", str(file), "--state", str(state)]
            command += ["--recipe", "deco+", "--engine", "portable", "--threads", "1", *more]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            told = json.loads(done.stdout.splitlines()[-1])
            times[how].append(told["seconds"] - told["first_prediction_seconds"])
    return {**times, "ratio_of_least": min(times["with"]) / min(times["without"])}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("bundle", type=Path)
    asked.add_argument("out", type=Path)
    asked.add_argument("--seconds", type=float, default=120)
    asked.add_argument("--viewers", type=int, default=20)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        report = {
            "no_viewer": no_viewer(given.bundle, place),
            "one_viewer": one_viewer(given.bundle, place),
            "many_viewers": memory(given.bundle, place, given.viewers, given.seconds),
        }
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
