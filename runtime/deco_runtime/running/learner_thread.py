"""The learner thread of a live run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from deco_runtime.host.priority import give_way
from deco_runtime.types import Segment


class Cancelled(Exception):  # noqa: N818  (not an error: the run was asked to stop)
    """The work in hand was given up because the run is stopping; nothing of it was kept."""


class Worker:
    """Learns segments in a thread of its own: one in work, one of each stream waiting, no more; and between two does
    what people asked for.

    Drop policy: a segment offered while one of its stream is waiting is refused, and the caller counts it. The camera
    never waits for the learner, and memory does not grow. Where only one of several streams could wait, those whose
    segments are complete at the same time as another's would never be learned from.
    """

    def __init__(self, work: Callable[[Segment], None]) -> None:
        self._work = work
        self._streams: set[int] = set()  # of which a segment waits
        self._failure: BaseException | None = None
        self._waiting: queue.Queue[Segment | Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._loop, name="learner", daemon=True)
        self._thread.start()

    def offer(self, segment: Segment) -> bool:
        """Hand over a segment; False when one of its stream is waiting already. Raises what the learner raised, if it
        died."""
        if self._failure is not None:
            raise self._failure
        if segment.stream in self._streams:
            return False
        self._streams.add(segment.stream)
        self._waiting.put(segment)
        return True

    def do(self, job: Callable[[], None]) -> None:
        """Have a job done behind what is waiting; it must not raise."""
        self._waiting.put(job)

    def drain(self) -> None:
        """Wait until everything handed over is learned."""
        while self._thread.is_alive() and self._waiting.unfinished_tasks:
            time.sleep(0.05)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop after the work in hand, which `Run.stop` cuts short."""
        self._waiting.put(None)
        self._thread.join()

    def _loop(self) -> None:
        give_way()
        while (given := self._waiting.get()) is not None:
            try:
                if isinstance(given, Segment):
                    self._streams.discard(given.stream)
                    self._work(given)
                else:
                    given()
            except Cancelled:
                return
            except BaseException as error:  # reaches the main thread, which ends the run with it
                self._failure = error
                return
            finally:
                self._waiting.task_done()
