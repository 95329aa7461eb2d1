"""The camera: what its frames show, and what no look at them can show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from deco_runtime.doctor.findings import Finding
from deco_runtime.host.job import run_job
from deco_runtime.sources import BLACK, PLAIN
from deco_runtime.sources.view import WHOLE, View

PATIENCE_S = 30.0
"""Silence allowed beyond the seconds asked for: the source itself gives up after 10 to open and 5 per frame."""


def findings(
    value: str, seconds: float, broken: Collection[str], view: View = WHOLE, size: int | None = None
) -> Iterator[Finding]:
    """Findings on a camera given as deco-run's --camera or --video take it. broken: modules that cannot be imported.
    view: how it is looked at. size: side of the network's input in pixels, None if not known."""
    lacking = sorted({"numpy", "cv2"} & set(broken))
    if lacking:
        yield Finding("WARN", "camera", f"not tried, because it needs {' and '.join(lacking)}; mend that first")
        return
    given: dict[str, Any] = {"value": value, "seconds": seconds, "view": view.figures()}
    report = run_job("deco_runtime.doctor.watch:watch", seconds + PATIENCE_S, **given)
    if report.end != "done":
        words = f"expected frames from {value}, but OpenCV {report.words}; unplug the camera, plug it in and try again"
        yield Finding("FAIL", "camera", report.words if report.end == "refused" else words)
        return
    yield from _look(report.told, view, size)


def _look(told: dict[str, Any], view: View = WHOLE, size: int | None = None) -> Iterator[Finding]:
    frames, dropped, sizes = told["frames"], told["dropped"], [f"{w}×{h}" for w, h in told["sizes"]]
    words = (
        f"{view.named(told['name'])}: {' and '.join(sizes)} pixels, {told['rate']:.3g} frames a second, {frames} taken "
        f"and {dropped} dropped, at most {told['longest_gap']:.2g} s between two, open after "
        f"{told['open_seconds']:.2g} s"
    )
    yield Finding("OK", "camera", words, told | view.figures())
    small = min(min(both) for both in told["sizes"])
    if view.roi is not None and size is not None and small < size:
        words = (
            f"expected --roi {view.roi} to leave the network its {size}×{size} pixels, but the shorter side of what it "
            f"leaves has {small}, which are enlarged; make it larger, or move the camera nearer"
        )
        yield Finding("WARN", "camera roi", words)
    if told["damaged"]:
        words = (
            f"expected whole frames, but {told['damaged']} came damaged and are left out; check the cable or the "
            "network, or have the camera send smaller or fewer pictures"
        )
        yield Finding("WARN", "camera damage", words)
    if frames < 2:
        words = "expected at least 2 frames to compare, but found 1; give a longer --seconds or a faster camera"
        yield Finding("WARN", "camera motion", words)
    elif told["changed"] == 0:
        words = (
            f"expected frames that change, but all {frames} are the same in every pixel, as from a frozen sensor or a "
            "strongly compressed still; move something before the camera and try again, and if they stay, unplug it"
        )
        yield Finding("WARN", "camera motion", words)
    else:
        yield Finding("OK", "camera motion", f"{told['changed']} of {frames - 1} frames differ from the one before")
    if told["brightest"] < BLACK:
        words = f"expected a picture, but all {frames} frames are black; take off the lens cap, or give it light"
        yield Finding("WARN", "camera picture", words)
        return
    if told["spread"] < PLAIN:
        words = f"expected a picture, but all {frames} frames show one plain colour; point the camera at something, or "
        yield Finding("WARN", "camera picture", words + "try another cable")
        return
    yield Finding("OK", "camera picture", f"neither black nor plain, up to {told['brightest']:.0f} of 255 bright")
    yield _colour(told)


def _colour(told: dict[str, Any]) -> Finding:
    """Says what was seen, and what only somebody who knows the scene can say."""
    if not told["colours_differ"]:
        words = "the picture is grey, so red and blue cannot be mixed up; a camera with colours should show some"
        return Finding("OK", "camera colour", words)
    blue, green, red = told["centre"]
    words = (
        f"three channels that differ, in the middle blue {blue:.0f}, green {green:.0f}, red {red:.0f}; not checked is "
        "whether red and blue are exchanged, which no unknown scene shows: hold something red there and try again, red "
        "must be the largest"
    )
    return Finding("OK", "camera colour", words)
