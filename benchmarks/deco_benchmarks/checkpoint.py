"""Where a trial of hours is, on the disk: after a kill it goes on from its last update, as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from deco_runtime.learning.reports import SegmentReport

from deco_benchmarks.rows import Row


@dataclass
class Progress:
    """What a trial has so far: its curve, the best accuracy of each class (K,), reports, and seconds by stage."""

    curve: list[dict[str, float]]
    best: np.ndarray
    reports: list[SegmentReport] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def save(path: Path, trial: str, row: Row, corruption_rng: np.random.Generator, progress: Progress) -> None:
    """Replace the checkpoint of this trial; nothing for a row that cannot be taken up. trial: what it must fit.

    Best effort: where the disk refuses, the trial goes on, and begins anew after a kill.
    """
    learner = row.learner
    if learner.OWN is None:
        return
    meta = {
        "trial": trial,
        "values": learner.values(),
        "corruptions": corruption_rng.bit_generator.state,
        "curve": progress.curve,
        "reports": [asdict(report) for report in progress.reports],
        "stages": progress.stages,
        "seconds": progress.seconds,
    }
    arrays = {
        **learner.arrays(),
        "best": progress.best,
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
    }
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def restore(path: Path, trial: str, row: Row, corruption_rng: np.random.Generator) -> Progress | None:
    """Put row and generator back to where the checkpoint was taken; None, and no change, where none fits the trial."""
    if row.learner.OWN is None or not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays["meta"].tobytes())
        if meta["trial"] != trial:
            return None
        reports = [SegmentReport(**report) for report in meta["reports"]]
        progress = Progress(meta["curve"], arrays["best"], reports, meta["stages"], meta["seconds"])
        kept = corruption_rng.bit_generator.state
        corruption_rng.bit_generator.state = meta["corruptions"]
        try:
            row.learner.restore(arrays, meta["values"])
        except BaseException:
            corruption_rng.bit_generator.state = kept
            raise
    except Exception:  # damaged, or of another version; numpy and zipfile raise a dozen kinds. The trial begins anew
        return None
    return progress
