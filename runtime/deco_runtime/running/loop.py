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
from deco_runtime.host.machine import peak_memory_mb
from deco_runtime.learning.learner import BaseLearner
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import preprocess
from deco_runtime.running.autosave import Saver
from deco_runtime.running.learner_thread import Cancelled, Worker
from deco_runtime.running.limits import Resources
from deco_runtime.running.resume import START, Place, Seen
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.segmenter import Gatherer
from deco_runtime.sources import FrameSource
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.redact import redact
from deco_runtime.telemetry.report import Reporter, Tally
from deco_runtime.types import Floats, Frame, Notice, Segment

SCORE_EVERY = 5
"""Segments between two scores of `--test`, at least: thousands of images take longer than a segment."""

REST = 4
"""The last frames of a replayed stream are learned from by deco+ if they are at least one in so many of a segment: of
fewer, the shares of the classes say little."""


class Run:
    """One run over one source. `go` does it; `stop` may be set from anywhere to end it at the next safe point."""

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        source: FrameSource,
        learner: BaseLearner | None,
        saver: Saver,
        scorer: Scorer | None,
        resources: Resources,
        bus: Bus,
        max_segments: int | None,
        segment_size: int,
        started: float,
        reopen: Callable[[], FrameSource],
    ) -> None:
        """learner: None for plain inference. started: monotonic time the program began, for the first prediction.
        reopen: opens a replayed source from its beginning."""
        self.bundle, self.engine, self.source, self.learner = bundle, engine, source, learner
        self.scorer, self.bus = scorer, bus
        self.stop = threading.Event()
        self._saver, self._resources = saver, resources
        self._max_segments, self._segment_size = max_segments, segment_size
        self._started, self._reopen = started, reopen
        self._frozen_theta = bundle.weights()
        self._frozen: float | None = None
        self._before: float | None = None
        self._deployed: float | None = None
        self._scored_at = 0
        self._tally, self._seen, self._place = Tally(), Seen(), START
        self._report = Reporter(bundle.classes, source, bus, self._tally)
        self._retrains_before = learner.retrains if learner else 0
        self._first_prediction: float | None = None

    def predict(self, x: Floats) -> Floats:
        """Logits (N, K) of the model deployed at this moment."""
        return self.learner.predict(x) if self.learner else self._predict_frozen(x)

    def recognise(self, x: Floats) -> tuple[Floats, Floats]:
        """The same, and how likely each image shows none of the classes, (N,)."""
        return self.learner.recognise(x) if self.learner else (self._predict_frozen(x), np.zeros(len(x), np.float32))

    def _predict_frozen(self, x: Floats) -> Floats:
        return self.engine.predict(self._frozen_theta, x)[0]

    def go(self, behind: Place = START) -> dict[str, Any]:
        """Run to the end of the source, `max_segments`, or `stop`; returns the summary.

        behind: what of a replayed source lies behind the state. Raises SourceError when the source fails; what was
        learned until then is saved first.
        """
        threading.Thread(target=self._close_when_stopped, name="closer", daemon=True).start()
        self._report.opened(behind.frames)
        worker = Worker(lambda segment: self._learn(segment, START)) if self.source.live and self.learner else None
        finished = False
        try:
            self._score("before")
            if worker is None:  # the learner's thread does it itself: predictions do not wait for it
                self._retrain_if_due()
            finished = self._frame_loop(worker, behind)
        except Cancelled:
            pass
        finally:
            interrupted = self.stop.is_set()
            self.stop.set()
            self._report.ending()
            if worker:
                worker.end()
            if finished:
                self._place = START
            self._save()
            self.source.close()
            self._report.ended()
        if not interrupted:
            self._score("after", check=self._report.stepped)
        return self._summary()

    def _frame_loop(self, worker: Worker | None, behind: Place) -> bool:
        """Predict and gather until the source ends (True) or something stops the run (False)."""
        gathered = Gatherer(self.bundle.image_shape, self._segment_size)
        self._place = behind
        for frame in self._frames(behind):
            if self.stop.is_set():
                return False
            if isinstance(frame, Notice):
                self._report.heard(frame)
                if frame.action == "lost":
                    gathered.cut()
                continue
            self._predict(frame, gathered)
            if not gathered.full:
                continue
            segment = gathered.take()
            self._tally.segments += 1
            if self.learner is None:
                self._report.segment(self._tally.segments, segment, None)
            elif worker is None:
                self._learn(segment, self._seen.place)
            elif not worker.offer(segment):
                self._tally.dropped_segments += 1
                gathered.cut()
            if self._max_segments is not None and self._tally.segments >= self._max_segments:
                if worker:
                    self._report.ending()  # frames are no longer predicted while the learner ends its work
                    worker.drain()
                return False
        if worker:
            self._report.ending()
            worker.drain()
        if not self.stop.is_set() or self.source.live:  # else the next run goes on with them
            self._end_with(gathered)
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
            if self.learner is not None:
                self.learner.scene = None

    def _end_with(self, gathered: Gatherer) -> None:
        """Learn from the frames of the last segment, which is not complete, or say that nobody does."""
        if self.learner is None or not gathered.count:
            return
        recipe = self.learner.recipe
        if not self.source.live and recipe.method == "regression" and gathered.count * REST >= self._segment_size:
            self._tally.segments += 1
            self._learn(gathered.take(), self._seen.place)
            return
        self._report.left_over(gathered.count, self._segment_size, recipe)

    def _predict(self, frame: Frame, gathered: Gatherer) -> None:
        x = preprocess(frame.pixels, self.bundle.preprocessing)
        logits, unknown = self.recognise(x[None])
        pseudo, confidence = pseudo_label(logits)
        strange = float(unknown[0]) > 0.5
        if self._first_prediction is None:
            self._first_prediction = time.monotonic() - self._started
        self._tally.frames += 1
        if self.source.live:
            self._tally.ages.append(time.monotonic() - frame.time)
        if frame.label is not None:
            self._tally.known += 1
            self._tally.right += int(pseudo[0] == frame.label and not strange)
        self._tally.unknown += int(strange)
        if strange:
            self._report.predicted(None, float(unknown[0]))
        else:
            self._report.predicted(int(pseudo[0]), float(confidence[0]))
        if frame.fault is None:
            gathered.add(x, int(pseudo[0]), float(confidence[0]), frame.label)
        else:
            gathered.cut()

    def _learn(self, segment: Segment, place: Place) -> None:
        """Learn one segment that ends at this place of a replayed source (START for a live one)."""
        learner = self.learner
        assert learner is not None
        self._retrain_if_due()  # one that the last run, or want of memory, had to give up
        paused = self._pause
        check = self._counting(*learner.steps)
        report = self._resources.work(lambda: learner.learn(segment, check), self._check)
        self._place = place
        if report is None:
            self._report.given_up()
            learner.scene = None
            self._save_if_due()  # what was learned before, in a pause that may last for weeks
            return
        if paused and not self._pause:
            self._report.resumed(learner.segments)
        self._report.doing("predicting", pause=self._pause)
        self._report.segment(learner.segments, segment, report)
        self._retrain_if_due()
        self._save_if_due()

    def _retrain_if_due(self) -> None:
        learner = self.learner
        if learner is None or not learner.retrain_due:
            return
        check = self._counting(*learner.fit_steps)
        report = self._resources.work(lambda: learner.retrain(check), self._check)
        if report is None:
            return
        kept = learner.guard.kept if learner.guard is not None else None
        self._report.retrained(learner.retrains, learner.segments, report, kept)
        if learner.segments - self._scored_at >= SCORE_EVERY:
            self._score("during")
        self._report.doing("predicting")

    @property
    def _pause(self) -> int:
        """Segments left of the guard's pause."""
        return self.learner.guard.kept.pause if self.learner is not None and self.learner.guard is not None else 0

    def _score(self, when: str, check: Callable[[], None] | None = None) -> None:
        if self.scorer is None:
            return
        check = check or self._check
        if self._frozen is None:
            self._frozen = self.scorer.accuracy(self._predict_frozen, check)
        same = self.learner is None or np.array_equal(self.learner.model, self._frozen_theta)
        self._deployed = self._frozen if same else self.scorer.accuracy(self.predict, check)
        if when == "before":
            self._before = self._deployed
        segment = self._scored_at = self.learner.segments if self.learner else self._tally.segments
        self._report.scored(when, segment, self._deployed, self._frozen, len(self.scorer))

    def _save_if_due(self) -> None:
        if self._saver.due:
            self._save()

    def _save(self) -> None:
        if self.learner is not None:
            self._saver.save(self.learner, redact(self.source.name), self._place)

    def _check(self) -> None:
        if self.stop.is_set():
            raise Cancelled
        self._report.stepped()

    def _counting(self, what: str, total: int) -> Callable[[], None]:
        """A check for `total` steps of learning, which shows how far it has come and waits for its resources."""
        steps = itertools.count(1)

        def check() -> None:
            self._check()
            self._resources.step(self._check)
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
            "retrains": self.learner.retrains - self._retrains_before if self.learner else 0,
            "dropped_updates": self.learner.dropped if self.learner else 0,
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
