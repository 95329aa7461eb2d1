"""The live view of a run on a terminal: figures in rows, and what happened in lines."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.telemetry.console import stderr
from deco_runtime.telemetry.outlet import Outlet
from deco_runtime.telemetry.redact import redact


class View(Listener):
    """A small table on stderr, redrawn a few times a second; on anything but a terminal, a line per segment.

    Nothing here waits for whoever reads it or raises, and nothing shows what is secret in an address.
    """

    def __init__(self, title: str) -> None:
        self._out = stderr()
        self._console = Console(file=self._out)
        self._rows: dict[str, str] = {}
        self._title = title
        self._times: deque[float] = deque(maxlen=200)
        self._live = Live(self._table(), console=self._console, refresh_per_second=4, get_renderable=self._table)

    def hears(self) -> Hears:
        """See `Listener`."""
        return {
            happened.Said: self._said,
            happened.Doing: lambda event: self._show(doing=event.words),
            happened.StateFound: self._state_found,
            happened.StateJudged: self._state_judged,
            happened.PlaceFound: lambda event: self._line(f"goes on with {event.name} at frame {event.frames}"),
            happened.SourceOpened: self._source_opened,
            happened.SourceBegunAnew: self._source_begun_anew,
            happened.SourceNotice: self._source_notice,
            happened.FramesLeftOver: self._frames_left_over,
            happened.SourceEnded: self._source_ended,
            happened.FramePredicted: self._frame_predicted,
            happened.SegmentLearned: self._segment_learned,
            happened.ModelRetrained: self._model_retrained,
            happened.UpdateJudged: self._update_judged,
            happened.PauseOver: lambda _: self._line("the pause is over: learning goes on"),
            happened.ModelScored: self._model_scored,
            happened.Page: lambda event: self._console.print(f"page: {event.address}", soft_wrap=True, markup=False),
            happened.ClassTaught: lambda event: self._line(event.words),
            happened.TeachingUndone: lambda _: self._line("the last teaching was taken back"),
            happened.FleetMerged: lambda event: self._line(event.words),
            happened.LearningHeld: self._learning_held,
            happened.WentBack: lambda event: self._line(f"went back to {event.to}: {event.segments} segments"),
            happened.SaveRefused: self._save_refused,
            happened.SavePossible: self._save_possible,
            happened.ResourcesPaused: self._resources_paused,
            happened.ResourcesResumed: self._resources_resumed,
        }

    def lost(self) -> dict[str, int]:
        """Lines that could not be written so far; see `Listener`."""
        return {"lost_lines": self._out.lost if isinstance(self._out, Outlet) else 0}

    def close(self) -> None:
        """The table stays as it is, and nothing redraws it any more."""
        self._live.stop()

    def _show(self, **rows: Any) -> None:
        """Set rows of the table; the names are shown with spaces for underscores."""
        self._rows |= {name.replace("_", " "): redact(str(value)) for name, value in rows.items() if value is not None}

    def _line(self, text: str) -> None:
        """Something to be read later too: above the table, or plainly when there is no terminal."""
        self._console.print(redact(text), highlight=False, soft_wrap=True, markup=False)

    def _said(self, event: happened.Said) -> None:
        self._line(f"{event.kind}: {event.words}" if event.kind else event.words)

    def _state_found(self, event: happened.StateFound) -> None:
        if event.passed_over:
            self._line(f"warning: {event.passed_over}")
        if event.found:
            self._line(f"goes on from {event.directory}: {event.segments} segments, {event.retrains} updates")

    def _state_judged(self, event: happened.StateJudged) -> None:
        if (reason := event.verdict.reason) is not None:
            self._line(f"the model learned without a guard {reason}: goes back to what the bundle starts with")

    def _source_opened(self, _: happened.SourceOpened) -> None:
        if self._console.is_terminal:
            self._live.start()

    def _source_begun_anew(self, event: happened.SourceBegunAnew) -> None:
        self._line(
            f"warning: expected {event.name} as the last run left it at frame {event.frames}, but {event.reason}; "
            "starts anew with its first frame"
        )

    def _source_notice(self, event: happened.SourceNotice) -> None:
        notice = event.notice
        if notice.action in ("lost", "reconnected"):
            row = redact(event.stream or "camera")
            self._rows[row] = "lost, waiting for it" if notice.action == "lost" else "back"
        if notice.words:
            self._line(notice.words)

    def _frames_left_over(self, event: happened.FramesLeftOver) -> None:
        why = f"{event.recipe} learns from segments of {event.segment}"
        if event.least < event.segment:
            why += f" and at the end from {event.least} frames or more"
        self._line(
            f"note: the last {event.frames} frame{'s were' if event.frames > 1 else ' was'} not learned from, because "
            f"{why}; --set segment=N makes them smaller"
        )

    def _source_ended(self, event: happened.SourceEnded) -> None:
        if event.note:
            self._line(f"note: {event.note}")

    def _frame_predicted(self, event: happened.FramePredicted) -> None:
        self._times.append(time.monotonic())
        seeing = "unknown" if event.label is None else event.label
        row = "seeing" if event.stream is None else redact(f"seeing, {event.stream}")
        self._rows[row] = f"{seeing} ({event.confidence:.0%})"
        if len(self._times) > 1:
            self._rows["frames/s"] = f"{(len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9):.1f}"

    def _segment_learned(self, event: happened.SegmentLearned) -> None:
        report, accuracy, active = event.report, event.stream_accuracy, ", ".join(event.active) or "none"
        own = report.words if report else {}
        self._show(
            segment=event.number,
            active_classes=active if report else None,
            kept_share=f"{report.kept:.0%}" if report else None,
            **{name.replace(" ", "_"): words for name, words in own.items()},
            dropped=f"{event.dropped_frames} frames, {event.dropped_segments} segments" if event.live else None,
            accuracy_on_the_stream=None if accuracy is None else f"{accuracy:.1%}",
        )
        if not self._console.is_terminal and report:
            of = f" of {event.stream}" if event.stream is not None else ""
            self._line(
                f"segment {event.number}{of}: active {active}; kept {report.kept:.0%}"
                + "".join(f"; {name} {words}" for name, words in own.items())
                + (f"; {report.dropped} updates dropped, not finite" if report.dropped else "")
            )

    def _model_retrained(self, event: happened.ModelRetrained) -> None:
        if event.report.verdict is None and not event.report.accepted:
            self._line("an update of the model was dropped because it was not finite")

    def _update_judged(self, event: happened.UpdateJudged) -> None:
        verdict = event.verdict
        self._show(guard=f"{verdict.reason or 'accepted'} (update {event.number})")
        if verdict.accepted and event.solved:
            return  # one after each segment: no news
        if verdict.accepted:
            measured, scores = "the bundle has no guard images", verdict.scores
            if "images" in scores:
                measured = f"{scores['lost']} of {scores['images']} guard images lost, {scores['gained']} gained"
            self._line(f"update {event.number} accepted: {measured}")
            return
        self._line(f"update {event.number} rejected, it {verdict.reason}: goes back to what was accepted before it")
        if event.pause:
            self._line(
                f"learning pauses for {event.pause} segments after {event.rejections} rejections in a row; "
                "prediction goes on"
            )

    def _model_scored(self, event: happened.ModelScored) -> None:
        deployed, frozen = f"{event.deployed:.1%}", f"{event.frozen:.1%}"
        self._show(test_accuracy=f"deployed {deployed}, never updated {frozen}")
        self._line(f"{event.when}: deployed model {deployed}, never updated {frozen}")

    def _learning_held(self, event: happened.LearningHeld) -> None:
        self._show(learning="paused by a person" if event.held else "resumed by a person")
        self._line("learning waits, as a person asked" if event.held else "learning goes on, as a person asked")

    def _save_refused(self, event: happened.SaveRefused) -> None:
        if not event.again:
            self._line(f"warning: {event.reason}")

    def _save_possible(self, event: happened.SavePossible) -> None:
        self._line(f"note: learned state can be saved again; {event.directory} has all that was learned")

    def _resources_paused(self, event: happened.ResourcesPaused) -> None:
        self._show(learning=f"paused: {event.reason}")
        self._line(f"learning pauses: {event.words}")

    def _resources_resumed(self, event: happened.ResourcesResumed) -> None:
        self._show(learning=f"resumed: {event.reason}")
        enough = "cool enough" if event.reason == "temperature" else "memory enough"
        self._line(f"{enough}: learning goes on")

    def _table(self) -> Table:
        table = Table(title=self._title, show_header=False, title_justify="left")
        for name, value in list(self._rows.items()):  # another thread may be adding rows
            table.add_row(name, value)
        return table
