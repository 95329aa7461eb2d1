"""Learning gives way to predictions: its threads run where those leave the processor idle."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICE = 5
"""A thread of this gets a third of what one of 0 gets where both want a core, and is interrupted when that wakes up."""


def give_way() -> None:
    """Have this thread, and those that it starts from now on, give way to the others. Linux alone has this by thread;
    elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        if os.uname().sysname == "Linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def giving_way(make: Callable[[], T]) -> T:
    """What `make` gives, made in a thread that gives way: so do the threads that it leaves behind, as those of a graph
    that is opened."""
    with ThreadPoolExecutor(1, initializer=give_way) as thread:
        return thread.submit(make).result()
