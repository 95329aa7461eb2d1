"""Several live sources as one: what each delivers in turn, with the number of its stream."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from deco_runtime.sources import FrameSource
from deco_runtime.types import Frame, Notice

SUMMED = ("stalls", "reconnects", "damaged", "frozen_frames", "black_frames")
"""Figures of a source that count something."""


def open_together(openers: Sequence[Callable[[], FrameSource]]) -> FrameSource:
    """Open them one after the other. Raises what the first raises that does not open, and then none is left open."""
    opened: list[FrameSource] = []
    try:
        for open_source in openers:
            opened.append(open_source())
    except BaseException:
        for source in opened:
            source.close()
        raise
    return Together(opened)


def stream_names(source: FrameSource) -> tuple[str, ...]:
    """Of the streams that it is made of, by their number; empty for a source that is one stream."""
    return source.streams if isinstance(source, Together) else ()


class Together:
    """Live sources, each waited for in a thread of its own.

    Hand-over: a thread holds one frame or notice, and asks its source for no further one before that is taken. Takers
    are served in turn from those that hold something, so that a fast camera has no more than its turn while another has
    something to say. What a source delivers meanwhile it drops and counts itself. A frame may be as old as it takes to
    predict one of each stream.

    streams: their names, no two alike.
    """

    live = True
    length: int | None = None

    def __init__(self, sources: Sequence[FrameSource]) -> None:
        """sources: live ones, open."""
        self._sources = sources
        self.streams = _distinct([source.name for source in sources])
        self.name = " and ".join(self.streams)
        self._taken: Counter[int] = Counter()
        self._held: dict[int, Frame | Notice | BaseException] = {}
        self._running = len(sources)
        self._closed = False
        self._change = threading.Condition()  # guards the three above

    @property
    def dropped(self) -> int:
        return sum(source.dropped for source in self._sources)

    def frames(self) -> Iterator[Frame | Notice]:
        """Yield what there is, stream by stream in turn. Raises what a source raises."""
        for stream, source in enumerate(self._sources):
            threading.Thread(target=self._follow, args=(stream, source), name=f"stream {stream}", daemon=True).start()
        turn = 0
        while (taken := self._take(turn)) is not None:
            stream, item = taken
            turn = stream + 1
            if isinstance(item, BaseException):
                raise item
            self._taken[stream] += isinstance(item, Frame)
            yield item

    def note(self) -> str | None:
        return "; ".join(filter(None, (source.note() for source in self._sources))) or None

    def figures(self) -> dict[str, Any]:
        """The counts of all, and `streams`: of each its name, frames delivered and dropped, and its own figures."""
        each = [source.figures() for source in self._sources]
        streams = [
            {"name": name, "frames": self._taken[stream], "dropped": self._sources[stream].dropped, **each[stream]}
            for stream, name in enumerate(self.streams)
        ]
        return {**{key: sum(figures.get(key, 0) for figures in each) for key in SUMMED}, "streams": streams}

    def fingerprints(self) -> frozenset[str]:
        return frozenset[str]().union(*(source.fingerprints() for source in self._sources))

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        closing = [threading.Thread(target=source.close) for source in self._sources]
        for thread in closing:  # at once: one that hangs takes seconds
            thread.start()
        for thread in closing:
            thread.join()

    def _follow(self, stream: int, source: FrameSource) -> None:
        """Hand over what a source delivers, until it ends or nobody takes it any more."""
        try:
            for item in source.frames():
                if not self._hand_over(stream, replace(item, stream=stream)):
                    return
        except BaseException as error:  # reaches whoever takes frames, who ends with it
            self._hand_over(stream, error)
        finally:
            with self._change:
                self._running -= 1
                self._change.notify_all()

    def _hand_over(self, stream: int, item: Frame | Notice | BaseException) -> bool:
        """Whether it was taken."""
        with self._change:
            self._held[stream] = item
            self._change.notify_all()
            self._change.wait_for(lambda: self._closed or stream not in self._held)
            return not self._closed

    def _take(self, turn: int) -> tuple[int, Frame | Notice | BaseException] | None:
        """What the first stream from this one on holds, once one holds anything; None when all have ended."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._held or not self._running)
            if self._closed or not self._held:
                return None
            count = len(self._sources)
            stream = min(self._held, key=lambda held: (held - turn) % count)
            item = self._held.pop(stream)
            self._change.notify_all()
            return stream, item


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Those that occur again with a number behind them: addresses may differ in nothing but what is hidden."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(found)
