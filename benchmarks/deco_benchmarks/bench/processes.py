"""Jobs whose process itself is measured: how soon it predicts, and how much memory it takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import deco_runtime.running.assemble  # noqa: F401  (what deco-run loads: OpenCV, the sources, the view)
from deco_runtime.engines import providers
from deco_runtime.engines.packages import check_runtime
from deco_runtime.engines.registry import by_preference, open_engine
from deco_runtime.host.machine import peak_memory_mb
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.storage import state
from deco_runtime.storage.bundle import open_bundle

from deco_benchmarks.bench.jobs import Progress


def usable_engines(path: Path, progress: Progress) -> dict[str, Any]:
    """Engines that can run the bundle here, the preferred one first and those on providers last, and why the others
    cannot."""
    check_runtime()
    bundle = open_bundle(path)
    reasons = by_preference(bundle)
    return {
        "usable": [name for name, reason in reasons.items() if reason is None] + providers.timed(),
        "unusable": {name: reason for name, reason in reasons.items() if reason is not None},
    }


def start(path: Path, progress: Progress, engine: str, recipe: str) -> dict[str, Any]:
    """Open the bundle, run the graph that predicts by this recipe on one frame, and say when that was (monotonic
    seconds, of the whole system)."""
    import numpy as np

    bundle = open_bundle(path)
    frame = np.zeros((1, *bundle.image_shape), np.float32)
    opened = open_engine(bundle, engine, directory=state.beside(path))
    kind = registry.learner(recipe)
    kind.open(bundle, opened, kind.RECIPE, np.random.default_rng(0)).predict(frame)
    return {"predicted": time.monotonic(), "peak_mib": peak_memory_mb()}


def memory(path: Path, progress: Progress, engine: str, recipe: str, scratch: str) -> dict[str, Any]:
    """Predict, learn two iterations of a segment, retrain an epoch, save: each array and arena there is, once."""
    from deco_benchmarks.bench.workload import open_work

    work = open_work(path, engine, recipe)
    learner = work.learner(iterations=2, retrain_epochs=1)
    learner.predict(work.frame)
    learner.learn(work.segment)
    learner.retrain()
    state.save(Path(scratch), state.LearnedState.of(Unguarded(learner), work.bundle, "deco-bench", 0))
    return {"peak_mib": peak_memory_mb()}
