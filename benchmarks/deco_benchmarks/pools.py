"""Ways to work through the trials of a sweep: one after another, in processes, on a Ray cluster."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from deco_runtime.errors import DecoError, RuntimeMissingError, UsageError
from deco_runtime.host.threads import threads

from deco_benchmarks.config import Config
from deco_benchmarks.sweep import Outcome, Pool, Task, Tick, attempt

RETRIES = 10
"""Times that Ray starts a trial anew whose worker died."""


def one_by_one(tick: Tick) -> Pool:
    """In this process. tick: as that of `run_trial`."""

    def work(tasks: Sequence[Task]) -> Iterator[tuple[Config, Outcome]]:
        for task in tasks:
            yield task.config, attempt(task, tick)

    return work


def processes(jobs: int) -> Pool:
    """`jobs` trials at a time on this machine, each with its share of the CPUs."""

    def work(tasks: Sequence[Task]) -> Iterator[tuple[Config, Outcome]]:
        share = max(1, threads() // jobs)
        # A fresh interpreter for each worker: onnxruntime's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        pin = (share, context.Value("i", 0))
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_pin_in_turn, initargs=pin) as pool:
            futures = {pool.submit(attempt, task): task.config for task in tasks}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool as error:
                raise DecoError(
                    "expected the workers of --jobs to live, but one was killed, perhaps for want of memory; finished "
                    "trials are kept, so run again, with fewer --jobs if it happens again"
                ) from error

    return work


def ray(address: str, jobs: int) -> Pool:
    """On a Ray cluster, or for "local" on a Ray of `jobs` workers started here for the time of the sweep.

    The data must lie at the same path on every machine, where deco-edge is installed too; models and results travel.
    A trial whose worker dies is started anew. Raises RuntimeMissingError without Ray, UsageError for an address where
    none answers.
    """
    try:
        import ray as api
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected the package ray for --ray, but {error}; run pip install 'deco-edge[ray]', or use --jobs"
        ) from error
    try:
        if address == "local":
            api.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level="error")
        else:
            _knock(address)
            api.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"expected a Ray cluster at --ray {address}, but none answers ({str(error).splitlines()[0]}); "
            "give its address as HOST:PORT, or local"
        ) from error

    def work(tasks: Sequence[Task]) -> Iterator[tuple[Config, Outcome]]:
        remote: Any = api.remote(num_cpus=1, max_retries=RETRIES)(_attempt_far_away)
        packed = {path: api.put(_packed(path)) for path in {task.bundle for task in tasks}}
        waiting = {remote.remote(task, packed[task.bundle]): task.config for task in tasks}
        try:
            while waiting:
                (ready, *_), _ = api.wait(list(waiting), num_returns=1)
                yield waiting.pop(ready), _fetched(api, ready)
        finally:
            api.shutdown()

    return work


def _knock(address: str) -> None:
    """Raise OSError or ValueError unless something listens at [ray://]HOST:PORT: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    socket.create_connection((host, int(port)), timeout=10).close()


def _fetched(api: Any, ready: Any) -> Outcome:
    try:
        outcome: Outcome = api.get(ready)
    except api.exceptions.RayError as error:
        raise DecoError(
            f"expected Ray to finish a trial, but its workers died {RETRIES + 1} times ({str(error).splitlines()[0]}); "
            "finished trials are kept, so run again when the cluster is well"
        ) from error
    return outcome


def _attempt_far_away(task: Task, bundle: bytes) -> Outcome:
    """A trial on a machine that has the data, but not the bundle."""
    _pin(os.getpid(), 1)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
            archive.extractall(folder, filter="data")
        return attempt(replace(task, bundle=Path(folder), resume=None))


def _packed(folder: Path) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        archive.add(folder, ".")
    return memory.getvalue()


def _pin_in_turn(share: int, counter: Any) -> None:
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    _pin(number, share)


def _pin(number: int, share: int) -> None:
    """Give worker `number` CPUs of its own: the engine takes its thread count from the affinity."""
    if hasattr(os, "sched_setaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[(number * share + i) % len(cpus)] for i in range(share)})
