"""The service manager hears how a run does: systemd's sd_notify protocol, a datagram of lines to $NOTIFY_SOCKET.

What counts as being alive is a frame that was predicted, or a live source that says it is still trying to get one. A
thread that hangs says nothing, and systemd starts the program anew.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

STATUS_S = 20.0
"""Seconds between status lines where no watchdog sets the pace."""

STEP_S = 300
"""Longest time that one step of learning (an iteration, an epoch) may take on any board while systemd waits for it."""


class Notifier:
    """Tells systemd of one run; without NOTIFY_SOCKET, as on a terminal, it does nothing. Nothing here ever raises.

    status: makes the one line that `systemctl status` shows; called only when it is sent.
    """

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

    def predicted(self, status: Callable[[], str]) -> None:
        """A frame was predicted; after the first one the service is ready."""
        if self._ready:
            self._beat(self._alive, status)
        elif self._send("READY=1\n", status):  # one that is lost is sent again with the next frame
            self._ready, self._due = True, time.monotonic() + self._period

    def step(self, status: Callable[[], str]) -> None:
        """Long work did a step.

        Before the first frame and after the last one it asks systemd for the time of another. In between it is
        progress only if frames wait for it (a replayed source); beside a live one the learner's thread must not hide
        that predictions hang.
        """
        if not self._ready or self._stopping:
            self._beat(f"EXTEND_TIMEOUT_USEC={STEP_S * 1_000_000}\n", status)
        elif threading.current_thread() is threading.main_thread():
            self._beat(self._alive, status)

    def stopping(self) -> None:
        """No further frame will be predicted; from here on systemd's time to stop counts, and not the watchdog."""
        if not self._stopping:
            self._stopping, self._due = True, 0.0
            self._send("STOPPING=1")

    def _beat(self, line: str, status: Callable[[], str]) -> None:
        now = time.monotonic()
        if now >= self._due and self._send(line, status):
            self._due = now + self._period

    def _send(self, line: str, status: Callable[[], str] | None = None) -> bool:
        """Whether there is somebody to hear it, and the datagram went out."""
        if self._socket is None:
            return False
        text = f"{line}STATUS={status()}" if status else line
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
