"""Repeated measurements and what is said of them: median, quartiles, 99th percentile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MIB = 1 << 20

WARM_UP = 2
"""Calls before the first that counts: graphs are compiled, arenas and caches filled."""


@dataclass(frozen=True)
class Quantity:
    """Median and quartiles of `runs` measurements; unit is "ms", "s", "MiB" (2²⁰ bytes) or "1/s"."""

    median: float
    q1: float
    q3: float
    runs: int
    unit: str

    def to_json(self) -> dict[str, Any]:
        """As written to results."""
        return asdict(self)


@dataclass(frozen=True)
class Effort:
    """How much is measured. None means all that the recipe says.

    seconds: least time spent on a stage. least: runs of it at least. segments, starts: whole segments and fresh
    processes. iterations, epochs: of a segment and an update; what is left out is scaled. live_seconds, live_least:
    least time and predictions, idle and learning each. rounds: turns of the two sides of a comparison.
    """

    seconds: float
    least: int
    segments: int
    iterations: int | None
    epochs: int | None
    live_seconds: float
    live_least: int
    starts: int
    rounds: int


FULL = Effort(3.0, 20, 3, None, None, 20.0, 1000, 5, 10)
QUICK = Effort(0.2, 3, 1, 2, 3, 0.5, 100, 3, 3)


def effort(quick: bool) -> Effort:
    """QUICK or FULL."""
    return QUICK if quick else FULL


def quantity(values: Sequence[float], unit: str) -> Quantity:
    """Median and quartiles (linearly interpolated) of at least one value."""
    q1, median, q3 = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return Quantity(median, q1, q3, len(values), unit)


def milliseconds(seconds: Sequence[float]) -> Quantity:
    """`quantity` of times given in seconds, in ms."""
    return quantity([1e3 * s for s in seconds], "ms")


def p99(values: Sequence[float]) -> float:
    """The smallest of the values that 99 of 100 do not exceed."""
    return float(np.percentile(values, 99, method="inverted_cdf"))


def stopwatch(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def repeat(call: Callable[[], object], least: int, seconds: float) -> list[float]:
    """Seconds of each of at least `least` calls that last `seconds` together at least, after a warm-up."""
    for _ in range(WARM_UP):
        call()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        times.append(stopwatch(call))
    return times
