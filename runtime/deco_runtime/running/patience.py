"""Work before the first frame that takes minutes and cannot tell how far it is: lines meanwhile, and systemd waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.happenings import Doing, Said, Stepped

EVERY_S = 30.0
"""Between two lines; systemd is asked for more time as often."""


@contextmanager
def patience(bus: Bus, graphs: Sequence[str]) -> Iterator[None]:
    """While engines for these graphs are built inside; nothing at all for none."""
    if not graphs:
        yield
        return
    what, started, done = f"builds TensorRT engines for {', '.join(graphs)}", time.monotonic(), threading.Event()
    bus.emit(Doing(what))
    bus.emit(Said(f"{what}; that takes minutes, and is kept for the next start"))
    bus.emit(Stepped())

    def tell() -> None:
        while not done.wait(EVERY_S):
            bus.emit(Said(f"{what}, for {time.monotonic() - started:.0f} s now"))
            bus.emit(Stepped())

    teller = threading.Thread(target=tell, name="patience", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        bus.emit(Doing("starting"))
    bus.emit(Said(f"that took {time.monotonic() - started:.0f} s"))
