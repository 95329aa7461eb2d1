"""A network address: whether it can be one, and after OpenCV could not open it, what is there instead.

OpenCV says "not opened" and nothing else. So the place is asked once, as FFmpeg does (proxy, user and password, no
check of certificates), and only afterwards: many cameras serve one client at a time.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from http.client import BadStatusLine, HTTPException, HTTPResponse, responses
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, unquote, urlsplit

from deco_runtime.errors import SourceError
from deco_runtime.telemetry.redact import redact

ASK_S = 4.0
"""Seconds that asking may take."""

_STEP_S = 2.5  # that a connection, or one read of it, may take
_PORTS = {"http": 80, "https": 443, "rtsp": 554, "rtsps": 322, "rtmp": 1935, "rtmps": 443, "tcp": None}
_WITHOUT_CONNECTION = ("udp", "rtp")
_EXAMPLES = "rtsp://, http:// or https://"
_CUT = "that it ends the connection without an answer: check the port, and the address's kind, rtsp://, http:// or https://"
_SILENT = (
    "that it accepts connections and does not answer in time: check the port, restart the camera, or look whether "
    "another program is connected to it"
)


def clean(url: str) -> str:
    """The address without blanks around it and with its scheme in small letters, as FFmpeg knows it.

    Raises SourceError for a file's, and for what has no host or no proper port.
    """
    scheme, _, rest = url.strip().partition("://")
    scheme, url = scheme.lower(), f"{scheme.lower()}://{rest}"
    if scheme == "file":
        raise SourceError(f"expected a network address, found that of a file: give its path, --video {unquote(rest)}")
    if scheme in _PORTS:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise SourceError(
                f"expected HOST or HOST:PORT behind {scheme}://, found another thing in {redact(url)}: correct it; in "
                "a password / is written %2F, ? %3F, # %23 and @ %40"
            ) from None
        if not host:
            raise SourceError(f"expected a host behind {scheme}://, found none in {redact(url)}: add the camera's")
    return url


def cause(url: str, waited_s: float | None = None) -> str:
    """What was found at an address in place of a stream, and what to do: words to go behind "found ", in ASK_S seconds.

    waited_s: how long pictures were waited for, None if the opening failed before that.
    """
    known = ["none that OpenCV can open: check the address, that the sender is running, and the network between"]

    def ask() -> None:
        known.extend(_ever_better(url, waited_s))

    # A name server, or a server that sends a byte a second, can hold it for ever; it dies with the capture process.
    thread = threading.Thread(target=ask, name="ask", daemon=True)
    thread.start()
    thread.join(ASK_S)
    return known[-1]


def _ever_better(url: str, waited_s: float | None) -> Iterator[str]:
    """What is known so far, step by step: each is right if nothing more is learned."""
    parts = urlsplit(url)
    scheme, host = parts.scheme, parts.hostname or ""
    if scheme in _WITHOUT_CONNECTION:
        yield (
            f"that nothing arrives there within {waited_s or 0:g} s: check that the sender runs and sends to this "
            f"machine's address and port {parts.port}, and the firewall between"
        )
        return
    if scheme not in _PORTS:
        yield f"an address of a kind that OpenCV cannot open: give one that begins with {_EXAMPLES}"
        return
    proxy, place, direct = _proxy(scheme, host), (host, parts.port or _PORTS[scheme] or 0), ""
    if proxy:
        place = urlsplit(proxy).hostname or "", urlsplit(proxy).port or 80
        direct = f", or set no_proxy={host} for a camera in the local network (http_proxy sends it through {place[0]})"
    named = f"{place[0]}: check it and the name server, or give an IP address in its place{direct}"
    yield f"that no name server answers for {named}"
    try:
        socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        yield f"no host of the name {named}"
        return
    try:
        socket.create_connection(place, _STEP_S).close()
    except ConnectionRefusedError:
        yield f"that {place[0]} refuses connections at port {place[1]}: check both, and that the sender runs{direct}"
        return
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
        yield (
            f"that {place[0]} cannot be reached at port {place[1]} ({why}): check that it is switched on, and the "
            f"network between{direct}"
        )
        return
    yield _SILENT + direct
    try:
        found = _ask_rtsp(parts) if scheme.startswith("rtsp") else _ask_http(parts, proxy, waited_s)
    except (OSError, HTTPException) as error:
        found = _failed(error)
    yield found + direct


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that FFmpeg takes."""
    proxy = os.environ.get("http_proxy", "")
    if scheme not in ("http", "https") or not proxy.startswith("http://"):
        return None
    spared = [name.lstrip("*").lstrip(".") for name in re.split("[ ,]+", os.environ.get("no_proxy", "")) if name]
    return None if any(name in ("", host) or host.endswith(f".{name}") for name in spared) else proxy


def _without_login(parts: SplitResult) -> str:
    """The address as a server is asked for it: without user and password, in ASCII."""
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    return quote(url.geturl(), safe="%/:=&?~+!$,;'@()*[]")


