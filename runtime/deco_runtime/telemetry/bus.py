"""One way for what happens in a run to reach whoever wants to hear of it.

The run emits a record of `happenings`, and knows nobody who hears it. A listener is one file here, or anywhere: it says
which kinds it hears, and `running/assemble.py` puts it on the bus.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from deco_runtime.telemetry.console import say

Hears = Mapping[type[Any], Callable[[Any], None]]
"""What is called with each record of a kind; a kind is the record's own class."""


class Listener:
    """Hears some kinds of what happens.

    It is called where and when it happens: in the main thread or in the learner's, in both at a time perhaps, while a
    camera waits to be predicted. So what it cannot do at once it has to leave to an `Outlet` or a thread of its own.
    """

    def hears(self) -> Hears:
        """The kinds, asked once; {} where there is nobody to tell, so that nothing is called for it."""
        raise NotImplementedError

    def lost(self) -> dict[str, int]:
        """How much it could not tell so far, by a name for the run's summary. May wait a moment for what is on its
        way."""
        return {}

    def close(self) -> None:
        """The run is over: give back what is open."""


class Bus:
    """Hands each thing that happens to its listeners, in the order in which they were added, before `emit` returns.

    A listener that raises is told of once, on standard error, and called again with what happens next: it ends neither
    the run nor what the others hear. As a context it closes the listeners at its end.
    """

    def __init__(self, *listeners: Listener) -> None:
        self._listeners: list[Listener] = []
        self._hearing: dict[type[Any], tuple[tuple[Listener, Callable[[Any], None]], ...]] = {}
        self._failed: set[int] = set()
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        """From now on it hears its kinds."""
        self._listeners.append(listener)
        for kind, hear in listener.hears().items():
            self._hearing[kind] = (*self._hearing.get(kind, ()), (listener, hear))

    def emit(self, event: object) -> None:
        """This happened. From any thread; never raises."""
        for listener, hear in self._hearing.get(type(event), ()):
            try:
                hear(event)
            except Exception as error:
                self._complain(listener, type(event).__name__, error)

    def lost(self) -> dict[str, int]:
        """What all listeners could not tell so far, by name."""
        lost: dict[str, int] = {}
        for listener in self._listeners:
            try:
                lost |= listener.lost()
            except Exception as error:
                self._complain(listener, "lost", error)
        return dict(sorted(lost.items()))

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            try:
                listener.close()
            except Exception as error:
                self._complain(listener, "close", error)

    def _complain(self, listener: Listener, when: str, error: Exception) -> None:
        if id(listener) in self._failed:
            return
        self._failed.add(id(listener))
        # Python's own words for it: those of the error itself might raise again.
        words = traceback.format_exception_only(type(error), error)[-1].strip()
        say(f"warning: expected {type(listener).__name__} to take {when}, but it failed with {words}; the run goes on")
