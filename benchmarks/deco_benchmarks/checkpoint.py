"""Where a trial of hours is, on the disk: after a kill it goes on from its last update, as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from deco_runtime.learning.learner import SegmentReport
from deco_runtime.storage.state import COUNTS, LearnedState

from deco_benchmarks.rows import Row


@dataclass
class Progress:
    """What a trial has so far: its curve, the best accuracy of each class (K,), reports, and seconds by stage."""

    curve: list[dict[str, float]]
    best: np.ndarray
    reports: list[SegmentReport] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def save(path: Path, trial: str, row: Row, weather: np.random.Generator, progress: Progress) -> None:
    """Replace the checkpoint of this trial; nothing for a row that cannot be taken up. trial: what it must fit.

    Best effort: where the disk refuses, the trial goes on, and begins anew after a kill.
    """
    kept = row.kept()
    if kept is None:
        return
    it = row.learner
    meta = {
        "trial": trial,
        "counts": {name: getattr(it, name) for name in COUNTS},
        "generators": [it.rng.bit_generator.state, weather.bit_generator.state],
        "curve": progress.curve,
        "reports": [asdict(report) for report in progress.reports],
        "stages": progress.stages,
        "seconds": progress.seconds,
    }
    arrays = {
        "model": it.model,
        **vars(it.memory),
        "best": progress.best,
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
        **{f"own_{name}": np.asarray(getattr(it, name)) for name in kept},
    }
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def restore(path: Path, trial: str, row: Row, weather: np.random.Generator) -> Progress | None:
    """Put row and generator back to where the checkpoint was taken; None, and no change, where none fits the trial."""
    kept = row.kept()
    if kept is None or not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays["meta"].tobytes())
        own = {name: arrays[f"own_{name}"] for name in kept}
        if meta["trial"] != trial:
            return None
        reports = [SegmentReport(**report) for report in meta["reports"]]
        progress = Progress(meta["curve"], arrays["best"], reports, meta["stages"], meta["seconds"])
        learner, memory = row.learner, row.learner.memory
        memory = type(memory)(**{name: arrays[name] for name in vars(memory)})
        generator, counts = meta["generators"][0], meta["counts"]
        LearnedState(
            trial, learner.recipe.name, arrays["model"], memory, generator, counts, source="", position=0
        ).restore(learner)
        for name, value in own.items():
            setattr(learner, name, value if value.ndim else value.item())
        weather.bit_generator.state = meta["generators"][1]
    except Exception:  # damaged, or of another version; numpy and zipfile raise a dozen kinds. The trial begins anew
        return None
    return progress
