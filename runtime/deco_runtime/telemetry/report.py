"""What the loop of a run tells of itself on the bus, with the figures that it counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from deco_runtime.learning.learner import Learner
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.learning.taught import NONE
from deco_runtime.sources import FrameSource
from deco_runtime.sources.together import stream_names
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Bus
from deco_runtime.types import Frame, Notice, Observed, Segment


@dataclass
class Tally:
    """What a run has counted so far.

    frames: predicted. known, right: of these, with a label, and predicted right. unknown: of these, answered as none of
    the classes. segments: gathered. dropped_segments: of these, refused because the learner was busy.
    given_up_segments: of these, not learned because memory was short. unlearned_frames: of the last segment, which did
    not get complete and was not learned from.
    segments_of, dropped_segments_of: the same by the number of their stream.
    ages: seconds from grabbing to predicting, of the last 1000 frames of a live source.
    """

    frames: int = 0
    known: int = 0
    right: int = 0
    unknown: int = 0
    segments: int = 0
    dropped_segments: int = 0
    given_up_segments: int = 0
    unlearned_frames: int = 0
    segments_of: Counter[int] = field(default_factory=Counter)
    dropped_segments_of: Counter[int] = field(default_factory=Counter)
    ages: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    @property
    def stream_accuracy(self) -> float | None:
        """Share of the labelled frames predicted right; None without any."""
        return self.right / self.known if self.known else None

    def age_ms(self) -> dict[str, float] | None:
        """`median` and `max` of the ages in milliseconds; None without any."""
        ages = list(self.ages)  # another thread may be adding one
        if not ages:
            return None
        return {"median": round(float(np.median(ages)) * 1e3, 1), "max": round(max(ages) * 1e3, 1)}


class Reporter:
    """Emits what happens in the loop, with the names and counts that belong to it."""

    def __init__(self, names: Callable[[], tuple[str, ...]], source: FrameSource, bus: Bus, tally: Tally) -> None:
        """names: gives those of the classes there are now."""
        self._names, self._source, self._bus, self._tally = names, source, bus, tally
        self._streams = stream_names(source)
        self._ending = False

    def opened(self, skipped: int) -> None:
        """The source is open; so many of its frames are skipped."""
        source = self._source
        self._bus.emit(happened.SourceOpened(source.name, source.live, skipped, source.figures()))

    def begun_anew(self, source: FrameSource, frames: int, reason: str) -> None:
        """A replayed source is read from its beginning, because it is not the one that so many frames were read of."""
        self._source = source
        self._bus.emit(happened.SourceBegunAnew(source.name, frames, reason))

    def left_over(self, frames: int, learner: Learner) -> None:
        """So many frames at the end of the stream were not learned from."""
        self._tally.unlearned_frames = frames
        recipe = learner.recipe
        least = recipe.segment if self._source.live else ceil(learner.LEAST * recipe.segment)
        self._bus.emit(happened.FramesLeftOver(frames, recipe.segment, recipe.name, least))

    def ending(self) -> None:
        """No further frame will be predicted; what is told only once may be called more than once."""
        if not self._ending:
            self._ending = True
            self._bus.emit(happened.RunEnding())

    def ended(self) -> None:
        """The source is closed."""
        source, tally = self._source, self._tally
        self._bus.emit(
            happened.SourceEnded(
                source.name, tally.frames, source.dropped, tally.unlearned_frames, source.note(), self._figures()
            )
        )

    def heard(self, notice: Notice) -> None:
        """What a live source says of itself."""
        stream = self._stream(notice.stream)
        self._bus.emit(happened.SourceNotice(stream or self._source.name, notice, stream))

    def predicted(self, label: int | None, confidence: float, frame: Frame, observed: Observed) -> None:
        """The answer to a frame: a class, or None for none of them."""
        name = None if label is None else self._name(label)
        self._bus.emit(happened.FramePredicted(name, confidence, frame, observed, self._stream(frame.stream)))

    def _name(self, label: int) -> str:
        """Of a class; one that was taken back a moment ago has none."""
        names = self._names()
        return names[label] if label < len(names) else NONE

    def doing(self, what: str, step: int = 0, steps: int = 0, pause: int = 0) -> None:
        """See `happenings.Doing`."""
        self._bus.emit(happened.Doing(what, step, steps, pause))

    def stepped(self) -> None:
        """Long work did a step."""
        self._bus.emit(happened.Stepped())

    def segment(self, number: int, segment: Segment, report: SegmentReport | None) -> None:
        """A segment was gathered and, with a report, learned."""
        tally, source = self._tally, self._source
        count = np.bincount(segment.pseudo)
        self._bus.emit(
            happened.SegmentLearned(
                number=number,
                live=source.live,
                frames=tally.frames,
                dropped_frames=source.dropped,
                dropped_segments=tally.dropped_segments,
                frame_age_ms=tally.age_ms(),
                unknown_frames=tally.unknown,
                votes={self._name(int(c)): int(count[c]) for c in np.flatnonzero(count)},
                stream_accuracy=tally.stream_accuracy,
                active=[self._name(c) for c in report.active] if report else [],
                report=report,
                stream=self._stream(segment.stream),
            )
        )

    def given_up(self) -> None:
        """A segment was not learned for want of memory."""
        self._tally.given_up_segments += 1
        self._bus.emit(happened.SegmentGivenUp(self._tally.given_up_segments))

    def retrained(self, number: int, segment: int, report: RetrainReport) -> None:
        """Update `number` was made after this segment."""
        self._bus.emit(happened.ModelRetrained(number, segment, report))
        if (verdict := report.verdict) is not None:
            solved = report.loss is None
            self._bus.emit(happened.UpdateJudged(number, segment, verdict, report.rejections, report.pause, solved))

    def resumed(self, segment: int) -> None:
        """A pause of the guard ended with this segment."""
        self._bus.emit(happened.PauseOver(segment))

    def scored(self, when: str, segment: int, deployed: float, frozen: float, images: int) -> None:
        """The deployed model and the never-updated one on the test images; when: "before", "during" or "after"."""
        self._bus.emit(happened.ModelScored(when, segment, deployed, frozen, images))

    def totals(self) -> dict[str, Any]:
        """Its part of the summary."""
        tally = self._tally
        return {
            "segments": tally.segments,
            "frames": tally.frames,
            "dropped_frames": self._source.dropped,
            "dropped_segments": tally.dropped_segments,
            "given_up_segments": tally.given_up_segments,
            "unknown_frames": tally.unknown,
            "unlearned_frames": tally.unlearned_frames,
            "frame_age_ms": tally.age_ms(),
            **self._figures(),
            "stream_accuracy": tally.stream_accuracy,
        }

    def _stream(self, number: int) -> str | None:
        """The name of a stream, where there are several."""
        return self._streams[number] if self._streams else None

    def _figures(self) -> dict[str, Any]:
        """Of the source; to those of several streams are added the segments of each."""
        figures, tally = self._source.figures(), self._tally
        if self._streams:
            counts = (
                {"segments": tally.segments_of[number], "dropped_segments": tally.dropped_segments_of[number]}
                for number in range(len(self._streams))
            )
            figures["streams"] = [each | more for each, more in zip(figures["streams"], counts, strict=True)]
        return figures
