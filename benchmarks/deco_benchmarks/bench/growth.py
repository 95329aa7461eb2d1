"""How time and memory grow with the work: longer segments, more images per class, more classes, larger images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from deco_benchmarks.bench import board
from deco_benchmarks.bench.jobs import Progress, measure_in_process

TURNS = 3
"""Processes of each case, taken turn by turn: their medians see the same load."""


@dataclass(frozen=True)
class Case:
    """Size of the work. width: channels of the ConvNet, 3 blocks deep."""

    segment: int = 128
    ipc: int = 10
    classes: int = 10
    pixels: int = 32
    width: int = 128


def cases(width: int) -> dict[str, Case]:
    """Those compared, the one that they start from first."""
    base = Case(width=width)
    return {
        "base": base,
        "segment x 8": replace(base, segment=8 * base.segment),
        "ipc x 5": replace(base, ipc=5 * base.ipc),
        "classes x 10": replace(base, classes=10 * base.classes),
        "side x 2": replace(base, pixels=2 * base.pixels),
    }


def measure(width: int, engine: str, progress: Progress) -> dict[str, Any]:
    """For each case the images of an iteration (the segment's, all of one class, and that class's of the buffer), their
    pixels, median seconds of a segment and peak MiB of a process that learns; and both relative to the base's.

    Exports a bundle of noise for each. Raises the errors of the export and of `open_engine`.
    """
    made = cases(width)
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "peak_mib": []} for name in made}
    with tempfile.TemporaryDirectory() as scratch:
        paths = {}
        for done, (name, case) in enumerate(made.items()):
            progress("exporting", done, len(made))
            paths[name] = _bundle(case, Path(scratch) / name.replace(" ", "-"))
        for turn in range(TURNS):
            for number, (name, case) in enumerate(made.items()):
                progress("measuring", turn * len(made) + number, TURNS * len(made))
                told = measure_in_process("growth", paths[name], lambda *_: None, engine=engine, segment=case.segment)
                for key, values in found[name].items():
                    values.append(told[key])
    base = {key: _median(values) for key, values in found["base"].items()}
    rows = {}
    for name, case in made.items():
        images = case.segment + case.ipc
        pixels = images * case.pixels**2
        row = {key: _median(values) for key, values in found[name].items()}
        rows[name] = {**asdict(case), "images": images, "pixels_of_all": pixels, **row}
        rows[name] |= {f"{key}_vs_base": value / base[key] for key, value in row.items()}
        rows[name]["pixels_vs_base"] = pixels / rows["base"]["pixels_of_all"]
    return {"kind": "deco-bench-growth", "engine": engine, "board": board.identify(), "turns": TURNS, "cases": rows}


def segment_of_one_class(path: Path, progress: Callable[..., None], engine: str, segment: int) -> dict[str, Any]:
    """Job: seconds that a segment takes, all its iterations, and the process's peak memory without its images."""
    import numpy as np
    from deco_runtime.host.machine import peak_memory_mb
    from deco_runtime.types import Segment

    from deco_benchmarks.bench.workload import open_work

    work = open_work(path, engine)
    x = np.random.default_rng(0).standard_normal((segment, *work.bundle.image_shape), np.float32)
    y, ones = np.zeros(segment, np.int64), np.ones(segment, np.float32)
    work.learner(iterations=1).learn(Segment({"x": x[:8]}, y[:8], ones[:8], y[:8] - 1))  # opens the graphs
    learner, started = work.learner(), time.monotonic()
    learner.learn(Segment({"x": x}, y, ones, y - 1))
    seconds = time.monotonic() - started
    return {"seconds": seconds, "peak_mib": (peak_memory_mb() or 0.0) - x.nbytes / (1 << 20)}


def _bundle(case: Case, path: Path) -> Path:
    import numpy as np
    from deco_export import initial_buffer
    from deco_export.data import Data
    from deco_export.export import Options, export
    from deco_export.images import Images

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(case.classes), case.ipc)
    noise = Images(rng.integers(0, 256, (len(y), case.pixels, case.pixels, 3), np.uint8), y)
    names = tuple(f"class {c}" for c in range(case.classes))
    options = Options(
        data="noise",
        out=path,
        labelled=1.0,
        model="convnet",
        width=case.width,
        depth=3,
        image_size=case.pixels,
        ipc=case.ipc,
        epochs=0,
        seed=0,
        validation=0.0,
        recipe="paper",
    )
    with mock.patch.object(initial_buffer, "ROUNDS", 0):  # what the buffer's images show does not matter here
        export(options, lambda *_: None, Data(names, noise, noise[np.zeros(0, np.int64)], trained_on=()))
    return path


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
