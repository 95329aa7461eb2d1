"""What learning may take of the machine: time, memory, heat. Prediction goes on whatever learning has to wait for.

Everything happens between two steps of learning. One that has had its share of the time, or is too hot, waits there
with its work in hand, so that what is learned in the end is the same. Where memory is short the work in hand is given
up, as waiting would keep what it holds, and the next segment tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deco_runtime.host import machine as device
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.happenings import ResourcesPaused, ResourcesResumed, Said

T = TypeVar("T")

REASONS = ("cpu share", "memory", "free memory", "temperature")
FREE_MIB = 32
"""What learning leaves of the memory of this machine, or of its control group, to whatever comes next."""
COOLER_C = 5
"""Learning that was too hot goes on so many °C below the limit."""
LOOK_S = 1.0
"""Seconds from one look at sensors and memory to the next."""
LAST_LOOK_S = 300.0
"""While memory is short the seconds double up to this: work that is given up again and again must not fill a log."""

_TICK_S = 0.2  # between two calls of `check` while learning waits


@dataclass(frozen=True)
class Limits:
    """What the user allows.

    cpu_share: percent of the time that learning may work, 1 … 100. memory_mib: resident memory of the program above
    which it does not learn, max_temperature: °C of the hottest sensor from which on it does not; None for any.
    root: where the system's files are.
    """

    cpu_share: int = 100
    memory_mib: int | None = None
    max_temperature: int | None = None
    root: Path = device.ROOT


class ShortOfMemory(Exception):  # noqa: N818  (not an error: learning goes on once there is memory)
    """The work in hand was given up for want of memory; nothing of it was kept."""


class Resources:
    """Keeps learning within the limits. For one thread at a time, the one that learns."""

    def __init__(self, limits: Limits, bus: Bus) -> None:
        self._limits, self._bus = limits, bus
        self._seconds = dict.fromkeys(REASONS, 0.0)
        self._working_since: float | None = None
        self._rested_at = self._look_at = 0.0
        self._look_s = LOOK_S
        self._short: tuple[str, float] | None = None  # which of REASONS, since when
        if limits.max_temperature is not None and not device.temperatures(limits.root):
            bus.emit(Said("--max-temperature has no effect, because no sensor of this machine can be read", "note"))
        if limits.memory_mib is not None and device.memory_mib_taken() is None:
            words = "--memory-limit has no effect, because this system does not say what a program takes"
            bus.emit(Said(words, "note"))

    def work(self, do: Callable[[], T], check: Callable[[], None]) -> T | None:
        """What `do`, a piece of learning that calls `step` between its steps, returns; None when it was given up.

        check: called several times a second while learning waits; what it raises ends that, and the work.
        """
        try:
            self.step(check)
            done = do()
        except ShortOfMemory:
            return None
        except MemoryError:
            self._pause_for_memory(
                "free memory", None, "the system gives it no more memory; if that stays so, free some"
            )
            return None
        finally:
            self._worked()
        self._look_s = LOOK_S
        return done

    def step(self, check: Callable[[], None]) -> None:
        """To be called between two steps of learning: waits for as long as the limits ask for.

        Raises ShortOfMemory, and whatever check raises.
        """
        self._worked()
        if self._rested_at > time.monotonic():
            self._wait("cpu share", self._rested_at, check)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._cool_down(check)
            self._look_for_memory()
        if self._short:
            raise ShortOfMemory
        self._working_since = time.monotonic()

    def paused_seconds(self) -> dict[str, float]:
        """How long learning was kept from working so far, for each of REASONS."""
        found = dict(self._seconds)
        if self._short:
            reason, since = self._short
            found[reason] += time.monotonic() - since
        return {reason: round(seconds, 1) for reason, seconds in found.items()}

    def _worked(self) -> None:
        """The stretch of work that went on until now has to be rested from."""
        if self._working_since is not None:
            now = time.monotonic()
            self._rested_at = now + (now - self._working_since) * (100 / self._limits.cpu_share - 1)
            self._working_since = None

    def _wait(self, reason: str, until: float, check: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _TICK_S))
                check()
        finally:
            self._seconds[reason] += time.monotonic() - begun

    def _cool_down(self, check: Callable[[], None]) -> None:
        limit, root = self._limits.max_temperature, self._limits.root
        if limit is None or not (found := device.temperatures(root)) or max(found.values()) < limit:
            return
        hottest = max(found, key=lambda sensor: found[sensor])
        words = (
            f"{hottest} is at {found[hottest]:.0f} °C, and --max-temperature is {limit}; "
            f"it goes on at {limit - COOLER_C}"
        )
        self._bus.emit(ResourcesPaused("temperature", found[hottest], limit, words, hottest))
        while found and max(found.values()) > limit - COOLER_C:
            self._wait("temperature", time.monotonic() + LOOK_S, check)
            found = device.temperatures(root)
        self._bus.emit(ResourcesResumed("temperature", max(found.values(), default=None), limit))

    def _shortage(self) -> tuple[str, int, str] | None:
        """Which of REASONS, the MiB measured, and this in words; None when there is memory enough."""
        limit, taken = self._limits.memory_mib, device.memory_mib_taken()
        free = device.memory_mib_free(self._limits.root)
        if limit is not None and taken is not None and taken > limit:
            words = f"the program takes {taken} MiB, and --memory-limit is {limit}; if that stays so, raise it"
            return "memory", taken, words
        if free is not None and free < FREE_MIB:
            words = f"{free} MiB of memory are free, and {FREE_MIB} are left alone; if that stays so, free some"
            return "free memory", free, words
        return None

    def _look_for_memory(self) -> None:
        """Begin, go on with or end the pause that `_short` is."""
        shortage = self._shortage()
        if shortage is None:
            if self._short:
                reason, since = self._short
                self._seconds[reason] += time.monotonic() - since
                self._short = None
                self._bus.emit(ResourcesResumed(reason))
            return
        self._pause_for_memory(*shortage)

    def _pause_for_memory(self, reason: str, measured: int | None, words: str) -> None:
        """Until a later look finds enough; while it lasts, and until a piece of work is done, each is later."""
        self._look_at = time.monotonic() + self._look_s
        self._look_s = min(2 * self._look_s, LAST_LOOK_S)
        if self._short is None:
            self._short = reason, time.monotonic()
            limit = self._limits.memory_mib if reason == "memory" else FREE_MIB
            self._bus.emit(ResourcesPaused(reason, measured, limit, f"{words}; prediction goes on"))
