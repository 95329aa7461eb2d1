"""The event stream: one JSON object per line, for whoever watches a device; docs/reference/events.md lists them."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deco_runtime.errors import UsageError
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.telemetry.console import say
from deco_runtime.telemetry.outlet import Outlet
from deco_runtime.telemetry.redact import redact

OF_THE_DISK = {errno.EROFS, errno.ENOSPC, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""Errors that say nothing against the name: a disk that is read-only, full or broken must not end what it only logs."""


OF_EVERY_LINE = ("event", "time", "monotonic", "lost")


class EventLog(Listener):
    """Appends events to a file; without a file it does nothing. What cannot be written is dropped and counted.

    Every line has `event`, `time` (wall clock, UTC, ISO 8601) and `monotonic` (seconds, comparable within one run), and
    `lost`, the events dropped so far, unless there were none. What is secret in an address is in none of them.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError when the file cannot be written; a disk that cannot write now is warned of instead."""
        self._out: Outlet | None = None
        self._wanted, self._lost = path is not None, 0
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # File names need not be text; what is not becomes \\udcXX, as JSON writes it.
            self._out = Outlet(_open(path), failed=lambda error: _warn(path, error))
        except OSError as error:
            if error.errno not in OF_THE_DISK:
                raise UsageError(
                    f"expected --events to name a file that can be written, but {path}: {error.strerror}; change it"
                ) from error
            _warn(path, error)

    def hears(self) -> Hears:
        """See `Listener`."""
        if not self._wanted:
            return {}
        return {
            happened.StateFound: self._state_found,
            happened.StateJudged: self._state_judged,
            happened.SourceOpened: self._source_opened,
            happened.SourceBegunAnew: self._source_begun_anew,
            happened.SourceNotice: self._source_notice,
            happened.SourceEnded: self._source_ended,
            happened.SegmentLearned: self._segment_learned,
            happened.ModelRetrained: self._model_retrained,
            happened.UpdateJudged: self._update_judged,
            happened.PauseOver: lambda event: self.write("guard", decision="resumed", segment=event.segment),
            happened.ModelScored: self._model_scored,
            happened.StateSaved: self._state_saved,
            happened.SaveRefused: lambda event: self.write("save", ok=False, reason=event.reason),
            happened.ClassTaught: self._class_taught,
            happened.FleetMerged: lambda event: self.write(
                "fleet", action="refused" if event.refused else "merged", frames=event.frames, reason=event.refused
            ),
            happened.TeachingUndone: lambda event: self.write("teach", action="undone", teachings=event.teachings),
            happened.LearningHeld: lambda event: self.write("hold", held=event.held),
            happened.WentBack: lambda event: self.write("back", to=event.to, segments=event.segments),
            happened.AnswersJudged: lambda event: self.write("judged", **vars(event)),
            happened.ResourcesPaused: self._resources_paused,
            happened.ResourcesResumed: self._resources_resumed,
        }

    def write(self, event: str, **figures: Any) -> None:
        """One event with its figures; numbers that JSON does not know (nan, inf) become null."""
        if self._out is None:
            self._lost += self._wanted
            return
        line = {
            "event": event,
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "monotonic": round(time.monotonic(), 3),
            **({"lost": self._out.lost} if self._out.lost else {}),
            **figures,
        }
        self._out.write(json.dumps(_plain(line), ensure_ascii=False, allow_nan=False) + "\n")

    def lost(self) -> dict[str, int]:
        """Events that were dropped so far; see `Listener`."""
        self.settle()
        return {"lost_events": self._lost + (self._out.lost if self._out is not None else 0)}

    def settle(self) -> None:
        """Wait a moment for what is on its way."""
        if self._out is not None:
            self._out.settle()

    def close(self) -> None:
        """End the file; further events are dropped."""
        if self._out is not None:
            self._out.close()
            self._lost += self._out.lost
            self._out = None

    def _state_found(self, event: happened.StateFound) -> None:
        self.write(
            "state",
            found=event.found,
            segments=event.segments,
            retrains=event.retrains,
            passed_over=event.passed_over,
            unwritable=event.unwritable,
        )

    def _state_judged(self, event: happened.StateJudged) -> None:
        verdict = event.verdict
        decision = "accepted" if verdict.accepted else "rolled back"
        self.write("guard", decision=decision, update=event.update, reason=verdict.reason, scores=verdict.scores)

    def _source_opened(self, event: happened.SourceOpened) -> None:
        self.write("source", action="opened", name=event.name, live=event.live, skipped=event.skipped, **event.figures)

    def _source_begun_anew(self, event: happened.SourceBegunAnew) -> None:
        self.write("source", action="begun anew", name=event.name, reason=event.reason, frames=event.frames)

    def _source_notice(self, event: happened.SourceNotice) -> None:
        if event.notice.words:
            figures = _of(event.stream) | event.notice.figures
            self.write("source", action=event.notice.action, name=event.name, **figures)

    def _source_ended(self, event: happened.SourceEnded) -> None:
        self.write(
            "source",
            action="ended",
            name=event.name,
            frames=event.frames,
            dropped=event.dropped,
            unlearned_frames=event.unlearned_frames,
            note=event.note,
            **event.figures,
        )

    def _segment_learned(self, event: happened.SegmentLearned) -> None:
        report = event.report
        figures: dict[str, Any] = {
            **_of(event.stream),
            "number": event.number,
            "frames": event.frames,
            "dropped_frames": event.dropped_frames,
            "dropped_segments": event.dropped_segments,
            "frame_age_ms": event.frame_age_ms,
            "unknown_frames": event.unknown_frames,
            "votes": event.votes,
            "stream_accuracy": event.stream_accuracy,
        }
        if report is not None:
            figures |= {"active": event.active, "kept": report.kept, "pseudo_accuracy": report.pseudo_accuracy}
            figures |= {"dropped": report.dropped, "seconds": report.seconds}
            # A learner of another package may call its own figures what it likes.
            figures |= {key: each for key, each in report.figures.items() if key not in {*figures, *OF_EVERY_LINE}}
        self.write("segment", **figures)

    def _model_retrained(self, event: happened.ModelRetrained) -> None:
        report = event.report
        figures = {"loss": report.loss, "accepted": report.accepted, "seconds": report.seconds}
        self.write("retrain", number=event.number, segment=event.segment, **figures)

    def _update_judged(self, event: happened.UpdateJudged) -> None:
        self.write(
            "guard",
            decision="accepted" if event.verdict.accepted else "rejected",
            update=event.number,
            segment=event.segment,
            reason=event.verdict.reason,
            rejections=event.rejections,
            pause=event.pause,
            scores=event.verdict.scores,
        )

    def _model_scored(self, event: happened.ModelScored) -> None:
        self.write(
            "score",
            when=event.when,
            segment=event.segment,
            deployed=event.deployed,
            frozen=event.frozen,
            images=event.images,
        )

    def _class_taught(self, event: happened.ClassTaught) -> None:
        self.write(
            "teach",
            action="refused" if event.refused else "taught",
            name=event.name,
            frames=event.frames,
            new=event.new,
            reason=event.refused,
            teachings=event.teachings,
        )

    def _state_saved(self, event: happened.StateSaved) -> None:
        self.write(
            "save",
            ok=True,
            bytes=event.bytes,
            seconds=event.seconds,
            segment=event.segment,
            written=event.written,
            per_day=event.per_day,
        )

    def _resources_paused(self, event: happened.ResourcesPaused) -> None:
        sensor = {"sensor": event.sensor} if event.sensor is not None else {}
        figures = {"measured": event.measured, "limit": event.limit, **sensor}
        self.write("resources", decision="paused", reason=event.reason, **figures)

    def _resources_resumed(self, event: happened.ResourcesResumed) -> None:
        figures = {"measured": event.measured, "limit": event.limit} if event.limit is not None else {}
        self.write("resources", decision="resumed", reason=event.reason, **figures)


def _of(stream: str | None) -> dict[str, Any]:
    """The stream that a line is about, where there are several."""
    return {} if stream is None else {"stream": stream}


def _open(path: Path) -> int:
    """A handle to append to the file by, of a pipe also where nobody reads it yet, or any more."""
    flags = os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    is_pipe = path.exists() and stat.S_ISFIFO(path.stat().st_mode)
    return os.open(path, flags | (os.O_RDWR if is_pipe else os.O_WRONLY), 0o666)


def _warn(path: Path, error: OSError) -> None:
    say(
        f"warning: expected to write events to {path}, but the system says: {error.strerror}; "
        "goes on without, free space or mend the disk"
    )


def _plain(value: Any) -> Any:
    """As it may be written: finite, and without secrets."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
