"""Metrics of a run in the format of Prometheus. Names and units stay; docs/guide/page.md lists them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from deco_runtime.host import machine
from deco_runtime.running.control import Control
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener

AGES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
NO_CLASS = "(unknown)"
"""Label of frames that show none of the classes."""


class Metrics(Listener):
    """Counts what happens in a registry of its own."""

    def __init__(self, control: Control, engine: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(_Now(control))

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"deco_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"deco_{name}", about, labels, registry=registry)

        run = gauge("run_info", "What runs, as labels; always 1.", "bundle", "recipe", "engine")
        run.labels(control.bundle.hash[:12], control.recipe, engine).set(1)
        self._answers = counter("answers_total", "Frames predicted, by what they were answered as.", "class")
        self._age = Histogram("deco_frame_age_seconds", "From grabbing a frame to having predicted it.",
                              buckets=AGES, registry=registry)  # fmt: skip
        self._last = gauge("last_frame_timestamp_seconds", "When a frame was last predicted, Unix time.")
        self._dropped = gauge("frames_dropped", "Frames of this run that were not waited for.")
        self._segments = counter("segments_total", "Segments gathered.")
        self._lost = gauge("segments_dropped", "Segments of this run that were dropped because the learner was busy.")
        self._given_up = counter("segments_given_up_total", "Segments not learned for want of memory.")
        self._learn = Histogram("deco_segment_learning_seconds", "Learning one segment.",
                                buckets=SECONDS, registry=registry)  # fmt: skip
        self._updates = counter("updates_total", "Updates of the model, by what became of them.", "result")
        self._update = Histogram("deco_update_seconds", "Making one update of the model.",
                                 buckets=SECONDS, registry=registry)  # fmt: skip
        self._stream = gauge("stream_accuracy_ratio", "Share of the labelled frames of this run predicted right.")
        self._test = gauge("test_accuracy_ratio", "Share of the test images answered right.", "model")
        self._judged = counter("judged_frames_total", "Frames of which people said whether they were right.", "result")
        self._taught = counter("taught_frames_total", "Frames that people said the class of.", "class", "result")
        self._saves = counter("state_saves_total", "Saves of what was learned.", "result")
        self._written = counter("state_written_bytes_total", "Bytes of state given to the disk.")
        self._up = gauge("source_up", "Whether the source delivers: 1, or 0 while it is lost.")
        self._losses = counter("source_losses_total", "Times that the source was lost.")
        self._pauses = counter("learning_pauses_total", "Times that learning waited.", "reason")

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)

    def hears(self) -> Hears:
        """See `Listener`."""
        return {
            happened.FramePredicted: self._frame,
            happened.SourceOpened: lambda _: self._up.set(1),
            happened.SourceNotice: self._notice,
            happened.SourceEnded: lambda _: self._up.set(0),
            happened.SegmentLearned: self._segment,
            happened.SegmentGivenUp: lambda _: self._given_up.inc(),
            happened.ModelRetrained: self._retrained,
            happened.ModelScored: self._scored,
            happened.AnswersJudged: lambda e: self._judged.labels("right" if e.right else "wrong").inc(e.frames),
            happened.ClassTaught: lambda e: self._taught.labels(e.name, "refused" if e.refused else "learned").inc(
                e.frames
            ),
            happened.StateSaved: self._saved,
            happened.SaveRefused: lambda _: self._saves.labels("refused").inc(),
            happened.ResourcesPaused: lambda e: self._pauses.labels(e.reason).inc(),
        }

    def _frame(self, event: happened.FramePredicted) -> None:
        self._answers.labels(NO_CLASS if event.label is None else event.label).inc()
        self._age.observe(max(0.0, time.monotonic() - event.frame.time))
        self._last.set(time.time())

    def _notice(self, event: happened.SourceNotice) -> None:
        if event.notice.action == "lost":
            self._losses.inc()
        if event.notice.action in ("lost", "reconnected"):
            self._up.set(event.notice.action == "reconnected")

    def _segment(self, event: happened.SegmentLearned) -> None:
        self._segments.inc()
        self._dropped.set(event.dropped_frames)
        self._lost.set(event.dropped_segments)
        if event.stream_accuracy is not None:
            self._stream.set(event.stream_accuracy)
        if event.report is not None:
            self._learn.observe(event.report.seconds)

    def _retrained(self, event: happened.ModelRetrained) -> None:
        self._updates.labels("accepted" if event.report.accepted else "rejected").inc()
        self._update.observe(event.report.seconds)

    def _scored(self, event: happened.ModelScored) -> None:
        self._test.labels("deployed").set(event.deployed)
        self._test.labels("never_updated").set(event.frozen)

    def _saved(self, event: happened.StateSaved) -> None:
        self._saves.labels("saved").inc()
        self._written.inc(event.bytes)


class _Now(Collector):
    """What is looked at when Prometheus asks."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("deco_learning_held", "Whether a person has learning wait.")
        held.add_metric([], self._control.held)
        yield held
        heat = GaugeMetricFamily("deco_temperature_celsius", "Of the machine's sensors.", labels=["sensor"])
        for sensor, value in machine.temperatures().items():
            heat.add_metric([sensor], value)
        yield heat
        figures = {"frames": "Frames that are known of a class, labelled and taught ones too.",
                   "share": "Share of an answer of this class that comes of what was learned.",
                   "held_out": "Share of the guard images of a class that are answered right."}  # fmt: skip
        told = self._control.known()
        for key, about in figures.items():
            unit = "" if key == "frames" else "_ratio"
            family = GaugeMetricFamily(f"deco_class_{key}{unit}", about, labels=["class"])
            for each in told:
                if key in each:
                    family.add_metric([each["class"]], each[key])
            yield family
