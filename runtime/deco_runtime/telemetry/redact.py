"""What is shown of an address: where a source is, and never how to get in.

A camera's user and password stand before its host, in its path or in its query, under names that each maker chose, and
with any character that a person may type. So of a path's and a query's values only those are shown that are known to be
harmless, and of everything before an @ nothing.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"

_HARMLESS = {
    *("action", "cam", "camera", "ch", "channel", "chn", "compression", "fmt", "format", "fps", "h", "height"),
    *("profile", "proto", "quality", "rate", "res", "resolution", "size", "stream", "subtype", "track", "trackid"),
    *("type", "unicast", "w", "width"),
}
"""Names whose values are shown."""
_SECRET = r"pass|pwd|psw|token|secret|api_?key|access_?key|auth|credential|signature|session"
"""Of names whose values are hidden in words that are no address too."""

_LONG = re.compile(r"\S{1001,}")
"""No address is so long that people need to read it, and the patterns take time with the cube of a word's length."""

_URL = re.compile(
    # With blanks in the password, where it cannot be a port; else up to the next blank.
    r"\b(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)"
    r"(?P<rest>[^\s/@:]*:(?!\s|\d{1,5}(?:[/?#\s,;:]|$))[^@\n]*@\S+|\S*)"
)
_LOGIN = re.compile(r"[^\s'\"=(]+:\S*(?:@|%40)(?=\w)")
_PAIRS = re.compile(r"[^\s'\"(]*[?&][^\s=]*=\S+")
_NAMED = re.compile(rf"(?i)([\w.-]*(?:{_SECRET})[\w.-]*)=[^\s&;,'\"]+")
_AT = re.compile("@|%40")
_SURE_HOST = re.compile(r"(?:localhost|(?:\d{1,3}\.){3}\d{1,3}|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?$")
_PUNCTUATION = ".,;:!'\")]}"


def redact(text: str) -> str:
    """The text with every address in it as it may be shown: scheme, host, port, path, harmless values; `***` for what
    may be a secret, and for a word of more than 1,000 characters that may be an address. Of a text without an address
    nothing changes, and nothing changes the second time."""
    if ":" not in text and "=" not in text:
        return text
    text = _LONG.sub(lambda word: HIDDEN if set(":=") & set(word[0]) else word[0], text)
    parts, end = [], 0
    for match in _URL.finditer(text):
        rest = match["rest"].rstrip(_PUNCTUATION)
        parts += [_words(text[end : match.start()]), f"{match['scheme']}:{match['slashes']}{_address(rest)}"]
        end = match.start("rest") + len(rest)
    return "".join([*parts, _words(text[end:])])


def _words(text: str) -> str:
    """A text without a scheme in it, but perhaps with an address that lacks one."""
    text = _LOGIN.sub(f"{HIDDEN}@", text)
    text = _PAIRS.sub(lambda match: _values(match[0]), text)
    return _NAMED.sub(rf"\1={HIDDEN}", text)


def _address(rest: str) -> str:
    """What stands behind `scheme://`."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    shown = ""
    # A password may hold any of / ? # @, so that only the last @ is sure to be its end; but before a host that is
    # one without doubt there is none.
    if (found := list(_AT.finditer(rest))) and not _SURE_HOST.match(authority):
        shown, rest = f"{HIDDEN}@" if found[-1].start() else "@", rest[found[-1].end() :]
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
    host, colon, port = authority.rpartition(":")
    if colon and not port.isdecimal() and not authority.endswith("]"):
        authority = f"{host}:{HIDDEN}"
    tail = rest[len(re.split("[/?#]", rest, maxsplit=1)[0]) :]
    tail, mark, _ = tail.partition("#")
    path, question, query = tail.partition("?")
    asked = "&".join(p if "=" in p or p.lower() in _HARMLESS else HIDDEN for p in query.split("&")) if query else ""
    return shown + authority + _values(_path(path)) + question + _values(asked) + (f"#{HIDDEN}" if mark else "")


def _path(path: str) -> str:
    """A path without the segments that may be secrets: behind a name that says so, with a colon, or a long key."""
    segments = path.split("/")
    for i, segment in enumerate(segments):
        named = i > 0 and "=" not in segments[i - 1] and re.search(_SECRET, segments[i - 1], re.IGNORECASE)
        word = segment.replace("-", "")
        key = re.fullmatch("[A-Za-z0-9]{12,}", word) and re.search("[0-9]", word) and re.search("[A-Za-z]", word)
        if "=" not in segment and segment and (named or key or ":" in segment or "@" in segment):
            segments[i] = HIDDEN
    return "/".join(segments)


def _values(text: str) -> str:
    """`name=value` pairs, whatever stands between them, with the values of harmless names only."""

    def shown(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if unquote(name).strip("_").lower() not in _HARMLESS:
            return f"{name}={HIDDEN}"
        harmless = re.match(r"[A-Za-z0-9.x-]{0,16}(?=[/?,_;]|$)", value)
        if harmless is None:
            return f"{name}={HIDDEN}"
        return f"{name}={harmless[0]}{_values(value[harmless.end() :])}"

    return re.sub(r"(?P<name>[^/?#&;,=]*)=(?P<value>[^&#]*)", shown, text)
