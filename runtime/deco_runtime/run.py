"""The runtime loop: predict every frame, gather segments, learn from them, save, score, report.

Two clocks. A replayed source (file, folder, demo) waits: each segment is learned before the next frame is taken, every
frame counts, and a run is the same each time. A live source does not wait: the main thread predicts at camera rate, the
learner thread owns θ, the buffer and the state; while it is busy with one segment one more may wait, and further
ones are dropped and counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime import state as states
from deco_runtime.bundle import Bundle
from deco_runtime.engine import Engine
from deco_runtime.errors import StateError
from deco_runtime.events import EventLog
from deco_runtime.learner import Learner
from deco_runtime.preprocess import preprocess
from deco_runtime.scoring import Scorer
from deco_runtime.sources import FrameSource
from deco_runtime.types import Floats, Frame, Segment
from deco_runtime.view import View
from deco_runtime.vote import pseudo_label

SAVE_S = 60.0
"""Seconds between saves where no update of the model asks for one: a segment is worth less than an SD card."""


class Cancelled(Exception):  # noqa: N818  (not an error: the run was asked to stop)
    """The work in hand was given up because the run is stopping; nothing of it was kept."""


class Run:
    """One run over one source. `go` does it; `stop` may be set from anywhere to end it at the next safe point."""

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        source: FrameSource,
        learner: Learner | None,
        state_dir: Path,
        scorer: Scorer | None,
        events: EventLog,
        view: View,
        max_segments: int | None,
        segment_size: int,
        started: float,
    ) -> None:
        """learner: None for plain inference. started: monotonic time the program began, for the first prediction."""
        self.bundle, self.engine, self.source, self.learner = bundle, engine, source, learner
        self.scorer, self.events, self.view = scorer, events, view
        self.stop = threading.Event()
        self._state_dir, self._max_segments, self._segment_size = state_dir, max_segments, segment_size
        self._started, self._saved_at = started, time.monotonic()
        self._frozen_theta = bundle.weights()
        self._frozen: float | None = None
        self._deployed: float | None = None
        self._frames = self._known = self._right = self._position = 0
        self._segments = self._dropped_segments = 0
        self._retrains_before = learner.retrains if learner else 0
        self._first_prediction: float | None = None

    @property
    def theta(self) -> Floats:
        """The deployed model's weights at this moment."""
        return self.learner.theta if self.learner else self._frozen_theta

    def go(self, skip: int = 0) -> dict[str, Any]:
        """Run to the end of the source, `max_segments`, or `stop`; returns the summary.

        skip: frames of a replayed source that lie behind the state. Raises SourceError when the source fails; what was
        learned until then is saved first.
        """
        threading.Thread(target=self._close_when_stopped, name="closer", daemon=True).start()
        self.events.write("source", action="opened", name=self.source.name, live=self.source.live, skipped=skip)
        worker = _Worker(lambda segment: self._learn(segment, 0)) if self.source.live and self.learner else None
        finished = False
        try:
            self._score("before")
            self._retrain_if_due()  # one that was due when the last run ended
            finished = self._frame_loop(worker, skip)
        except Cancelled:
            pass
        finally:
            interrupted = self.stop.is_set()
            self.stop.set()
            if worker:
                worker.end()
            if finished:
                self._position = 0
            self._save()
            self.source.close()
            note = self.source.note()
            if note:
                self.view.line(f"note: {note}")
            self.events.write(
                "source",
                action="ended",
                name=self.source.name,
                frames=self._frames,
                dropped=self.source.dropped,
                note=note,
            )
        if not interrupted:
            self._score("after", check=lambda: None)
        return self._summary()

    def _frame_loop(self, worker: _Worker | None, skip: int) -> bool:
        """Predict and gather until the source ends (True) or something stops the run (False)."""
        gathered = _Gathered(self.bundle.image_shape, self._segment_size)
        self._position = skip
        for number, frame in enumerate(self.source.frames()):
            if self.stop.is_set():
                return False
            if number < skip:
                continue
            self._predict(frame, gathered)
            if not gathered.full:
                continue
            segment = gathered.take()
            self._segments += 1
            if self.learner is None:
                self._report(segment, {}, None)
            elif worker is None:
                self._learn(segment, number + 1)
            elif not worker.offer(segment):
                self._dropped_segments += 1
            if self._max_segments is not None and self._segments >= self._max_segments:
                if worker:
                    worker.drain()
                return False
        if worker:
            worker.drain()
        return not self.stop.is_set()

    def _predict(self, frame: Frame, gathered: _Gathered) -> None:
        x = preprocess(frame.pixels, self.bundle.preprocessing)
        logits, _ = self.engine.predict(self.theta, x[None])
        pseudo, confidence = pseudo_label(logits)
        if self._first_prediction is None:
            self._first_prediction = time.monotonic() - self._started
        self._frames += 1
        if frame.label is not None:
            self._known += 1
            self._right += int(pseudo[0] == frame.label)
        self.view.frame(self.bundle.classes[int(pseudo[0])], float(confidence[0]))
        gathered.add(x, int(pseudo[0]), float(confidence[0]), frame.label)

    def _learn(self, segment: Segment, position: int) -> None:
        """Learn one segment that ends at frame `position` of a replayed source (0 for a live one)."""
        assert self.learner is not None
        report = self.learner.learn(segment, self._check)
        self._position = position
        self._report(segment, asdict(report), report.distance)
        if self._retrain_if_due() or time.monotonic() - self._saved_at >= SAVE_S:
            self._save()

    def _retrain_if_due(self) -> bool:
        if self.learner is None or not self.learner.retrain_due:
            return False
        report = self.learner.retrain(self._check)
        self.events.write("retrain", number=self.learner.retrains, segment=self.learner.segments, **asdict(report))
        if not report.accepted:
            self.view.line("an update of the model was dropped because it was not finite")
        self._score("during")
        return True

    def _report(self, segment: Segment, figures: dict[str, Any], distance: tuple[float, float] | None) -> None:
        count = np.bincount(segment.pseudo, minlength=len(self.bundle.classes))
        votes = {self.bundle.classes[int(c)]: int(count[c]) for c in np.flatnonzero(count)}
        number = self.learner.segments if self.learner else self._segments
        active = [self.bundle.classes[c] for c in figures.get("active", [])]
        figures = {**figures, "active": active} if figures else {}
        self.events.write(
            "segment",
            number=number,
            frames=self._frames,
            dropped_frames=self.source.dropped,
            dropped_segments=self._dropped_segments,
            votes=votes,
            stream_accuracy=self._right / self._known if self._known else None,
            **figures,
        )
        kept = f"{figures['kept']:.0%}" if figures else None
        matching = f"{distance[0]:.3f} → {distance[1]:.3f}" if distance else None
        self.view.show(
            segment=number,
            active_classes=", ".join(active) or "none" if figures else None,
            kept_share=kept,
            matching_loss=matching,
            dropped=f"{self.source.dropped} frames, {self._dropped_segments} segments" if self.source.live else None,
            accuracy_on_the_stream=f"{self._right / self._known:.1%}" if self._known else None,
        )
        if not self.view.is_terminal and figures:
            self.view.line(
                f"segment {number}: active {', '.join(active) or 'none'}; kept {kept}"
                + (f"; matching loss {matching}" if matching else "")
                + (f"; {figures['dropped']} updates dropped, not finite" if figures["dropped"] else "")
            )

    def _score(self, when: str, check: Callable[[], None] | None = None) -> None:
        if self.scorer is None:
            return
        check = check or self._check
        if self._frozen is None:
            self._frozen = self.scorer.accuracy(self._frozen_theta, check)
        same = self.theta is self._frozen_theta or np.array_equal(self.theta, self._frozen_theta)
        self._deployed = self._frozen if same else self.scorer.accuracy(self.theta, check)
        segment = self.learner.segments if self.learner else self._segments
        self.events.write(
            "score",
            when=when,
            segment=segment,
            deployed=self._deployed,
            frozen=self._frozen,
            images=len(self.scorer),
        )
        self.view.show(test_accuracy=f"deployed {self._deployed:.1%}, never updated {self._frozen:.1%}")
        self.view.line(f"{when}: deployed model {self._deployed:.1%}, never updated {self._frozen:.1%}")

    def _save(self) -> None:
        if self.learner is None:
            return
        begun = time.monotonic()
        snapshot = states.LearnedState.of(self.learner, self.bundle, self.source.name, self._position)
        try:
            written = states.save(self._state_dir, snapshot)
        except StateError as error:
            # Going on without saving is better than losing what was learned with the process.
            self.events.write("save", ok=False, reason=str(error))
            self.view.line(f"warning: {error}")
            return
        self._saved_at = time.monotonic()
        self.events.write("save", ok=True, bytes=written, seconds=self._saved_at - begun, segment=self.learner.segments)

    def _check(self) -> None:
        if self.stop.is_set():
            raise Cancelled

    def _close_when_stopped(self) -> None:
        self.stop.wait()
        self.source.close()

    def _summary(self) -> dict[str, Any]:
        return {
            "frozen": self._frozen,
            "learned": self._deployed,
            "segments": self._segments,
            "retrains": self.learner.retrains - self._retrains_before if self.learner else 0,
            "frames": self._frames,
            "dropped_frames": self.source.dropped,
            "dropped_segments": self._dropped_segments,
            "dropped_updates": self.learner.dropped if self.learner else 0,
            "stream_accuracy": self._right / self._known if self._known else None,
            "first_prediction_seconds": self._first_prediction,
            "peak_memory_mb": peak_memory_mb(),
            "seconds": time.monotonic() - self._started,
            "engine": self.engine.name,
        }


