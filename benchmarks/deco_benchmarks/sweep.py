"""A sweep: many trials, one JSON file each; what is there already is not done again."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.engine import threads
from deco_runtime.errors import DecoError

from deco_benchmarks.config import PRESETS, Config
from deco_benchmarks.datasets import Dataset, load
from deco_benchmarks.trial import base_bundle, run_trial

Done = Callable[[Config, dict[str, Any]], None]
"""Called after each trial with its result, which holds "error" when it failed."""


def pending(configs: Iterable[Config], out: Path) -> list[Config]:
    """The trials whose result is not in `out` yet; failed ones are tried again."""
    return [config for config in configs if not (out / f"{config.key}.json").exists()]


def run_sweep(
    configs: list[Config], source: str, out: Path, jobs: int, progress: Callable[[str, int, int], None], done: Done
) -> None:
    """Run the trials that are missing in `out`, `jobs` at a time; a failed one is recorded and the others go on.

    source: what `datasets.load` reads. The pre-trained models they start from are made first and kept in `out`/.bases.
    """
    todo = pending(configs, out)
    out.mkdir(parents=True, exist_ok=True)
    for config in todo:
        dataset = _dataset(source, config)
        with contextlib.suppress(DecoError):  # met again, and recorded, by each trial that needs it
            base_bundle(dataset, config, out / ".bases", progress)
    if jobs == 1:
        for config in todo:
            done(config, run_one(config, source, out, lambda n, of: progress("segments of the trial", n, of)))
        return
    share = max(1, threads() // jobs)
    # A fresh interpreter for each worker: onnxruntime's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_pin, initargs=(share, context.Value("i", 0))
    ) as pool:
        futures = {pool.submit(run_one, config, source, out): config for config in todo}
        for future in as_completed(futures):
            done(futures[future], future.result())


def _pin(share: int, counter: Any) -> None:
    """Give this worker its own CPUs: the engine takes its thread count from the affinity."""
    if not hasattr(os, "sched_setaffinity"):
        return
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    cpus = sorted(os.sched_getaffinity(0))
    mine = [cpus[(number * share + i) % len(cpus)] for i in range(share)]
    os.sched_setaffinity(0, set(mine))


def run_one(
    config: Config, source: str, out: Path, tick: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """One trial into its file in `out`, its buffer into an .npz beside.

    A failure goes to a `.failed` file instead, with its reason, and is returned.

    tick: as that of `run_trial`.
    """
    try:
        dataset = _dataset(source, config)
        bundle = base_bundle(dataset, config, out / ".bases", lambda stage, done, total: None)
        result, pictures = run_trial(config, dataset, bundle, tick)
    except Exception as error:  # one trial must not take the sweep with it
        said = str(error) if isinstance(error, DecoError) else traceback.format_exc()
        result = {"error": said, "row": config.row, "ipc": config.ipc, "seed": config.seed}
        (out / f"{config.key}.failed").write_text(json.dumps(result, indent=1) + "\n")
        return result
    np.savez_compressed(out / f"{config.key}.npz", **pictures)  # type: ignore[arg-type]
    temporary = out / f"{config.key}.tmp"
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, out / f"{config.key}.json")
    (out / f"{config.key}.failed").unlink(missing_ok=True)
    return result


@cache
def _read(source: str, size: int) -> Dataset:
    return load(source, size, seed=0)


def _dataset(source: str, config: Config) -> Dataset:
    return _read(source, PRESETS[config.preset].image_size)
