"""Learning over minutes, beside temperature, clock and throttling: whether the board keeps its speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from deco_benchmarks.bench.board import load
from deco_benchmarks.bench.jobs import Progress
from deco_benchmarks.bench.sensors import read_sensors
from deco_benchmarks.bench.workload import open_work

EVERY_S = 10.0
"""Seconds between two samples."""


def measure(path: Path, progress: Progress, engine: str, recipe: str, minutes: float) -> dict[str, Any]:
    """Learning without a pause for so many minutes; a sample has its rate and what the sensors say at its end.

    load is above the number of cores when other work slows the board down, which is no throttling.
    """
    work = open_work(path, engine, recipe)
    many, step = work.learner().step(work.segment)
    rate_of = f"{many}_per_second"
    step()
    seconds, samples, count = 60 * minutes, [{"seconds": 0.0, "load": load(), **read_sensors()}], 0
    label = f"{engine}: sustained, seconds"
    progress(label, 0, round(seconds))
    started = last = time.monotonic()
    while True:
        step()
        count += 1
        now = time.monotonic()
        ended = now - started >= seconds
        if now - last >= EVERY_S or ended:
            rate = count / (now - last)
            sample = {"seconds": now - started, rate_of: rate, "load": load(), **read_sensors()}
            samples.append(sample)
            last, count = now, 0
        progress(label, min(round(now - started), round(seconds)), round(seconds))
        if ended:
            return {"engine": engine, "minutes": minutes, "samples": samples}
