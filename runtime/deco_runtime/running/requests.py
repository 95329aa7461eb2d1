"""What people ask of a run, done by whoever owns what is learned, between two segments.

A page, a socket or a signal lives in a thread of its own. What it wants changed is handed over here as a job, and
waited for.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, TimeoutError
from typing import Any, TypeVar

from deco_runtime.errors import StateError
from deco_runtime.running.learner_thread import Cancelled

WAIT_S = 600.0
"""Seconds that whoever asks waits at most: a segment of the paper's recipe takes minutes on a small board."""

T = TypeVar("T")


class Requests:
    """Jobs that wait for their turn. hand_over: takes each, to have it done in the owner's thread; unless it is set,
    they wait until the owner asks for them by `serve`."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open: set[Future[Any]] = set()
        self._over = False
        self.hand_over: Callable[[Callable[[], None]], None] = self._waiting.put

    def ask(self, job: Callable[[], T], seconds: float = WAIT_S) -> T:
        """What the job returns or raises, once it was its turn. From any thread but the owner's. Raises StateError
        where nobody does it, where it was given up because the run stops, or not in time."""
        future: Future[T] = Future()
        self._open.add(future)
        if self._over:
            self.end()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                found = job()
            except BaseException as error:  # is for who asked
                future.set_exception(error)
            else:
                future.set_result(found)

        if not future.done():
            self.hand_over(work)
        try:
            return future.result(seconds)
        except (CancelledError, Cancelled):
            raise StateError("expected a run that goes on, but found this one ending; start it again") from None
        except TimeoutError:
            if future.done():  # just now, or the job itself raised that
                return future.result()
            what = "learning; try again later" if future.cancel() else "at work on it; look later whether it was done"
            raise StateError(
                f"expected the run to be done with it within {seconds:g} s, but found it still {what}"
            ) from None
        finally:
            self._open.discard(future)

    def serve(self) -> None:
        """Do what waits; by the owner, between two segments."""
        while not self._waiting.empty():
            self._waiting.get()()

    def end(self) -> None:
        """By the owner, when it will do nothing more: who still waits is told so."""
        self._over = True
        for future in list(self._open):
            future.cancel()
