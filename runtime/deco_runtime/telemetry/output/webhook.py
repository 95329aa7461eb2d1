"""`--output https://…`: each JSON object is posted to a web address."""

from __future__ import annotations

import base64
import http.client
import socket
import urllib.error
import urllib.request
from typing import Any

from deco_runtime.errors import first_line
from deco_runtime.telemetry.output import TIMEOUT_S, NotSentError, Way
from deco_runtime.telemetry.output.address import Address, parse
from deco_runtime.telemetry.output.message import Message
from deco_runtime.telemetry.redact import HIDDEN

SCHEMES = ("http", "https")
NETWORK = True
EXAMPLE = "https://HOST/PATH"

TRY_LATER = {408, 425, 429}
"""Answers below 500 that say nothing against what was sent."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without its body, so a redirect is an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Webhook:
    """See `Way`. Of the address only the host is shown: the paths of webhooks are what keeps others from using them."""

    def __init__(self, address: Address, timeout_s: float = TIMEOUT_S) -> None:
        self.name = address.place + (f"/{HIDDEN}" if address.path.strip("/") or address.query else "")
        self._url = address.place + (address.path or "/") + (f"?{address.query}" if address.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "deco-run"}
        if address.user is not None:
            login = f"{address.user}:{address.password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects())

    def send(self, message: Message) -> None:
        request = urllib.request.Request(self._url, message.json(), self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return  # what it says besides its status does not matter
        except urllib.error.HTTPError as error:
            with error:
                code = error.code
            words = "it leads elsewhere: give that address" if 300 <= code < 400 else "see its own log"
            raise NotSentError(f"it answers {code}, {words}", again=code >= 500 or code in TRY_LATER) from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            raise NotSentError(_words(error)) from error

    def tend(self) -> bool:
        return False

    def close(self) -> None:
        return


def _words(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, (TimeoutError, socket.timeout)):
        return "it does not answer in time"
    if isinstance(reason, http.client.HTTPException):
        return f"what it answers is no HTTP ({type(reason).__name__})"
    if isinstance(reason, OSError) and reason.strerror:
        return f"the system says: {reason.strerror}"
    return first_line(reason) if isinstance(reason, BaseException) else str(reason)


def open_way(address: str) -> Way:
    """See the package."""
    return Webhook(parse(address, EXAMPLE))
