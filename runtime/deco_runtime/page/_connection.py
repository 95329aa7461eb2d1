"""A viewer's connection: one that does not take what it is sent is given up, and what waits for it is forgotten."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SLOW_S = 10.0
"""Seconds that a viewer may take for a piece of what it is sent, before it is dropped."""
WAITING = 256 << 10
"""Bytes that the kernel is asked to keep for a viewer, at most: of its own accord it keeps megabytes for one that does
not read, which are minutes of a small picture."""


class Connection(H11Protocol):
    """Aborts where uvicorn closes, since closing waits for the viewer to take the rest."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `H11Protocol`."""
        transport.set_write_buffer_limits(0)  # writing pauses as soon as the kernel takes no more
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """See `H11Protocol`."""
        super().pause_writing()
        self._late = self.loop.call_later(SLOW_S, self.transport.abort)

    def resume_writing(self) -> None:
        """See `H11Protocol`."""
        super().resume_writing()
        self._in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `H11Protocol`."""
        super().connection_lost(exc)
        self._in_time()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
