"""The service manager hears how a run does: systemd's sd_notify protocol, a datagram of lines to $NOTIFY_SOCKET.

What counts as being alive is a frame that was predicted, or a live source that says it is still trying to get one. A
thread that hangs says nothing, and systemd starts the program anew.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping

from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener

STATUS_S = 20.0
"""Seconds between status lines where no watchdog sets the pace."""

STEP_S = 300
"""Longest time that one step of learning (an iteration, an epoch) may take on any board while systemd waits for it."""


class Notifier(Listener):
    """Tells systemd of one run; without NOTIFY_SOCKET, as on a terminal, it hears nothing. Nothing here ever raises."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment)
        self._socket: socket.socket | None = None
        if self._address:
            try:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            except OSError:
                return
            self._socket.setblocking(False)  # a service manager that does not listen must not stop the camera
        watchdog = _watchdog_s(environment)
        self._alive = "WATCHDOG=1\n" if watchdog else ""
        self._period = watchdog / 3 if watchdog else STATUS_S
        self._ready = self._stopping = False
        self._due = 0.0
        self._segments = self._updates = 0
        self._doing, self._predicted = "starting", False
        self._lost: dict[str, bool] = {}  # cameras by name: whether it is one of several
        self._paused: str | None = None

    def hears(self) -> Hears:
        """See `Listener`."""
        if self._socket is None:
            return {}
        return {
            happened.StateFound: self._state_found,
            happened.SourceNotice: self._source_notice,
            happened.FramePredicted: self._frame_predicted,
            happened.SegmentLearned: self._segment_learned,
            happened.ModelRetrained: self._model_retrained,
            happened.ResourcesPaused: self._resources_paused,
            happened.ResourcesResumed: self._resources_resumed,
            happened.Doing: self._now_doing,
            happened.Stepped: lambda _: self._step(),
            happened.RunEnding: self._run_ending,
        }

    def _frame_predicted(self, _: happened.FramePredicted) -> None:
        """After the first one the service is ready."""
        if not self._predicted:
            self._predicted, self._doing = True, "predicting"
        if self._ready:
            self._beat(self._alive)
        elif self._send(f"READY=1\n{self._status()}"):  # one that is lost is sent again with the next frame
            self._ready, self._due = True, time.monotonic() + self._period

    def _step(self) -> None:
        """Long work did a step.

        Before the first frame and after the last one it asks systemd for the time of another. In between it is
        progress only if frames wait for it (a replayed source); beside a live one the learner's thread must not hide
        that predictions hang.
        """
        if not self._ready or self._stopping:
            self._beat(f"EXTEND_TIMEOUT_USEC={STEP_S * 1_000_000}\n")
        elif threading.current_thread() is threading.main_thread():
            self._beat(self._alive)

    def _source_notice(self, event: happened.SourceNotice) -> None:
        """As long as a live source says anything, the run is alive."""
        if event.notice.action in ("lost", "reconnected"):
            self._lost.pop(event.name, None)
            if event.notice.action == "lost":
                self._lost[event.name] = event.stream is not None
        self._step()

    def _run_ending(self, _: happened.RunEnding) -> None:
        """From here on systemd's time to stop counts, and not the watchdog."""
        self._stopping, self._due = True, 0.0
        self._send("STOPPING=1")

    def _state_found(self, event: happened.StateFound) -> None:
        self._segments, self._updates = event.segments, event.retrains

    def _segment_learned(self, event: happened.SegmentLearned) -> None:
        self._segments = event.number

    def _model_retrained(self, event: happened.ModelRetrained) -> None:
        self._updates = event.number

    def _resources_paused(self, event: happened.ResourcesPaused) -> None:
        self._paused = "too hot to learn" if event.reason == "temperature" else "too short of memory to learn"

    def _resources_resumed(self, _: happened.ResourcesResumed) -> None:
        self._paused = None

    def _now_doing(self, event: happened.Doing) -> None:
        self._doing = event.words

    def _status(self) -> str:
        """The one line that `systemctl status` shows."""
        doing = self._paused or self._doing
        if self._lost:  # of several the others may go on
            names = ", ".join(sorted(self._lost))
            doing = f"{doing}, waiting for {names}" if any(self._lost.values()) else "waiting for the camera"
        return f"STATUS={self._segments} segments, {self._updates} updates; {doing}"

    def _beat(self, line: str) -> None:
        now = time.monotonic()
        if now >= self._due and self._send(f"{line}{self._status()}"):
            self._due = now + self._period

    def _send(self, text: str) -> bool:
        """Whether there is somebody to hear it, and the datagram went out."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            return False
        return True


def _address(environment: Mapping[str, str]) -> bytes:
    """Of the socket, b"" for none; "@" stands for the zero byte of an abstract one."""
    name = os.fsencode(environment.get("NOTIFY_SOCKET", ""))
    if name.startswith(b"@"):
        return b"\0" + name[1:]
    return name if name.startswith(b"/") else b""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Seconds after which systemd takes silence for a hang; 0 for no watchdog, or another process's."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1_000_000
