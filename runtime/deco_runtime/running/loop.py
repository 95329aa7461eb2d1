"""The runtime loop: predict every frame, gather segments, learn from them, save, score, report.

Two clocks. A replayed source (file, folder, demo) waits: each segment is learned before the next frame is taken, every
frame counts, and a run is the same each time. A live source does not wait: the main thread predicts at camera rate,
and the learner thread owns θ, the buffer and the state.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.errors import StateError
from deco_runtime.host.machine import peak_memory_mb
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.taught import NONE
from deco_runtime.preprocess import preprocess
from deco_runtime.running.autosave import Saver
from deco_runtime.running.learner_thread import Cancelled, Worker
from deco_runtime.running.limits import Resources
from deco_runtime.running.requests import Requests
from deco_runtime.running.resume import START, Place, Seen
from deco_runtime.running.scenes import Scenes
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.sources import FrameSource
from deco_runtime.sources.together import stream_names
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.redact import redact
from deco_runtime.telemetry.report import Reporter, Tally
from deco_runtime.types import Check, Floats, Frame, Ints, Notice, Observed, Segment

SCORE_EVERY = 5
"""Segments between two scores of `--test`, at least: thousands of images take longer than a segment."""


class Run(Stream):
    """One run over one source. `go` does it; `stop` may be set from anywhere to end it at the next safe point.

    names: of all classes there are. requests: of people, see `control`. held: a person has learning wait.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        source: FrameSource,
        guarded: Unguarded,
        saver: Saver,
        scorer: Scorer | None,
        resources: Resources,
        bus: Bus,
        max_segments: int | None,
        started: float,
        reopen: Callable[[], FrameSource],
        choose: Callable[[Engine, Check], Engine] | None = None,
    ) -> None:
        """started: monotonic time the program began, for the first prediction. reopen: opens a replayed source from its
        beginning. choose: the engine to go on with, given the one there is; asked before the first segment is learned,
        since that takes a while."""
        super().__init__(guarded)
        self.bundle, self.engine, self.source = bundle, engine, source
        self.scorer, self.bus = scorer, bus
        self.stop = threading.Event()
        self._saver, self._resources, self._max_segments = saver, resources, max_segments
        self._started, self._reopen, self._choose = started, reopen, choose
        self._frozen_theta = bundle.weights()
        self._frozen: float | None = None
        self._before: float | None = None
        self._deployed: float | None = None
        self._scored_at = 0
        self._tally, self._seen, self._place = Tally(), Seen(), START
        self.names = bundle.classes + self.learner.taught.classes
        self._report = Reporter(lambda: self.names, source, bus, self._tally)
        self.requests, self.held = Requests(), False
        self._scenes = Scenes(self.learner, several=len(stream_names(source)) > 1)
        self._retrains_before = self.learner.retrains
        self._first_prediction: float | None = None
        self._frame: Frame | None = None
        self._worker: Worker | None = None

    def go(self, behind: Place = START) -> dict[str, Any]:
        """Run to the end of the source, `max_segments`, or `stop`; returns the summary.

        behind: what of a replayed source lies behind the state. Raises SourceError when the source fails; what was
        learned until then is saved first.
        """
        threading.Thread(target=self._close_when_stopped, name="closer", daemon=True).start()
        self._report.opened(behind.frames)
        if self.source.live:
            self._worker = Worker(lambda segment: self._learn(segment, START))
            self.requests.hand_over = self._worker.do
        finished = False
        try:
            self._score("before")
            if self._worker is None:  # the learner's thread does it itself: predictions do not wait for it
                self.retrain_if_due()
            finished = self._frame_loop(behind)
        except Cancelled:
            pass
        finally:
            interrupted = self.stop.is_set()
            self.stop.set()
            self._report.ending()
            if self._worker:
                self._worker.end()
            self.requests.end()
            if finished:
                self._place = START
            self._save()
            self.source.close()
            self._report.ended()
        if not interrupted:
            self._score("after", check=self._report.stepped)
        return self._summary()

    def _frame_loop(self, behind: Place) -> bool:
        """Predict and gather until the source ends (True) or something stops the run (False)."""
        self._place = behind
        for frame in self._frames(behind):
            if self.stop.is_set():
                return False
            if self._worker is None:
                self.requests.serve()
            if isinstance(frame, Notice):
                self._report.heard(frame)
                if frame.action == "lost":
                    self.segmenter_of(frame.stream).cut()
                continue
            self._frame = frame
            x = preprocess(frame.pixels, self.bundle.preprocessing)
            label = np.array([-1 if frame.label is None else frame.label])
            self.see(x[None], label, frame.fault is not None, frame.stream)
            if self._max_segments is not None and self._tally.segments >= self._max_segments:
                if self._worker:
                    self._report.ending()  # frames are no longer predicted while the learner ends its work
                    self._worker.drain()
                return False
        if self._worker:
            self._report.ending()
            self._worker.drain()
        if not self.stop.is_set() or self.source.live:  # else the next run goes on with them
            self._end()
        return not self.stop.is_set()

    def _frames(self, behind: Place) -> Iterator[Frame | Notice]:
        """What comes from the source, from the place on; all of it where that is of a stream that has changed."""
        if self.source.live:
            yield from self.source.frames()
            return
        while True:
            self._seen, changed = Seen(), ""
            for frame in self.source.frames():
                if isinstance(frame, Frame):
                    self._seen.add(frame.pixels)
                if self._seen.frames > behind.frames:
                    yield frame
                elif self._seen.frames == behind.frames and self._seen.place != behind:
                    changed = "it has changed since"
                    break
            if not changed and self._seen.frames < behind.frames:
                changed = f"it ends after {self._seen.frames} now"
            if not changed or self.stop.is_set():
                return
            self.source.close()
            self.source = self._reopen()
            self._report.begun_anew(self.source, behind.frames, changed)
            self._place = behind = START
            self.learner.interrupted()

    def _end(self) -> None:
        """Learn from the frames of the last segment, which is not complete, or say that nobody does."""
        count, learner = sum(segmenter.count for segmenter in self.segmenters.values()), self.learner
        if not learner.LEARNS or not count:
            return
        if not self.source.live and count >= learner.LEAST * learner.recipe.segment:
            self.gathered(self.segmenter.take())
            return
        self._report.left_over(count, learner)

    def predicted(self, observed: Observed, pseudo: Ints, confidence: Floats, labels: Ints) -> None:
        """One frame."""
        assert self._frame is not None
        unknown, label = float(self.learner.strangeness(observed)[0]), int(labels[0])
        nothing = int(pseudo[0]) < len(self.names) and self.names[int(pseudo[0])] == NONE
        strange, unknown = (True, float(confidence[0])) if nothing else (unknown > 0.5, unknown)
        if self._first_prediction is None:
            self._first_prediction = time.monotonic() - self._started
        self._tally.frames += 1
        if self.source.live:
            self._tally.ages.append(time.monotonic() - self._frame.time)
        if label >= 0:
            self._tally.known += 1
            self._tally.right += int(pseudo[0] == label and not strange)
        self._tally.unknown += int(strange)
        answer, sure = (None, unknown) if strange else (int(pseudo[0]), float(confidence[0]))
        self._report.predicted(answer, sure, self._frame, observed)

    def gathered(self, segment: Segment) -> None:
        """Learn it, at once from a replayed source, or in the learner's thread unless that is busy."""
        if self.held:
            self.segmenter_of(segment.stream).cut()
            return
        self._tally.segments += 1
        self._tally.segments_of[segment.stream] += 1
        if self._worker is None:
            self._learn(segment, self._seen.place)
        elif not self._worker.offer(segment):
            self._tally.dropped_segments += 1
            self._tally.dropped_segments_of[segment.stream] += 1
            self.segmenter_of(segment.stream).cut()

    def _learn(self, segment: Segment, place: Place) -> None:
        """Learn one segment that ends at this place of a replayed source (START for a live one)."""
        learner = self.learner
        if self._choose is not None:
            self._report.doing("timing engines")
            self.engine = learner.engine = self._choose(self.engine, self.check)
            self._choose = None
        self.retrain_if_due()  # one that the last run, or want of memory, had to give up
        paused = self.guarded.pause
        check = self._counting(*learner.steps)
        with self._scenes.of(segment.stream):
            report = self._resources.work(lambda: self.guarded.learn(segment, check), self.check)
            if report is None:
                learner.interrupted()
        self._place = place
        if report is None:
            self._report.given_up()
            self._save_if_due()  # what was learned before, in a pause that may last for weeks
            return
        pause = self.guarded.pause
        if paused and not pause:
            self._report.resumed(learner.segments)
        self._report.doing("predicting", pause=pause)
        self._report.segment(learner.segments, segment, report if learner.LEARNS else None)
        self.retrain_if_due()
        self._save_if_due()

    def retrain_if_due(self) -> None:
        """As `Stream` has it, within the resources that learning may take."""
        learner = self.learner
        if not learner.retrain_due:
            return
        check = self._counting(*learner.solve_steps)
        report = self._resources.work(lambda: self.guarded.retrain(check), self.check)
        if report is None:
            return
        self._report.retrained(learner.retrains, learner.segments, report)
        if learner.segments - self._scored_at >= SCORE_EVERY:
            self._score("during")
        self._report.doing("predicting")

    def _score(self, when: str, check: Callable[[], None] | None = None) -> None:
        if self.scorer is None:
            return
        check = check or self.check
        if self._frozen is None:
            self._frozen = self.scorer.accuracy(self._pre_trained, check)
        learner = self.learner
        same = np.array_equal(learner.model, self._frozen_theta)
        self._deployed = self._frozen if same else self.scorer.accuracy(learner.predict, check)
        if when == "before":
            self._before = self._deployed
        segment = self._scored_at = learner.segments
        self._report.scored(when, segment, self._deployed, self._frozen, len(self.scorer))

    def _pre_trained(self, x: Floats) -> Floats:
        return self.engine.predict(self._frozen_theta, self.engine.encode(x))[0]

    def names_changed(self) -> None:
        """People added a class, or took one back; by the owner of what is learned."""
        self.names = self.bundle.classes + self.learner.taught.classes

    def save_now(self) -> None:
        """By the owner of what is learned. Raises StateError where the disk refuses."""
        self._save()
        if self._saver.reason:
            raise StateError(self._saver.reason)

    def _save_if_due(self) -> None:
        if self._saver.due:
            self._save()

    def _save(self) -> None:
        if self.learner.LEARNS:
            self._saver.save(self.guarded, redact(self.source.name), self._place)

    def check(self) -> None:
        """Between the steps of long work: ends it with Cancelled where the run is to stop."""
        if self.stop.is_set():
            raise Cancelled
        self._report.stepped()

    def _counting(self, what: str, total: int) -> Callable[[], None]:
        """A check for `total` steps of learning, which shows how far it has come and waits for its resources."""
        steps = itertools.count(1)

        def check() -> None:
            self.check()
            self._resources.step(self.check)
            self._report.doing(what, min(next(steps), total), total)

        return check

    def _close_when_stopped(self) -> None:
        self.stop.wait()
        self.source.close()

    def _summary(self) -> dict[str, Any]:
        return {
            "before": self._before,
            "frozen": self._frozen,
            "learned": self._deployed,
            "retrains": self.learner.retrains - self._retrains_before,
            "dropped_updates": self.learner.dropped,
            "paused_seconds": self._resources.paused_seconds(),
            **self._report.totals(),
            "first_prediction_seconds": self._first_prediction,
            "peak_memory_mb": peak_memory_mb(),
            "saved_bytes": self._saver.written,
            "saved_bytes_per_day": self._saver.per_day(),
            **self.bus.lost(),
            "seconds": time.monotonic() - self._started,
            "engine": self.engine.name,
        }
