"""The page as a listener of a run: starts its server, and hands it what happens."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.page import access as rules
from deco_runtime.page import pictures
from deco_runtime.page.access import Access
from deco_runtime.page.board import Board
from deco_runtime.running.control import Control
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Bus, Hears, Listener

if TYPE_CHECKING:
    import uvicorn

NEEDED = ("starlette", "uvicorn", "prometheus_client")
END_S = 2.0
"""Seconds that the end of a run waits for the server."""


def open_access(where: str, directory: Path, tls: tuple[Path, Path] | None) -> tuple[Access, socket.socket]:
    """Who may see the page at HOST:PORT, and its socket, which listens. directory: of the state, for the token. tls:
    certificate and key.

    Raises RuntimeMissingError without the packages, UsageError for an address or files that cannot be used."""
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        raise RuntimeMissingError(
            f"expected the packages of the page, but found no {missing[0]}; run pip install 'deco-edge[page]'"
        )
    host, port = rules.parse(where)
    certificate, key = tls or (None, None)
    if certificate is not None and key is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, lambda: "")
        except (OSError, ssl.SSLError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            raise UsageError(
                f"expected a certificate and its key in {certificate} and {key}, but: {said}; check the files"
            ) from error
    token = rules.token_for(host, directory)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=64)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"expected --page to open {host}:{port}, but the system says: {said}; change it") from error
    return Access(host, listening.getsockname()[1], token, certificate, key), listening


class Page(Listener):
    """Serves the page from a thread of its own until the run is over."""

    def __init__(
        self, control: Control, access: Access, listening: socket.socket, title: str, engine: str, bus: Bus
    ) -> None:
        import uvicorn

        from deco_runtime.page._app import app
        from deco_runtime.page._connection import WAITING, Connection
        from deco_runtime.page._metrics import Metrics

        self._frames, board, metrics = pictures.Frames(), Board(control, title), Metrics(control, engine)
        control.recent.picture = pictures.small
        bus.add(board)
        bus.add(metrics)
        self._server: uvicorn.Server = uvicorn.Server(
            uvicorn.Config(
                app(control, board, metrics, self._frames, access),
                loop="asyncio", http=Connection, ws="none", lifespan="off", interface="asgi3",
                log_config=None, access_log=False, server_header=False, date_header=False,
                timeout_keep_alive=5, timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16 << 10,
                ssl_certfile=access.certificate, ssl_keyfile=access.key,
            )
        )  # fmt: skip
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAITING)  # its connections have it from it
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name="page", daemon=True)
        self._thread.start()
        shown = replace(access, host="127.0.0.1" if access.host in ("0.0.0.0", "::") else access.host)
        bus.emit(happened.Page(shown.address))

    def hears(self) -> Hears:
        """See `Listener`."""
        return {happened.FramePredicted: self._frames.put}

    def close(self) -> None:
        """See `Listener`."""
        self._server.should_exit = True
        self._thread.join(END_S)
