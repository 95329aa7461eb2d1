"""Flower's SuperLink, with a door for devices alone.

Its one port answers three kinds of requests. Devices need those below /v1/fleet, which it asks a key for. The others
start programs here and on devices, and allow devices, and it lets anyone: so these are for this machine alone.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from deco_runtime.fleet.keeper import end_with_parent
from deco_runtime.page.access import is_loopback

FOR_DEVICES = "/v1/fleet/"

App = Callable[..., Awaitable[None]]


class OnlyFromHere:
    """In front of all that is not for devices."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: App, send: App) -> None:
        """As ASGI has it."""
        devices = scope["type"] == "http" and str(scope["path"]).startswith(FOR_DEVICES)
        if scope["type"] == "lifespan" or devices or _is_here(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_here(scope: dict[str, Any]) -> bool:
    """Whether a request comes from this machine: from loopback, or from the address that it was sent to."""
    client, server = scope.get("client"), scope.get("server")
    return client is not None and (is_loopback(client[0]) or (server is not None and client[0] == server[0]))


def main() -> None:
    """With the arguments of flower-superlink."""
    end_with_parent()
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    assert callable(extensions.get_middleware)  # a version without would serve everybody
    extensions.get_middleware = lambda: (Middleware(OnlyFromHere),)
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
