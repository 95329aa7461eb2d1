"""The live view of a run on a terminal."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deco_runtime.telemetry.console import stderr
from deco_runtime.telemetry.outlet import Outlet
from deco_runtime.telemetry.redact import redact


class View:
    """A small table on stderr, redrawn a few times a second; on anything but a terminal, a line per segment.

    Nothing here waits for whoever reads it or raises, and nothing shows what is secret in an address.
    """

    def __init__(self, title: str) -> None:
        self._out = stderr()
        self._console = Console(file=self._out)
        self._rows: dict[str, str] = {}
        self._title = title
        self._times: deque[float] = deque(maxlen=200)
        self._live = Live(self._table(), console=self._console, refresh_per_second=4, get_renderable=self._table)

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def frame(self, label: str, confidence: float) -> None:
        """One frame was predicted."""
        self._times.append(time.monotonic())
        self._rows["seeing"] = f"{label} ({confidence:.0%})"
        if len(self._times) > 1:
            self._rows["frames/s"] = f"{(len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9):.1f}"

    def show(self, **rows: Any) -> None:
        """Set rows of the table; the names are shown with spaces for underscores."""
        self._rows |= {name.replace("_", " "): redact(str(value)) for name, value in rows.items() if value is not None}

    def line(self, text: str) -> None:
        """Something to be read later too: above the table, or plainly when there is no terminal."""
        self._console.print(redact(text), highlight=False, soft_wrap=True, markup=False)

    @property
    def lost(self) -> int:
        """Lines that could not be written so far."""
        return self._out.lost if isinstance(self._out, Outlet) else 0

    @property
    def is_terminal(self) -> bool:
        """Whether the table is shown."""
        return self._console.is_terminal

    def _table(self) -> Table:
        table = Table(title=self._title, show_header=False, title_justify="left")
        for name, value in list(self._rows.items()):  # another thread may be adding rows
            table.add_row(name, value)
        return table
