"""A sweep: many trials, one JSON file each; what is there already is not done again."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.commands.terminal import sentence
from deco_runtime.errors import DecoError, UsageError
from deco_runtime.storage.lock import lock, unlock

from deco_benchmarks.config import PRESETS, Config
from deco_benchmarks.datasets import Dataset, load
from deco_benchmarks.trial import base_bundle, run_trial


@dataclass(frozen=True)
class Task:
    """A trial to do. source, labelled_from: what `datasets.load` reads. bundle: the folder of the model it starts from.

    resume: file of its checkpoint, None to do without.
    """

    config: Config
    source: str
    labelled_from: str | None
    bundle: Path
    resume: Path | None


@dataclass(frozen=True)
class Outcome:
    """What a trial gave: its result, which holds "error" when it failed, and the buffer as pictures."""

    result: dict[str, Any]
    pictures: dict[str, np.ndarray]


Tick = Callable[[int, int], None]
Pool = Callable[[Sequence[Task]], Iterator[tuple[Config, Outcome]]]
"""A way to work through tasks, giving each outcome as it comes; raises DecoError when it cannot go on."""
Done = Callable[[Config, dict[str, Any]], None]
"""Called with each result when it is on the disk."""


def pending(configs: Iterable[Config], out: Path) -> list[Config]:
    """The trials whose result is not in `out` yet; failed ones are tried again."""
    return [config for config in configs if not (out / f"{config.key}.json").exists()]


def run_sweep(
    configs: list[Config],
    source: str,
    labelled_from: str | None,
    out: Path,
    pool: Pool,
    progress: Callable[[str, int, int], None],
    done: Done,
) -> None:
    """Run the trials that are missing in `out`; a failed one is recorded and the others go on.

    The pre-trained models they start from are made first and kept in `out`/.bases. A trial that was cut off goes on
    from its file in `out`/.checkpoints. Raises UsageError while another sweep writes to `out`.
    """
    out.mkdir(parents=True, exist_ok=True)
    tasks = []

    def keep(config: Config, outcome: Outcome) -> None:
        try:
            _write(config, outcome, out)
        except OSError as error:
            raise DecoError(
                f"expected to write results to {out}, but the system says: {error.strerror or error}; free space or "
                "mend the disk, and run again: finished trials are kept"
            ) from error
        done(config, outcome.result)

    with _alone(out):
        for config in pending(configs, out):
            try:
                dataset = read(source, PRESETS[config.preset].image_size, labelled_from)
                bundle = base_bundle(dataset, config, out / ".bases", progress)
                tasks.append(Task(config, source, labelled_from, bundle, out / ".checkpoints" / f"{config.key}.npz"))
            except DecoError as error:
                keep(config, _failed(config, str(error)))
        for config, outcome in pool(tasks):
            keep(config, outcome)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other sweeps out of the folder."""
    try:
        held, _ = lock(out)
    except BlockingIOError:
        raise UsageError(
            f"expected to be the only sweep that writes to --out {out}, but another one does now; wait until that ends "
            "or, for more trials at a time, give --jobs to one sweep"
        ) from None
    try:
        yield
    finally:
        unlock(held)


def attempt(task: Task, tick: Tick = lambda done, total: None) -> Outcome:
    """One trial; whatever it raises becomes its result. tick: as that of `run_trial`."""
    try:
        dataset = read(task.source, PRESETS[task.config.preset].image_size, task.labelled_from)
        return Outcome(*run_trial(task.config, dataset, task.bundle, tick, task.resume))
    except Exception as error:  # one trial must not take the sweep with it
        found = sentence(error)
        return _failed(task.config, found[0] if found else traceback.format_exc())


def _failed(config: Config, reason: str) -> Outcome:
    return Outcome({"error": reason, "row": config.row, "ipc": config.ipc, "seed": config.seed}, {})


def _write(config: Config, outcome: Outcome, out: Path) -> None:
    """The result, and the pictures beside it; or, for a failure, a `.failed` file with its reason."""
    text = json.dumps(outcome.result, indent=1) + "\n"
    failed = out / f"{config.key}.failed"
    if "error" in outcome.result:
        failed.write_text(text)
        return
    np.savez_compressed(out / f"{config.key}.npz", **outcome.pictures)  # type: ignore[arg-type]
    temporary = out / f"{config.key}.tmp"
    temporary.write_text(text)
    os.replace(temporary, out / f"{config.key}.json")
    failed.unlink(missing_ok=True)
    (out / ".checkpoints" / f"{config.key}.npz").unlink(missing_ok=True)


@cache
def read(source: str, size: int, labelled_from: str | None = None) -> Dataset:
    """The data of a source, read once per process."""
    return load(source, size, 0, labelled_from)
