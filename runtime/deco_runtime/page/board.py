"""What the page shows of a run: one record, kept up to date by what happens, told as JSON."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from deco_runtime.host import machine
from deco_runtime.running.control import Control
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.telemetry.redact import redact

SEGMENTS, DECISIONS, NEWS = 60, 20, 30
"""That are kept."""
QUIET_S = 30.0
"""Seconds without a frame after which the run is not healthy."""


class Board(Listener):
    """Hears what happens; `told` is what there is to see now. version rises with each change but a frame."""

    def __init__(self, control: Control, title: str) -> None:
        self._control, self._title = control, title
        self.version = 0
        self._last: happened.FramePredicted | None = None
        self._times: deque[float] = deque(maxlen=200)
        self._segments: deque[dict[str, Any]] = deque(maxlen=SEGMENTS)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._news: deque[dict[str, Any]] = deque(maxlen=NEWS)
        self._facts: dict[str, Any] = {"doing": "", "learning": "on", "camera": "", "source": "", "live": False}
        self._judged = [0, 0]
        self._frames = 0
        self._started = time.monotonic()
        self._machine: tuple[float, dict[str, Any]] = -1.0, {}
        self._lock = threading.Lock()

    def hears(self) -> Hears:
        """See `Listener`."""
        return {
            happened.FramePredicted: self._frame,
            happened.SourceOpened: lambda e: self._set(source=redact(e.name), live=e.live, camera="on"),
            happened.SourceNotice: self._notice,
            happened.SegmentLearned: self._segment,
            happened.UpdateJudged: self._decided,
            happened.ModelRetrained: lambda e: self._set(updates=e.number),
            happened.ModelScored: lambda e: self._set(test={e.when: e.deployed, "never_updated": e.frozen}),
            happened.Doing: lambda e: self._set(doing=e.words, guard_pause=e.pause),
            happened.ResourcesPaused: lambda e: self._set(learning=f"waits: {e.reason}"),
            happened.ResourcesResumed: lambda _: self._set(learning="on"),
            happened.LearningHeld: lambda e: self._set(learning="held by a person" if e.held else "on"),
            happened.StateSaved: lambda e: self._set(saved=e.bytes, written=e.written, per_day=e.per_day),
            happened.SaveRefused: lambda e: self._tell(redact(e.reason)),
            happened.ClassTaught: lambda e: self._tell(e.words, teachings=e.teachings),
            happened.TeachingUndone: lambda e: self._tell("the last teaching was taken back", teachings=e.teachings),
            happened.FleetMerged: self._fleet,
            happened.WentBack: lambda e: self._tell(f"went back to {e.to}: {e.segments} segments"),
            happened.AnswersJudged: self._judge,
            happened.RunEnding: lambda _: self._set(camera="the run is ending"),
        }

    @property
    def healthy(self) -> bool:
        """Whether frames come."""
        last = self._times[-1] if self._times else self._started
        return time.monotonic() - last < QUIET_S

    def told(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        last, times, control = self._last, list(self._times), self._control
        now = time.monotonic()
        answer = None
        if last is not None:
            answer = {"label": last.label, "confidence": last.confidence, "stream": last.stream}
        fps = (len(times) - 1) / max(times[-1] - times[0], 1e-9) if len(times) > 1 and now - times[-1] < 5 else 0.0
        with self._lock:
            return {
                "title": self._title,
                "version": self.version,
                "answer": answer,
                "frames": self._frames,
                "fps": round(fps, 1),
                "seconds_since_frame": round(now - times[-1], 1) if times else None,
                "segments": list(self._segments),
                "guard": list(self._decisions),
                "news": list(self._news),
                "judged": {"right": self._judged[0], "of": self._judged[1]},
                "classes": list(control.classes),
                "bundle_classes": len(control.bundle.classes),
                "known": control.known(),
                "recipe": control.recipe,
                "buffer": control.buffer is not None,
                "can_teach": control.can_teach,
                "held": control.held,
                **self._machine_now(now),
                **self._facts,
            }

    def _machine_now(self, now: float) -> dict[str, Any]:
        then, found = self._machine
        if now - then > 1:
            temperatures = machine.temperatures()
            found = {"memory_mb": machine.memory_mib_taken(), "temperature": max(temperatures.values(), default=None)}
            self._machine = now, found
        return found

    def _set(self, **facts: Any) -> None:
        with self._lock:
            for key, value in facts.items():
                old = self._facts.get(key)
                self._facts[key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
            self.version += 1

    def _tell(self, words: str, **facts: Any) -> None:
        """Something to read, the newest last."""
        with self._lock:
            self._news.append({"time": time.time(), "words": words})
        self._set(**facts)

    def _fleet(self, event: happened.FleetMerged) -> None:
        merged = {} if event.refused else {"merged": time.time()}
        self._tell(event.words, fleet={"frames": event.frames, "refused": event.refused, **merged})

    def _frame(self, event: happened.FramePredicted) -> None:
        self._last = event
        self._frames += 1
        self._times.append(time.monotonic())

    def _notice(self, event: happened.SourceNotice) -> None:
        action, words = event.notice.action, event.notice.words
        if action in ("lost", "reconnected"):
            self._set(camera="lost, waiting for it" if action == "lost" else "on")
        if words:
            self._tell(redact(words))

    def _segment(self, event: happened.SegmentLearned) -> None:
        report = event.report
        with self._lock:
            self._segments.append({"number": event.number, "votes": event.votes, "active": event.active,
                                   "kept": report.kept if report else None})  # fmt: skip
        age = event.frame_age_ms or {}
        self._set(segment=event.number, accuracy=event.stream_accuracy, dropped_frames=event.dropped_frames,
                  dropped_segments=event.dropped_segments, unknown=event.unknown_frames,
                  frame_age_ms=age.get("median"))  # fmt: skip

    def _decided(self, event: happened.UpdateJudged) -> None:
        verdict = event.verdict
        wanted = "accuracy", "frozen_accuracy"
        scores: dict[str, Any] = {key: verdict.scores[key] for key in wanted if key in verdict.scores}
        with self._lock:
            self._decisions.append({"update": event.number, "segment": event.segment, "accepted": verdict.accepted,
                                    "reason": verdict.reason, **scores})  # fmt: skip
        self._set(guard_pause=event.pause)

    def _judge(self, event: happened.AnswersJudged) -> None:
        self._judged[0] += event.frames * event.right
        self._judged[1] += event.frames
        self._set()
