"""A thread and a bounded queue for a way out: it may wait and fail as long as it likes, and nobody else notices."""

from __future__ import annotations

import threading
import time
from collections import deque

from deco_runtime.errors import first_line
from deco_runtime.telemetry.console import say
from deco_runtime.telemetry.output import NotSentError, Way
from deco_runtime.telemetry.output.message import Message

MOST = 1000
"""Messages that wait; beyond, the oldest is dropped: the newest is what counts to those who want to know what is."""
LONGEST_S = 60.0
"""Between two tries of a way out that fails."""
TEND_S = 5.0
"""After so long without a message a way out looks after its connection."""
_HURRY_S = 0.2  # between two tries at the end of a run


class Sender:
    """Sends what it is given by one way out, in order.

    A message that fails is tried again, after `first_s` seconds, twice as long and so on up to LONGEST_S, until it is
    sent, refused, or too many newer ones wait. Standard error hears once that a way out fails, and once that it works
    again.
    """

    def __init__(self, way: Way, first_s: float = 1.0, most: int = MOST) -> None:
        self._way, self._first_s, self._most = way, first_s, most
        self._waiting: deque[Message] = deque()
        self._in_hand = False
        self._dropped = 0
        self._ended = self._hurry = False
        self._failing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connect, where the way out needs that; may be called again."""
        with self._changed:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._work, name=f"output {self._way.name}", daemon=True)
                self._thread.start()

    def give(self, message: Message) -> None:
        """Have it sent; never waits."""
        self.start()
        with self._changed:
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(message)
            self._changed.notify_all()

    @property
    def lost(self) -> int:
        """Messages that were dropped or refused so far, or still wait."""
        with self._changed:
            return self._dropped + len(self._waiting) + self._in_hand

    def settle(self, until: float) -> None:
        """Wait, at most until this monotonic time, for what is on its way."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._waiting or self._in_hand), until - time.monotonic())
            self._hurry = False

    def end(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def join(self, until: float) -> None:
        """Wait for the way out to be closed, at most until this monotonic time; then it is left to itself."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        message, pause = None, self._first_s  # the first thing is to connect
        while not self._ended:
            idle_s = TEND_S
            try:
                works = self._carry(message)
            except NotSentError as error:
                self._failed(message, error)
                self._rest(pause)
                pause, idle_s = min(2 * pause, LONGEST_S), 0.0
            else:
                if works:
                    self._works()
                    pause = self._first_s
            message = self._next(idle_s)
        try:
            self._way.close()
        except Exception:  # nobody can mend it now; the other side has its last will or a time-out
            return

    def _carry(self, message: Message | None) -> bool:
        """Send it, or without one look after the connection; whether it is known to work. Raises NotSentError."""
        try:
            if message is None:
                return self._way.tend()
            self._way.send(message)
        except NotSentError:
            raise
        except Exception as error:  # of a way out with a defect: the same message would raise it for ever
            raise NotSentError(first_line(error), again=False) from error
        return True

    def _next(self, idle_s: float) -> Message | None:
        """The next message; None where none comes in so many seconds, to look after the connection instead."""
        with self._changed:
            self._in_hand = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._ended, idle_s)
            if self._ended or not self._waiting:
                return None
            self._in_hand = True
            return self._waiting.popleft()

    def _rest(self, seconds: float) -> None:
        with self._changed:
            begun = time.monotonic()
            self._changed.wait_for(lambda: self._ended or self._hurry, seconds)
            if self._hurry:
                self._changed.wait_for(lambda: self._ended, max(0.0, begun + _HURRY_S - time.monotonic()))

    def _failed(self, message: Message | None, error: NotSentError) -> None:
        with self._changed:
            if message is not None:
                self._in_hand = False
                if error.again and len(self._waiting) < self._most:
                    self._waiting.appendleft(message)
                else:
                    self._dropped += 1
                self._changed.notify_all()
        if not self._failing:
            self._failing = True
            say(
                f"warning: expected to send to {self._way.name}, but {error.words}; goes on, and tries again until it "
                "works"
            )

    def _works(self) -> None:
        if self._failing:
            self._failing = False
            say(f"note: sending to {self._way.name} works again")
