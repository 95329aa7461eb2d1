"""A few seconds in front of a camera, in a process of its own: frames as deco-run would get them, and their figures."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime import sources
from deco_runtime.errors import SourceError
from deco_runtime.host.job_child import Answer
from deco_runtime.sources.view import View
from deco_runtime.types import Notice, Pixels


def watch(answer: Answer, value: str, seconds: float, view: dict[str, Any]) -> None:
    """Job: take frames for so long and tell what they look like. view: the figures of one. Raises SourceError.

    open_seconds; frames taken; dropped meanwhile; damaged, left out; rate, frames per second that arrived; sizes
    [width, height] met; longest_gap between two arrivals taken, seconds; changed: pairs of neighbours that differ in
    any pixel;
    brightest, spread: the largest 99th percentile and the largest deviation of a frame, of 0 … 255;
    centre: mean B, G, R of the middle of the last frame; colours_differ: whether its channels are not all alike.
    """
    started = time.monotonic()
    kind = "video" if "://" in value else "camera"
    request = sources.SourceRequest((), 1, 1, 0, frozenset(), Path(), view=View.from_figures(**view))
    source = sources.discover()[kind].open_source(value, request)
    answer(open_seconds=time.monotonic() - started)
    times: list[float] = []
    sizes: list[list[int]] = []
    changed = dropped_before = 0
    brightest = spread = 0.0
    last: Pixels | None = None
    try:
        for frame in source.frames():
            if isinstance(frame, Notice):
                if frame.action == "lost":
                    raise SourceError(frame.figures["reason"])
                continue
            if not times:
                dropped_before = source.dropped
            pixels = frame.pixels
            times.append(frame.time)
            size = [pixels.shape[1], pixels.shape[0]]
            if size not in sizes:
                sizes.append(size)
            few = pixels[::4, ::4]  # enough for figures; a whole frame would cost a small board its frame rate
            brightest = max(brightest, float(np.percentile(few, 99)))
            spread = max(spread, float(few.std()))
            changed += last is not None and _differ(last, pixels)
            last = pixels
            if frame.time - times[0] >= seconds:
                break
    finally:
        dropped, damaged = source.dropped - dropped_before, source.figures().get("damaged", 0)
        source.close()
    assert last is not None  # frames() raises where there is none
    passed = times[-1] - times[0]
    height, width = last.shape[:2]
    middle = last[height // 4 : height - height // 4, width // 4 : width - width // 4]
    answer(
        name=source.name,
        frames=len(times),
        dropped=dropped,
        damaged=damaged,
        rate=(len(times) + dropped - 1) / passed if passed > 0 else 0.0,
        sizes=sizes,
        longest_gap=max((b - a for a, b in pairwise(times)), default=0.0),
        changed=changed,
        brightest=brightest,
        spread=spread,
        centre=[round(float(mean), 1) for mean in middle.reshape(-1, 3).mean(axis=0)],
        colours_differ=bool(np.ptp(last[::4, ::4].astype(np.int16), axis=2).max() > 0),
    )


def _differ(a: Pixels, b: Pixels) -> bool:
    """A few pixels settle it for a living sensor, whose noise is everywhere."""
    return a.shape != b.shape or not np.array_equal(a[::8, ::8], b[::8, ::8]) or not np.array_equal(a, b)
