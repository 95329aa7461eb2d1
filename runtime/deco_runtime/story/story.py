"""All of an event file in figures whose number does not grow with its length."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from deco_runtime.story.figures import count, number, part, text
from deco_runtime.story.people import KINDS, People
from deco_runtime.story.runs import Run, Score
from deco_runtime.story.timeline import Bucket, Timeline

MOST_TOLD = 50
"""Of what is told one by one, the newest."""
MOST_KINDS = 20
"""Names of unknown things that are kept."""
MOST_SCORES = 400

Event = Mapping[str, Any]
_DIGITS = re.compile(r"\d+(\.\d+)?")


class Story:
    """Takes events in their order; what it does not know it counts."""

    def __init__(self) -> None:
        self.events = 0
        self.run_count = 0
        self.runs: deque[Run] = deque(maxlen=MOST_TOLD)
        self.total = Run("")
        self.timeline = Timeline()
        self.scores: list[Score] = []
        self.updates = 0
        self.learning_seconds = 0.0
        self.decisions: Counter[str] = Counter()
        self.verdicts: deque[tuple[str, str, str]] = deque(maxlen=MOST_TOLD)
        self.reasons: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self.pause_seconds: dict[str, float] = {}
        self.people = People()
        self.streams: Counter[str] = Counter()
        self.camera: deque[tuple[str, str, str, str]] = deque(maxlen=MOST_TOLD)
        self.camera_kinds: Counter[str] = Counter()
        self.away_seconds = 0.0
        self.saves = self.refused_saves = 0
        self.merges: Counter[str] = Counter()
        self.fleet_frames = 0
        self.saved_bytes = 0
        self.refusals: deque[tuple[str, str]] = deque(maxlen=MOST_TOLD)
        self.dropped_segments = 0
        self.unknown_kinds: Counter[str] = Counter()
        self.warnings: deque[tuple[str, str]] = deque(maxlen=MOST_TOLD)
        self.lost_events = 0
        self._paused: dict[str, float | None] = {}  # reason → since when
        self._seen_dropped = self._seen_lost = 0
        self._kinds: dict[str, Callable[[Event, Run], None]] = {
            "state": self._state,
            "source": self._source,
            "segment": self._segment,
            "retrain": self._retrain,
            "guard": self._guard,
            "resources": self._resources,
            "score": self._score,
            "save": self._save,
            "fleet": self._fleet,
            **dict.fromkeys(KINDS, lambda event, run: self.people.take(event, run.ended)),
        }

    def take(self, event: Event) -> None:
        """One event more."""
        kind, now = str(event.get("event")), number(event, "monotonic")
        self.events += 1
        if not self.runs or self._begins(kind, event, now):
            self._begin(text(event, "time") or "", now)
        run = self.runs[-1]
        run.ended = text(event, "time") or run.ended
        if run.start is not None and now is not None:
            self.total.seconds += max(0.0, now - run.start - run.seconds)
            run.seconds = max(run.seconds, now - run.start)
        lost = count(event, "lost")
        self.lost_events += max(0, lost - self._seen_lost)
        self._seen_lost = max(lost, self._seen_lost)
        if kind in self._kinds:
            self._kinds[kind](event, run)
        elif kind in self.unknown_kinds or len(self.unknown_kinds) < MOST_KINDS:
            self.unknown_kinds[kind[:40]] += 1

    def end(self) -> None:
        """No event will come any more."""
        for reason in list(self._paused):
            self._resume(reason)

    def _begins(self, kind: str, event: Event, now: float | None) -> bool:
        """Whether this is the first event of another run: there is none that says so."""
        run = self.runs[-1]
        if kind == "state" or (now is not None and run.start is not None and now < run.start):
            return True
        if kind != "source" or event.get("action") != "opened":
            return False
        # Several cameras are opened before the first of them is worked with.
        going = run.finished or run.segments > 0 or run.before is not None
        return going or (text(event, "name") or "") in run.sources

    def _begin(self, began: str, now: float | None) -> None:
        self.end()
        self.runs.append(Run(began, now))
        self.run_count += 1
        self._seen_dropped = self._seen_lost = 0
        self.total.began = self.total.began or began

    def _fleet(self, event: Event, run: Run) -> None:
        self.merges["refused" if event.get("action") == "refused" else "merged"] += 1
        self.fleet_frames = count(event, "frames")

    def _state(self, event: Event, run: Run) -> None:
        for key in ("passed_over", "unwritable"):
            if words := text(event, key):
                self.warnings.append((run.ended, words))

    def _source(self, event: Event, run: Run) -> None:
        action, name = text(event, "action") or "", text(event, "name") or ""
        if action == "opened":
            run.sources = [*run.sources, name][:MOST_KINDS]
            run.live = event.get("live") is True
        elif action == "ended":
            self._counts(event, run, "dropped")
            run.finished = True
            if note := text(event, "note"):
                self.warnings.append((run.ended, note))
        elif action in ("lost", "reconnected", "frozen", "black", "cleared", "resized", "begun anew"):
            self.camera_kinds[action] += 1
            run.lost += action == "lost"
            seconds = number(event, "seconds")
            if action == "reconnected" and seconds is not None:
                self.away_seconds += max(0.0, seconds)
            after = f"after {seconds:.1f} s" if seconds is not None else ""
            self.camera.append((run.ended, name, action, text(event, "reason") or after))

    def _counts(self, event: Event, run: Run, dropped: str) -> None:
        """Frames of a run so far, which never become fewer."""
        for name, key in (("frames", "frames"), ("dropped", dropped), ("unknown", "unknown_frames")):
            more = max(0, count(event, key) - getattr(run, name))
            setattr(run, name, getattr(run, name) + more)
            setattr(self.total, name, getattr(self.total, name) + more)

    def _segment(self, event: Event, run: Run) -> None:
        unknown = run.unknown
        self._counts(event, run, "dropped_frames")
        run.segments += 1
        self.total.segments += 1
        self.learning_seconds += max(0.0, number(event, "seconds") or 0.0)
        dropped = count(event, "dropped_segments")
        self.dropped_segments += max(0, dropped - self._seen_dropped)
        self._seen_dropped = max(dropped, self._seen_dropped)
        stream = (text(event, "stream") or "")[:100]
        if stream and (stream in self.streams or len(self.streams) < MOST_KINDS):
            self.streams[stream] += 1
        votes, age = part(event, "votes"), part(event, "frame_age_ms")
        median = number(age, "median")
        self.timeline.add(
            Bucket(
                begin=run.ended,
                segments=1,
                votes=Counter({name[:100]: frames for name in votes if (frames := count(votes, name))}),
                unknown=run.unknown - unknown,
                age_ms=median or 0.0,
                ages=int(median is not None),
                oldest_ms=number(age, "max"),
                stream=number(event, "stream_accuracy"),
                pseudo=number(event, "pseudo_accuracy"),
            )
        )

    def _retrain(self, event: Event, _: Run) -> None:
        self.updates += 1
        self.learning_seconds += max(0.0, number(event, "seconds") or 0.0)

    def _guard(self, event: Event, run: Run) -> None:
        decision = (text(event, "decision") or "")[:40]
        if decision not in ("accepted", "rejected", "resumed", "rolled back"):
            return
        self.decisions[decision] += 1
        run.accepted += decision == "accepted"
        run.rejected += decision == "rejected"
        if count(event, "pause"):
            self.decisions["pause"] += 1
        if decision != "accepted":
            reason = text(event, "reason") or ""
            self.verdicts.append((run.ended, decision, reason))
            alike = _DIGITS.sub("N", reason)
            if reason and (alike in self.reasons or len(self.reasons) < MOST_KINDS):
                self.reasons[alike] += 1

    def _resources(self, event: Event, run: Run) -> None:
        reason = (text(event, "reason") or "")[:40]
        if event.get("decision") == "paused" and (reason in self.pauses or len(self.pauses) < MOST_KINDS):
            self.pauses[reason] += 1
            self._paused[reason] = run.seconds
        elif event.get("decision") == "resumed":
            self._resume(reason)

    def _resume(self, reason: str) -> None:
        since = self._paused.pop(reason, None)
        if since is not None:
            rested = max(0.0, self.runs[-1].seconds - since)
            self.pause_seconds[reason] = self.pause_seconds.get(reason, 0.0) + rested

    def _score(self, event: Event, run: Run) -> None:
        when, deployed = text(event, "when") or "", number(event, "deployed")
        if when not in ("before", "during", "after") or deployed is None:
            return
        frozen = number(event, "frozen")
        run.frozen = frozen if frozen is not None else run.frozen
        if when == "before":
            run.before = deployed
        elif when == "after":
            run.after = deployed
        self.scores.append(Score(self.total.segments, when, deployed, frozen, count(event, "images")))
        if len(self.scores) > MOST_SCORES:
            del self.scores[1::2]

    def _save(self, event: Event, run: Run) -> None:
        if event.get("ok") is True:
            self.saves += 1
            self.saved_bytes += count(event, "bytes")
        else:
            self.refused_saves += 1
            self.refusals.append((run.ended, text(event, "reason") or ""))
