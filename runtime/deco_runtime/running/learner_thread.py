"""The learner thread of a live run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from deco_runtime.types import Segment


class Cancelled(Exception):  # noqa: N818  (not an error: the run was asked to stop)
    """The work in hand was given up because the run is stopping; nothing of it was kept."""


class Worker:
    """Learns segments in a thread of its own: one in work, one of each stream waiting, no more.

    Drop policy: a segment offered while one of its stream is waiting is refused, and the caller counts it. The camera
    never waits for the learner, and memory does not grow. Where only one of several streams could wait, those whose
    segments are complete at the same time as another's would never be learned from.
    """

    def __init__(self, work: Callable[[Segment], None], streams: int = 1) -> None:
        self._work, self._several = work, streams > 1
        self._streams: set[int] = set()  # of which a segment waits
        self._failure: BaseException | None = None
        self._waiting: queue.Queue[Segment | None] = queue.Queue(maxsize=streams)
        self._thread = threading.Thread(target=self._loop, name="learner", daemon=True)
        self._thread.start()

    def offer(self, segment: Segment) -> bool:
        """Hand over a segment; False when one of its stream is waiting already. Raises what the learner raised, if it
        died."""
        if self._failure is not None:
            raise self._failure
        if self._several and segment.stream in self._streams:
            return False
        self._streams.add(segment.stream)
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
            self._streams.discard(segment.stream)
            try:
                self._work(segment)
            except Cancelled:
                return
            except BaseException as error:  # reaches the main thread, which ends the run with it
                self._failure = error
                return
            finally:
                self._waiting.task_done()
