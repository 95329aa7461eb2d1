"""The listener of `--output`: what of a run's answers goes out, and by which ways."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, get_args

from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.telemetry.outlet import END_S
from deco_runtime.telemetry.output import open_way
from deco_runtime.telemetry.output.debounce import Debouncer
from deco_runtime.telemetry.output.message import Kind, Message
from deco_runtime.telemetry.output.sender import Sender
from deco_runtime.types import Frame

On = Literal["change", "frame"]
ONS: tuple[On, ...] = get_args(On)
_GOODBYE_S = 0.5  # for closing, after a run that has waited for what was on its way


class Outputs(Listener):
    """Sends every answer, or every change of it, by each way that was asked for; without any it hears nothing."""

    def __init__(self, addresses: Sequence[str], on: On = "change", after: float = 1.0) -> None:
        """after: seconds that a class has to be there to be told. Raises UsageError and RuntimeMissingError."""
        self._senders = [Sender(open_way(address)) for address in addresses]
        self._on, self._after = on, after
        self._debouncers: dict[int, Debouncer] = {}
        self._live = True
        self._settled = False

    def hears(self) -> Hears:
        """See `Listener`."""
        if not self._senders:
            return {}
        return {
            happened.SourceOpened: self._source_opened,
            happened.SourceNotice: self._source_notice,
            happened.FramePredicted: self._frame_predicted,
        }

    def lost(self) -> dict[str, int]:
        """Messages that were not sent; what is on its way is waited for."""
        self._settle()
        return {"lost_outputs": sum(sender.lost for sender in self._senders)}

    def close(self) -> None:
        """See `Listener`."""
        if not self._settled:  # by the summary, unless the run failed
            self._settle()
        for sender in self._senders:
            sender.end()
        until = time.monotonic() + _GOODBYE_S
        for sender in self._senders:
            sender.join(until)

    def _settle(self) -> None:
        self._settled, until = True, time.monotonic() + END_S
        for sender in self._senders:
            sender.settle(until)

    def _source_opened(self, event: happened.SourceOpened) -> None:
        self._live = event.live
        for sender in self._senders:
            sender.start()

    def _source_notice(self, event: happened.SourceNotice) -> None:
        if event.notice.action not in ("lost", "reconnected"):
            return
        stream = event.notice.stream
        if stream in self._debouncers:
            self._debouncers[stream].interrupt()
        self._tell("lost" if event.notice.action == "lost" else "back", stream, datetime.now(timezone.utc), {})

    def _frame_predicted(self, event: happened.FramePredicted) -> None:
        frame, label, stream = event.frame, event.label, event.frame.stream
        sure = round(event.confidence, 4) if math.isfinite(event.confidence) else None
        figures: dict[str, Any] = {"class": label, "unknown": label is None, "confidence": sure}
        if not self._live:
            figures["at"] = round(frame.time, 3)
        if self._on == "frame":
            self._tell("frame", stream, self._clock(frame), figures)
            return
        change = self._debouncers.setdefault(stream, Debouncer(self._after)).see(label, frame.time)
        if change is not None:
            lasted = change.previous_seconds
            figures["previous_class"] = change.previous
            figures["previous_seconds"] = None if lasted is None else round(lasted, 3)
            self._tell("change", stream, self._clock(frame), figures)

    def _clock(self, frame: Frame) -> datetime:
        """When a live picture was taken; of a recording nobody knows, and now is when it was answered."""
        age = time.monotonic() - frame.time if self._live else 0.0
        return datetime.now(timezone.utc) - timedelta(seconds=age)

    def _tell(self, kind: Kind, stream: int, when: datetime, figures: dict[str, Any]) -> None:
        message = Message(kind, stream, when, figures)
        for sender in self._senders:
            sender.give(message)
