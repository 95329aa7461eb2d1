"""What a run tells: events for programs, lines and figures for people."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from deco_runtime.learning.learner import Learner
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.sources import FrameSource
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.terminal_view import View
from deco_runtime.types import Notice, Segment


@dataclass
class Tally:
    """What a run has counted so far.

    frames: predicted. known, right: of these, with a label, and predicted right. unknown: of these, answered as none of
    the classes. segments: gathered. dropped_segments: of these, refused because the learner was busy.
    given_up_segments: of these, not learned because memory was short. unlearned_frames: of the last segment, which did
    not get complete and was not learned from.
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
    """Writes to the event log and the view of a run; docs/bundle.md lists the events."""

    def __init__(
        self, classes: tuple[str, ...], source: FrameSource, events: EventLog, view: View, tally: Tally
    ) -> None:
        self._classes, self._source, self._events, self._view, self._tally = classes, source, events, view, tally

    def opened(self, skipped: int) -> None:
        """The source is open; so many of its frames are skipped."""
        source = self._source
        self._events.write(
            "source", action="opened", name=source.name, live=source.live, skipped=skipped, **source.figures()
        )

    def begun_anew(self, source: FrameSource, frames: int, reason: str) -> None:
        """A replayed source is read from its beginning, because it is not the one that so many frames were read of."""
        self._source = source
        self._view.line(
            f"warning: expected {source.name} as the last run left it at frame {frames}, but {reason}; "
            "starts anew with its first frame"
        )
        self._events.write("source", action="begun anew", name=source.name, reason=reason, frames=frames)

    def left_over(self, frames: int, learner: Learner) -> None:
        """So many frames at the end of the stream were not learned from."""
        self._tally.unlearned_frames = frames
        recipe = learner.recipe
        why = f"{recipe.name} learns from segments of {recipe.segment}"
        if learner.LEAST < 1 and not self._source.live:
            why += f" and at the end from {ceil(learner.LEAST * recipe.segment)} frames or more"
        self._view.line(
            f"note: the last {frames} frame{'s were' if frames > 1 else ' was'} not learned from, because {why}; "
            "--set segment=N makes them smaller"
        )

    def ended(self) -> None:
        """The source is closed."""
        source, note = self._source, self._source.note()
        if note:
            self._view.line(f"note: {note}")
        self._events.write(
            "source",
            action="ended",
            name=source.name,
            frames=self._tally.frames,
            dropped=source.dropped,
            unlearned_frames=self._tally.unlearned_frames,
            note=note,
            **source.figures(),
        )

    def heard(self, notice: Notice) -> None:
        """What a live source says of itself."""
        if notice.action in ("lost", "reconnected"):
            self._view.show(camera="lost, waiting for it" if notice.action == "lost" else "back")
        if notice.words:
            self._view.line(notice.words)
            self._events.write("source", action=notice.action, name=self._source.name, **notice.figures)

    def segment(self, number: int, segment: Segment, report: SegmentReport | None) -> None:
        """A segment was gathered and, with a report, learned."""
        tally, source = self._tally, self._source
        count = np.bincount(segment.pseudo, minlength=len(self._classes))
        active = [self._classes[c] for c in report.active] if report else []
        self._events.write(
            "segment",
            number=number,
            frames=tally.frames,
            dropped_frames=source.dropped,
            dropped_segments=tally.dropped_segments,
            frame_age_ms=tally.age_ms(),
            unknown_frames=tally.unknown,
            votes={self._classes[int(c)]: int(count[c]) for c in np.flatnonzero(count)},
            stream_accuracy=tally.stream_accuracy,
            **(_figures(report, active) if report else {}),
        )
        own = report.words if report else {}
        accuracy = tally.stream_accuracy
        self._view.show(
            segment=number,
            active_classes=", ".join(active) or "none" if report else None,
            kept_share=f"{report.kept:.0%}" if report else None,
            **{name.replace(" ", "_"): words for name, words in own.items()},
            dropped=f"{source.dropped} frames, {tally.dropped_segments} segments" if source.live else None,
            accuracy_on_the_stream=None if accuracy is None else f"{accuracy:.1%}",
        )
        if not self._view.is_terminal and report:
            self._view.line(
                f"segment {number}: active {', '.join(active) or 'none'}; kept {report.kept:.0%}"
                + "".join(f"; {name} {words}" for name, words in own.items())
                + (f"; {report.dropped} updates dropped, not finite" if report.dropped else "")
            )

    def retrained(self, number: int, segment: int, report: RetrainReport) -> None:
        """Update `number` was made after this segment."""
        figures = {"loss": report.loss, "accepted": report.accepted, "seconds": report.seconds}
        self._events.write("retrain", number=number, segment=segment, **figures)
        verdict = report.verdict
        if verdict is None:
            if not report.accepted:
                self._view.line("an update of the model was dropped because it was not finite")
            return
        self._events.write(
            "guard",
            decision="accepted" if verdict.accepted else "rejected",
            update=number,
            segment=segment,
            reason=verdict.reason,
            rejections=report.rejections,
            pause=report.pause,
            scores=verdict.scores,
        )
        self._view.show(guard=f"{verdict.reason or 'accepted'} (update {number})")
        if verdict.accepted and report.loss is None:
            return  # one after each segment: no news
        if verdict.accepted:
            measured, scores = "the bundle has no guard images", verdict.scores
            if "images" in scores:
                measured = f"{scores['lost']} of {scores['images']} guard images lost, {scores['gained']} gained"
            self._view.line(f"update {number} accepted: {measured}")
            return
        self._view.line(f"update {number} rejected, it {verdict.reason}: goes back to what was accepted before it")
        if report.pause:
            self._view.line(
                f"learning pauses for {report.pause} segments after {report.rejections} rejections in a row; "
                "prediction goes on"
            )

    def resumed(self, segment: int) -> None:
        """A pause of the guard ended with this segment."""
        self._events.write("guard", decision="resumed", segment=segment)
        self._view.line("the pause is over: learning goes on")

    def scored(self, when: str, segment: int, deployed: float, frozen: float, images: int) -> None:
        """The deployed model and the never-updated one on the test images; when: "before", "during" or "after"."""
        self._events.write("score", when=when, segment=segment, deployed=deployed, frozen=frozen, images=images)
        self._view.show(test_accuracy=f"deployed {deployed:.1%}, never updated {frozen:.1%}")
        self._view.line(f"{when}: deployed model {deployed:.1%}, never updated {frozen:.1%}")

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
            **self._source.figures(),
            "stream_accuracy": tally.stream_accuracy,
        }


def _figures(report: SegmentReport, active: list[str]) -> dict[str, Any]:
    """A segment's part of its event: what every learner says, and what this one alone does."""
    return {
        "active": active,
        "kept": report.kept,
        "pseudo_accuracy": report.pseudo_accuracy,
        "dropped": report.dropped,
        "seconds": report.seconds,
        **report.figures,
    }
