"""Predicting while a learner thread learns, as a live deco-run does: frames per second, and the slowest of them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from deco_runtime.errors import DecoError
from deco_runtime.host.priority import give_way, giving_way
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.learner import Learner
from deco_runtime.running.learner_thread import Cancelled
from deco_runtime.running.stream import Stream
from deco_runtime.types import Segment

from deco_benchmarks.bench.jobs import Progress
from deco_benchmarks.bench.timing import Quantity, effort, p99, stopwatch
from deco_benchmarks.bench.workload import open_work

ROUNDS = 2
"""Turns of idle and learning, so that a machine that becomes slower does so for both."""
SETTLE_S = 0.5
"""A run has one learner's thread for all its life: what it takes to begin is not what frames wait for."""


def measure(path: Path, progress: Progress, engine: str, recipe: str, quick: bool) -> dict[str, Any]:
    """Frames are predicted one after the other without a pause: with nothing else to do, and beside a learner."""
    work, how = open_work(path, engine, recipe), effort(quick)
    learner = work.learner()
    learner.predict(work.frame)
    giving_way(lambda: work.learner(iterations=1).learn(work.segment))  # opens and warms all graphs, as a live run does
    times: dict[str, list[float]] = {"idle": [], "learning": []}

    def predict(state: str) -> None:
        done, began = times[state], time.monotonic()
        least = len(done) + how.live_least / ROUNDS
        while len(done) < least or time.monotonic() - began < how.live_seconds / ROUNDS:
            done.append(stopwatch(lambda: learner.predict(work.frame)))

    for turn in range(ROUNDS):
        progress(f"{engine}: predicting while learning", turn, ROUNDS)
        predict("idle")
        with Learning(learner, work.segment):
            time.sleep(SETTLE_S)
            predict("learning")
    progress(f"{engine}: predicting while learning", ROUNDS, ROUNDS)
    found: dict[str, Quantity] = {}
    for state, seconds in times.items():
        n = len(seconds)
        found[f"frames_per_second_{state}"] = one(n / sum(seconds), n, "1/s")
        found[f"predict_p99_{state}"] = one(1e3 * p99(seconds), n, "ms")
    return {"quantities": {name: value.to_json() for name, value in found.items()}}


def one(value: float, runs: int, unit: str) -> Quantity:
    """A figure that all runs give together, and so has no quartiles of its own."""
    return Quantity(value, value, value, runs, unit)


class Learning(Stream):
    """While entered, a thread learns the same segment again and again, and updates the model when that is due."""

    def __init__(self, learner: Learner, segment: Segment) -> None:
        super().__init__(Unguarded(learner))
        self._segment, self._stop = segment, threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="learner", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise DecoError(f"expected the learner to learn, but: {self._failure}; report it") from self._failure

    def check(self) -> None:
        if self._stop.is_set():
            raise Cancelled

    def _loop(self) -> None:
        give_way()
        try:
            while True:
                self.learn(self._segment)
        except Cancelled:
            pass
        except Exception as error:  # raised again in the main thread
            self._failure = error
