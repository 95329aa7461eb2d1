"""A deco-run that learns from a camera for a long time: does its memory grow, do its threads, its open files?

    python tests/stress/soak.py BUNDLE --minutes 35 --out soak.json      BUNDLE: of deco-export --data digits --ipc 10

The camera is an MJPEG server on loopback that goes away every few minutes, so that the capture process is replaced
too. All is on: learning, updates, the guard, saving, events. Every few seconds /proc tells what the program and its
capture process hold. After a warm-up, the last tenth of the samples is compared with the first. Linux only; not a part
of the tests that always run.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_runtime.storage.bundle import open_bundle
from figures import publish

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from mjpeg_server import mjpeg_server

RECIPE = ("segment=16", "retrain_interval=3", "retrain_epochs=50", "iterations=5", "threshold=0.1")
SAMPLE_S = 5.0
GROWTH = 0.02
"""Of memory, the most that is no leak."""
AWAY_S = 5.0
HELD = ("program_kib", "capture_kib", "threads", "files")


def start(bundle: Path, url: str, place: Path, share: int) -> subprocess.Popen[bytes]:
    settings = [word for setting in RECIPE for word in ("--set", setting)]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "deco_runtime.commands.run", "--bundle", str(bundle), "--engine", "portable"),
            *("--video", url, "--state", str(place / "state"), "--events", str(place / "events"), "--save-every", "30"),
            *("--cpu-share", str(share), "--threads", "1", "--memory-limit", "2000"),
            *("--recipe", "paper", *settings),  # an update of which takes a while
        ],
        stdout=subprocess.PIPE,
        stderr=(place / "said").open("wb"),
    )


def children(pid: int) -> Iterator[int]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                yield int(directory.name)
                yield from children(int(directory.name))


def held(pid: int) -> dict[str, int]:
    """Resident memory in KiB, threads and open files of one process; zeros when it has just ended."""
    place = Path("/proc") / str(pid)
    try:
        lines = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        files = len(list((place / "fd").iterdir()))
        return {"kib": int(lines["VmRSS"].split()[0]), "threads": int(lines["Threads"]), "files": files}
    except (OSError, KeyError):
        return {"kib": 0, "threads": 0, "files": 0}


def sample(pid: int) -> dict[str, int]:
    """What the program and its capture process hold together."""
    program, others = held(pid), [held(child) for child in children(pid)]
    return {
        "program_kib": program["kib"],
        "capture_kib": sum(other["kib"] for other in others),
        "threads": program["threads"] + sum(other["threads"] for other in others),
        "files": program["files"] + sum(other["files"] for other in others),
        "processes": 1 + len(others),
    }


def verdict(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """First and last tenth of the samples that have a capture process, by medians; growth, as fractions; the most."""
    whole = [s for s in samples if s["processes"] == 2]
    tenth = max(1, len(whole) // 10)
    first, last = (
        {key: statistics.median(s[key] for s in part) for key in HELD} for part in (whole[:tenth], whole[-tenth:])
    )
    growth = {key: round(last[key] / first[key] - 1, 5) for key in HELD}
    return {
        "samples": len(whole),
        "first_tenth": first,
        "last_tenth": last,
        "growth": growth,
        "most": {key: max(s[key] for s in samples) for key in (*HELD, "processes")},
        "flat": growth["program_kib"] <= GROWTH
        and growth["capture_kib"] <= GROWTH
        and growth["threads"] <= 0
        and growth["files"] <= 0,
    }


@click.command(context_settings={"show_default": True})
@click.argument("bundle_path", metavar="BUNDLE", type=click.Path(path_type=Path, exists=True))
@click.option("--minutes", default=35.0, type=click.FloatRange(1), help="Warm-up included.")
@click.option("--warm-up", default=5.0, help="Minutes.")
@click.option("--fps", default=25.0, help="Of the camera.")
@click.option("--share", default=15, help="deco-run's --cpu-share.")
@click.option("--away-every", default=180.0, help="Seconds between two failures of the camera.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the figures go, as JSON.")
def main(
    bundle_path: Path, minutes: float, warm_up: float, fps: float, share: int, away_every: float, out: Path | None
) -> None:
    """Run deco-run on a camera for MINUTES, and see whether it holds more and more."""
    pixels, _ = open_bundle(bundle_path).labelled_pixels("demo/test.npz")
    noise = np.random.default_rng(0)

    def picture(i: int) -> Any:
        """As of a camera: 32 frames of one image, each with some noise."""
        seen = np.kron(pixels[i // 32 % len(pixels)], np.ones((8, 8, 1), np.uint8))
        return np.clip(seen + noise.integers(-8, 9, seen.shape), 0, 255).astype(np.uint8)

    samples: list[dict[str, Any]] = []
    process, port = None, 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)

        def watch(seconds: float) -> None:
            until = min(time.monotonic() + seconds, begun + 60 * minutes)
            while process and time.monotonic() < until:
                if process.poll() is not None:
                    raise SystemExit(
                        f"deco-run ended with {process.returncode}: {(place / 'said').read_text()[-2000:]}"
                    )
                samples.append({"seconds": round(time.monotonic() - begun), **sample(process.pid)})
                time.sleep(max(0.0, min(SAMPLE_S, until - time.monotonic())))

        try:
            while time.monotonic() < begun + 60 * minutes:
                with mjpeg_server(picture, fps=fps, port=port) as url:
                    port = int(url.split(":")[2].split("/")[0])
                    process = process or start(bundle_path, url, place, share)
                    watch(away_every)
                watch(AWAY_S)
            assert process is not None
            process.send_signal(signal.SIGTERM)
            answer, _ = process.communicate(timeout=120)
        finally:
            if process and process.poll() is None:
                process.kill()
                process.wait()
        code, sizes = process.returncode, {name: (place / name).stat().st_size for name in ("events", "said")}
    summary = json.loads(answer.splitlines()[-1]) if answer else {}
    found = verdict([s for s in samples if s["seconds"] >= 60 * warm_up])
    busy = bool(summary) and summary["retrains"] > 0 and summary["reconnects"] > 0 and summary["saved_bytes"] > 0
    figures = {
        "verdict": "flat" if found["flat"] and busy and code == 0 else "NOT flat",
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "warm_up_minutes": warm_up,
        **found,
        "exit_code": code,
        "bytes_written": sizes,
        "summary": summary,
        "each_minute": [[s["seconds"], *(s[key] for key in HELD)] for s in samples[:: round(60 / SAMPLE_S)]],
        "recipe": RECIPE,
        "frames_per_second": fps,
        "cpu_share": share,
        "cpus": os.cpu_count(),
    }
    publish(figures, out)
    sys.exit(0 if figures["verdict"] == "flat" else 1)


if __name__ == "__main__":
    main()
