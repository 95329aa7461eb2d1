"""The address of a way out in its parts, and a sentence without secrets for one that has none."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from deco_runtime.errors import UsageError


@dataclass(frozen=True)
class Address:
    """user, password: as they are, None without. path, query: as they were given, percent-encoded."""

    scheme: str
    host: str
    port: int | None
    user: str | None
    password: str | None
    path: str
    query: str

    @property
    def place(self) -> str:
        """scheme://host:port, which holds no secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (f":{self.port}" if self.port is not None else "")


def parse(text: str, example: str) -> Address:
    """The parts of an address; example: what UsageError shows, which says nothing of the text itself."""
    port = None
    try:
        # A password with one of / ? # in it would have its end taken for a path, and be shown.
        found = urlsplit(text) if text.isascii() and text.isprintable() and " " not in text else SplitResult(*[""] * 5)
        port, host = found.port, found.hostname
    except ValueError:
        host = None
    if not host or port == 0 or "@" in found.path + found.query or "#" in text:
        raise UsageError(
            f"expected --output to be an address such as {example}, but found none in what begins with "
            f"{text.partition('://')[0]!r:.20}; give host and port, with / ? # @ and what is no ASCII percent-encoded: "
            "%2F %3F %23 %40"
        )
    user, password = (unquote(part) if part is not None else None for part in (found.username, found.password))
    return Address(found.scheme, host, port, user, password, found.path, found.query)
