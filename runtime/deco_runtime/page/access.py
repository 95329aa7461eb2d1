"""Who may see the page, and who may change something by it.

On the machine itself anyone may, if the browser asked for the machine itself: a site elsewhere could let its own name
point here. From elsewhere a token is needed. Whatever changes something must come from the page: a header that other
sites cannot set, and the page's own origin.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from deco_runtime.errors import UsageError

VARIABLE = "DECO_RUN_PAGE_TOKEN"
"""Of the environment: the token, where it is to be a certain one."""
TOKEN_FILE = "page-token"
"""In the state directory, for its owner alone: the token that was made up, the same after a restart."""
LEAST_TOKEN = 16
COOKIE = "deco-page"
HEADER = "x-deco"
"""Which the page sends with what changes something; a browser sends it to other sites only if they agree."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """host, port: where the page is. token: None where none is needed. certificate, key: files, None without TLS."""

    host: str
    port: int
    token: str | None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def address(self) -> str:
        """For people, with the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        token = f"/?token={self.token}" if self.token else "/"
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}{token}"

    def refusal(self, method: str, path: str, headers: Mapping[str, str], query: str | None, cookie: str | None) -> int:
        """0 where a request is fine, else the status to refuse it with: 401 without the token, 403 for what may come
        from another site. query, cookie: the token as given there."""
        host = headers.get("host", "")
        if self.token is None and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return 403
        if path == "/healthz":
            return 0
        if self.token is not None:
            bearer = headers.get("authorization", "").removeprefix("Bearer ")
            if not any(given and hmac.compare_digest(given.encode(), self.token.encode())
                       for given in (query, cookie, bearer)):  # fmt: skip
                return 401
        if method in ("GET", "HEAD"):
            return 0
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        same = origin is None or urlsplit(origin).netloc == host
        return 0 if same and site == "same-origin" and HEADER in headers else 403


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, which nobody else can reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse(where: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, HOST or :PORT. Raises UsageError."""
    try:
        parts = urlsplit(f"//{where}")
        host, port = parts.hostname or "127.0.0.1", 8080 if parts.port is None else parts.port
        if parts.path or parts.query or parts.username or " " in where:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"expected --page HOST:PORT, such as 127.0.0.1:8080, but found {where!r}; correct it"
        ) from None
    return host, port


def token_for(host: str, directory: Path) -> str | None:
    """The token that is needed at this host, from the environment, or one kept in the directory, or a new one.

    Raises UsageError for one that is too short, or where none can be kept."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        if len(given) < LEAST_TOKEN or not given.isascii() or not given.isprintable() or " " in given:
            raise UsageError(
                f"expected {VARIABLE} to hold a token of {LEAST_TOKEN} or more plain characters, but found "
                f"{len(given)}; make one with python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        return given
    if is_loopback(host):
        return None
    file = directory / TOKEN_FILE
    try:
        if len(kept := file.read_text("ascii").strip()) >= LEAST_TOKEN:
            return kept
    except (OSError, ValueError):
        pass
    token = secrets.token_urlsafe()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="ascii") as out:
            out.write(token + "\n")
    except OSError as error:
        raise UsageError(
            f"expected to keep the page's token in {file}, but the system says: {error.strerror}; set {VARIABLE}"
        ) from error
    return token