def _trusting() -> ssl.SSLContext:
    """Certificates of cameras are their own; FFmpeg does not check them either."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one reads all of the system's first
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _ask_http(parts: SplitResult, proxy: str | None, waited_s: float | None) -> str:
    """What a GET of the address gives. Raises OSError or HTTPException where it gives nothing."""
    url = _without_login(parts)
    handlers: list[request.BaseHandler] = [
        request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {}),
        request.HTTPSHandler(context=_trusting()),
    ]
    if parts.username is not None:
        passwords = request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, unquote(parts.username), unquote(parts.password or ""))
        handlers += [request.HTTPBasicAuthHandler(passwords), request.HTTPDigestAuthHandler(passwords)]
    try:
        response: HTTPResponse = request.build_opener(*handlers).open(url, timeout=_STEP_S)
    except HTTPError as error:
        return _status(error.code, parts)
    except ValueError:  # a way of asking for a password that is not known here
        return _status(401, parts)
    with response:
        moved = f" at {redact(response.url)}, to which it redirects" if response.url != url else ""
        kind = re.sub(r"[^\w/.+-]", "", response.headers.get("Content-Type", "").split(";")[0].lower())[:40]
        return _content(kind, moved, response.status == 204 or response.length == 0, waited_s)


def _content(kind: str, moved: str, empty: bool, waited_s: float | None) -> str:
    """What content of this kind, such as text/html, is in place of a stream. moved: where, if redirected."""
    if empty:
        return f"an empty answer{moved}: look the address of the stream up in the camera's manual"
    if kind in ("text/html", "application/xhtml+xml"):
        return (
            f"a web page{moved}: give the address of the stream itself, which the camera's manual tells, or sign in if "
            "the page is one of the network's"
        )
    if kind.startswith("image/"):
        return f"a single picture{moved} ({kind}): give the address of the camera's stream instead"
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return f"text{moved} ({kind}): look the address of the stream up in the camera's manual"
    if kind.endswith("mpegurl"):
        return f"a list of streams{moved} (HLS) that OpenCV cannot follow: give one of the addresses that are in it"
    answer = f"{moved} ({kind or 'of no kind'})"
    if waited_s is not None:
        return f"an answer{answer} without a picture within {waited_s:g} s: check the camera and the network"
    return f"an answer{answer} in which OpenCV finds no stream: check the address, or set the camera to MJPEG or H.264"


def _status(code: int, parts: SplitResult) -> str:
    """What a refusal by this HTTP or RTSP status code means."""
    said = " ".join(filter(None, (str(code), responses.get(code, ""))))
    if code == 401 and parts.username is None:
        return (
            f"that it asks for a user and a password ({said}): give them, as in {parts.scheme}://USER:PASSWORD@HOST/…"
        )
    if code == 401:
        return f"that it does not open with the user and password of the address ({said}): check both"
    if code == 407:
        return f"that the proxy asks for a user and a password ({said}): set them in http_proxy"
    if code == 403:
        return f"that it refuses this address ({said}): look in the camera's settings who may see the stream"
    if code in (404, 410):
        return f"nothing at this path ({said}): look the address of the stream up in the camera's manual"
    if 300 <= code < 400:
        return f"that it redirects without end ({said}): look the address of the stream up in the camera's manual"
    if code >= 500:
        return f"that it reports a fault of its own ({said}): restart the camera, or end other programs that watch it"
    return f"that it answers {said}: check the address"


def _ask_rtsp(parts: SplitResult) -> str:
    """What an RTSP server says to the address, without its user and password. Raises OSError where it says nothing."""
    connection = socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _STEP_S)
    if parts.scheme == "rtsps":
        connection = _trusting().wrap_socket(connection)
    with connection, connection.makefile("rb") as answer:
        wanted = f"DESCRIBE {_without_login(parts)} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
        connection.sendall(wanted.encode())
        line = answer.readline(200)
    found = re.match(rb"RTSP/[0-9.]+ ([0-9]{3})\b", line)
    if found is None:
        return _other(line)
    code = int(found[1])
    if code == 200:
        return "a stream that OpenCV cannot receive or decode: set the camera to H.264, and check the network between"
    return _status(code, parts)


def _failed(error: Exception) -> str:
    """What it means that a server gave no answer in its protocol."""
    cause: Any = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return _SILENT
    if isinstance(cause, ssl.SSLError):
        why = (cause.reason or "cut short").replace("_", " ").lower()
        return f"that TLS with it fails ({why}): check the port, try http:// or rtsp://, or update the camera"
    if isinstance(cause, ConnectionRefusedError | socket.gaierror):
        return "that it redirects to a place that cannot be reached: give the address of the stream itself"
    if isinstance(cause, BadStatusLine) and not isinstance(cause, ConnectionError):
        return _other(str(cause.args[0]).encode("latin-1", "replace"))
    return _CUT


def _other(line: bytes) -> str:
    """What speaks by this first line, where another protocol was expected."""
    for start, words in ((b"RTSP/", "RTSP: write rtsp:// in place"), (b"HTTP/", "HTTP: write http:// in place")):
        if line.startswith(start):
            return f"that it speaks {words} of what stands before the host"
    if line.startswith((b"\x15\x03", b"\x16\x03")):
        return "that it speaks TLS: write https:// or rtsps:// in place of what stands before the host"
    if not line:
        return _CUT
    return "that something else than a camera answers: check the port"
