"""A real web server for webhooks on loopback, with the ways in which such servers fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook:
    """port: where it listens. got: (path, headers, JSON) of each request that it took. answers: the statuses of the
    next requests, 200 for all others. hang: set, and it accepts requests and says nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[int] = []
        self.hang = threading.Event()
        self.over = threading.Event()
        self.asked = 0

    def wait(self, count: int, seconds: float = 30) -> list[Any]:
        """The JSON objects, once there are so many."""
        until = time.monotonic() + seconds
        while len(self.got) < count:
            assert time.monotonic() < until, f"{len(self.got)} of {count} came"
            time.sleep(0.01)
        return [body for _, _, body in self.got]


@contextmanager
def web_server(hook: Hook | None = None) -> Iterator[Hook]:
    """Serves at the hook's port, or at any and says so there."""
    hook = hook or Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert hook is not None
            hook.asked += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if hook.hang.is_set():
                hook.over.wait(30)
                return
            status = hook.answers.pop(0) if hook.answers else 200
            if status == 200:
                hook.got.append((self.path, dict(self.headers), body))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", hook.port), Handler)
    server.daemon_threads = True
    hook.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hook
    finally:
        hook.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