class _Gathered:
    """Frames of the segment in the making, in arrays allocated once."""

    def __init__(self, image_shape: tuple[int, int, int], size: int) -> None:
        self._image_shape, self._size = image_shape, size
        self._start()

    def _start(self) -> None:
        self._n = 0
        self._x = np.empty((self._size, *self._image_shape), np.float32)
        self._pseudo, self._labels = np.empty(self._size, np.int64), np.empty(self._size, np.int64)
        self._confidence = np.empty(self._size, np.float32)

    def add(self, x: Floats, pseudo: int, confidence: float, label: int | None) -> None:
        self._x[self._n], self._pseudo[self._n], self._confidence[self._n] = x, pseudo, confidence
        self._labels[self._n] = -1 if label is None else label
        self._n += 1

    @property
    def full(self) -> bool:
        return self._n == self._size

    def take(self) -> Segment:
        segment = Segment(self._x, self._pseudo, self._confidence, self._labels)
        self._start()
        return segment


class _Worker:
    """The learner thread of a live run: one segment in work, one waiting, no more."""

    def __init__(self, work: Callable[[Segment], None]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._waiting: queue.Queue[Segment | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._loop, name="learner", daemon=True)
        self._thread.start()

    def offer(self, segment: Segment) -> bool:
        """Hand over a segment; False when one is waiting already. Raises what the learner raised, if it died."""
        if self._failure is not None:
            raise self._failure
        try:
            self._waiting.put_nowait(segment)
        except queue.Full:
            return False
        return True

    def drain(self) -> None:
        """Wait until everything handed over is learned."""
        while self._thread.is_alive() and self._waiting.unfinished_tasks:
            time.sleep(0.05)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop after the work in hand, which `Run.stop` cuts short."""
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()

    def _loop(self) -> None:
        while (segment := self._waiting.get()) is not None:
            try:
                self._work(segment)
            except Cancelled:
                return
            except BaseException as error:  # reaches the main thread, which ends the run with it
                self._failure = error
                return
            finally:
                self._waiting.task_done()


def peak_memory_mb() -> float | None:
    """Largest resident memory of this process so far in MB; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
