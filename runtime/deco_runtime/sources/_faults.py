"""Pictures that nothing can be learned from: black ones, and those that only repeat the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from deco_runtime.sources import BLACK, PLAIN
from deco_runtime.types import Fault, Frame, Notice, Pixels

TOLD_S = 10.0
"""Seconds of nothing but such pictures after which somebody is told: a compressed still scene repeats for less."""

_WORDS = {
    "frozen": "has shown the same picture in every pixel for {seconds:g} s: its sensor or stream may be frozen",
    "black": "has shown black for {seconds:g} s: it may be covered, without light, or broken",
}


def fault_of(pixels: Pixels, last: Pixels | None) -> Fault | None:
    """What is wrong with a picture that comes after `last`, both (height, width, 3) uint8.

    black: of every few pixels, 99 in 100 values are below BLACK, or all are alike (deviation below PLAIN), as behind a
    lens cap, at night without gain, or in a "no signal" screen.
    frozen: the same as the last one in every pixel. A living sensor's noise makes that impossible, also before a still
    scene; a stream that is compressed until the noise is gone does repeat itself, and then nothing is lost by leaving
    the repetition out.
    """
    few = pixels[:: max(1, len(pixels) // 64), :: max(1, len(pixels) // 64)]
    if np.count_nonzero(few >= BLACK) < 0.01 * few.size or few.std() < PLAIN:
        return "black"
    if last is None or last.shape != pixels.shape:
        return None
    # A few rows settle it for nearly every picture.
    same = np.array_equal(pixels[::32], last[::32]) and np.array_equal(pixels, last)
    return "frozen" if same else None


class Inspector:
    """Marks faults in a stream of frames and tells of those that last; `counts` has the number of frames of each."""

    def __init__(self, name: str) -> None:
        """name: of the source, for people."""
        self.counts: dict[str, int] = {"frozen": 0, "black": 0}
        self._name = name
        self._last: Pixels | None = None
        self._fault: Fault | None = None
        self._since = 0.0
        self._told = False
        self._sizes: set[tuple[int, ...]] = set()

    def look(self, frame: Frame, whole: tuple[int, int] | None = None) -> Iterator[Frame | Notice]:
        """The frame, with its fault if it has one, behind what there is to say of it. whole: (height, width) of the
        picture that it is a part of."""
        yield from self._size(*(whole or frame.pixels.shape[:2]))
        fault = fault_of(frame.pixels, self._last)
        self._last = frame.pixels
        if fault:
            self.counts[fault] += 1
        if fault != self._fault:
            if self._told:
                seconds = round(frame.time - self._since, 1)
                yield Notice("cleared", f"{self._name} shows new pictures again", {"seconds": seconds})
            self._fault, self._since, self._told = fault, frame.time, False
        elif fault and not self._told and frame.time - self._since >= TOLD_S:
            self._told = True
            words = _WORDS[fault].format(seconds=TOLD_S)
            yield Notice(fault, f"{self._name} {words}; it is not learned from", {"seconds": TOLD_S})
        yield replace(frame, fault=fault) if fault else frame

    def _size(self, height: int, width: int) -> Iterator[Notice]:
        """Told once for each size, however often a stream goes from one to the other."""
        if (height, width) not in self._sizes and self._sizes:
            words = f"{self._name} now delivers {width}×{height} pixels; goes on with these"
            yield Notice("resized", words, {"width": width, "height": height})
        self._sizes.add((height, width))
