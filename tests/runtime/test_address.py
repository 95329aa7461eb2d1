"""Addresses that are no stream, or behind which something else answers: what is said of each, with real servers."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.doctor import camera as doctor
from deco_runtime.errors import SourceError
from deco_runtime.sources import SourceRequest, _address, _live, camera, video
from deco_runtime.types import Frame
from mjpeg_server import jpeg, mjpeg_server, number_of, numbered, serving
from sentences import one_sentence

REQUEST = SourceRequest((), 32, 1, 0, frozenset(), Path("bundle"))
Answer = tuple[int, dict[str, str], bytes]
HTML: Answer = (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>Welcome to our WiFi</html>" * 20)


@pytest.fixture(autouse=True)
def _undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_address, "ASK_S", 30.0)  # for a busy machine


@contextmanager
def web(answer: Callable[[str, str | None], Answer]) -> Iterator[str]:
    """A server of `answer(path, what Authorization says)`; yields its address without a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = answer(self.path, self.headers.get("Authorization"))
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as root:
        yield root


@contextmanager
def talks(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that accepts and has its say; what it does not close stays open."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    threading.Thread(target=talk, args=(kept[-1],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                connection.close()


def says(words: bytes) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(4096)
            connection.sendall(words)

    return talk


def refused(url: str, open_s: float = 5.0) -> str:
    """The sentence with which a run that is given this address ends."""
    with pytest.raises(SourceError) as error:
        _live.open_url(url, open_s)
    return one_sentence(str(error.value))


# --- what OpenCV opens although it is no live stream


def recording(path: Path) -> bytes:
    writer = cv2.VideoWriter(str(path), int.from_bytes(b"MJPG", "little"), 25, (64, 48))
    for i in range(12):
        writer.write(numbered(i))
    writer.release()
    return path.read_bytes()


def test_a_single_picture_is_no_stream() -> None:
    """FFmpeg opens it, gives it once, and is then to be opened again for ever."""
    with web(lambda path, _: (200, {"Content-Type": "image/jpeg"}, jpeg(numbered(7)))) as base:
        for name in ("capture", "snapshot.jpg"):
            said = refused(f"{base}/{name}")
            assert f"at {base}/{name}, found a single picture (image/jpeg): give the address of the camera's st" in said


def test_a_recording_is_no_live_stream(tmp_path: Path) -> None:
    data = recording(tmp_path / "clip.avi")
    with web(lambda path, _: (200, {"Content-Type": "video/x-msvideo"}, data)) as base:
        assert "found a recording of 12 frames: save it as a file, and give that to --video" in refused(f"{base}/c.avi")


def test_the_first_pictures_of_a_stream_are_not_lost() -> None:
    """They are looked at when it is opened, to tell it from a picture."""
    with mjpeg_server(numbered, fps=4) as url:
        source = _live.open_url(url)
        frames = (frame for frame in source.frames() if isinstance(frame, Frame))
        first, dropped = number_of(next(frames).pixels), source.dropped
        second = number_of(next(frames).pixels)
        source.close()
    assert first - dropped <= 1  # FFmpeg may keep one to itself
    assert second > first


# --- what answers in place of a stream


STATUS = {
    403: "found that it refuses this address (403 Forbidden): look in the camera's settings",
    404: "found nothing at this path (404 Not Found): look the address of the stream up",
    503: "found that it reports a fault of its own (503 Service Unavailable): restart the camera",
    418: "found that it answers 418 I'm a Teapot: check the address",
}


@pytest.mark.parametrize("code", STATUS)
def test_a_refusal_by_status_code(code: int) -> None:
    with web(lambda path, _: (code, HTML[1], HTML[2])) as base:
        assert STATUS[code].partition("found ")[2] in _address.cause(f"{base}/live").replace("I'm A", "I'm a")


ANSWERS: list[tuple[Answer, str]] = [
    (HTML, "a web page: give the address of the stream itself"),
    ((200, {"Content-Type": "application/json"}, b"{}"), "text (application/json): look the address"),
    ((200, {"Content-Type": "video/mp4"}, b""), "an empty answer: look the address"),
    ((204, {}, b""), "an empty answer: look the address"),
    ((200, {"Content-Type": "application/x-mpegURL"}, b"#EXTM3U\n"), "a list of streams (HLS)"),
    ((200, {"Content-Type": "video/\x1b[31m?" + "x" * 99}, b"??"), "an answer (video/31m" + "x" * 31 + ") in which"),
    ((200, {}, b"??"), "an answer (of no kind) in which OpenCV finds no stream"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS)
def test_other_content(answer: Answer, words: str) -> None:
    with web(lambda path, _: answer) as base:
        assert _address.cause(f"{base}/live").startswith(words)


def test_the_whole_sentence_in_run_and_doctor() -> None:
    with web(lambda path, _: HTML) as base:
        url = f"{base}/live"
        said = refused(url)
        assert said.startswith(f"expected a video stream at {url}, found a web page: give the address of the stream")
        assert [(found.level, found.sentence) for found in doctor.findings(url, 0.5, ())] == [("FAIL", said)]


@pytest.mark.parametrize("way", ["Basic", "Digest"])
def test_user_and_password(way: str) -> None:
    """Asked for, wrong, and right: then what is behind them is told."""

    def answer(path: str, given: str | None) -> Answer:
        right = f"Basic {base64.b64encode(b'me:a s').decode()}"
        if way == "Digest":
            ha1, ha2 = (hashlib.md5(text.encode()).hexdigest() for text in ("me:cam:a s", f"GET:{path}"))
            right = f'response="{hashlib.md5(f"{ha1}:n1:{ha2}".encode()).hexdigest()}"'
        if given and right in given:
            return HTML
        extra = ', nonce="n1"' if way == "Digest" else ""
        return 401, {"WWW-Authenticate": f'{way} realm="cam"{extra}'}, b"no"

    with web(answer) as base:
        found = {
            login: _address.cause(f"{base.replace('://', f'://{login}')}/live") for login in ("", "me:b@", "me:a%20s@")
        }
        assert "401 Unauthorized): give them, as in http://USER:PASSWORD@HOST" in found[""]
        assert "does not open with the user and password of the address (401" in found["me:b@"]
        assert found["me:a%20s@"].startswith("a web page")


def test_redirects() -> None:
    def answer(path: str, _: str | None) -> Answer:
        to = {"/dead": "http://127.0.0.1:1/x", "/round": "/round", "/far": "/login?session=Secret1"}.get(path)
        return (302, {"Location": to}, b"") if to else HTML

    with web(answer) as base:
        assert "redirects to a place that cannot be reached" in _address.cause(f"{base}/dead")
        assert "redirects without end (302 Found)" in _address.cause(f"{base}/round")
        far = _address.cause(f"{base}/far")
        assert far.startswith(f"a web page at {base}/login?session=***, to which it redirects: ")


def test_a_redirected_stream_is_a_stream() -> None:
    with (
        mjpeg_server(numbered) as stream,
        web(lambda path, _: (302, {"Location": stream}, b"")) as base,
    ):
        source = _live.open_url(f"{base}/live")
        assert next(frame for frame in source.frames() if isinstance(frame, Frame)).pixels.shape == (48, 64, 3)
        source.close()


# --- where something lies between, or nothing answers


def test_a_proxy_is_named_and_how_to_pass_it_by(monkeypatch: pytest.MonkeyPatch) -> None:
    with mjpeg_server(numbered) as url, web(lambda path, _: HTML) as portal:
        monkeypatch.setenv("http_proxy", "http://me:Secret2@127.0.0.1:1")
        dead = refused(url)
        assert "found that 127.0.0.1 refuses connections at port 1: " in dead
        assert dead.endswith(
            "set no_proxy=127.0.0.1 for a camera in the local network (http_proxy sends it through 127.0.0.1)"
        )
        assert "Secret2" not in dead
        monkeypatch.setenv("http_proxy", portal)
        assert "found a web page" in (said := refused(url))
        assert "no_proxy=127.0.0.1" in said
        monkeypatch.setenv("no_proxy", "example.org, 127.0.0.1")
        source = _live.open_url(url)
        assert isinstance(next(item for item in source.frames() if isinstance(item, Frame)), Frame)
        source.close()


@pytest.mark.parametrize(
    ("spared", "host", "passed_by"),
    [
        ("*", "cam", True),
        ("cam", "cam", True),
        ("home.arpa", "cam.home.arpa", True),
        (".arpa,x", "cam.home.arpa", True),
        ("*.arpa x", "cam.home.arpa", True),
        ("am", "cam", False),
        ("", "cam", False),
    ],
)
def test_which_hosts_pass_the_proxy_by(
    monkeypatch: pytest.MonkeyPatch, spared: str, host: str, passed_by: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", spared)
    assert _address._proxy("http", host) == (None if passed_by else "http://proxy:3128")
    assert _address._proxy("rtsp", host) is None


@pytest.mark.parametrize("scheme", ["http", "rtsp", "tcp"])
def test_nobody_listens(scheme: str) -> None:
    said = refused(f"{scheme}://127.0.0.1:1/live")
    assert "found that 127.0.0.1 refuses connections at port 1: check both" in said


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert _address.cause("rtsp://cam.invalid/live").startswith(
        "no host of the name cam.invalid: check it and the name"
    )


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_address, "ASK_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(1))
    assert _address.cause("http://cam.home/live").startswith("that no name server answers for cam.home: ")


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_a_port_that_accepts_and_is_silent(scheme: str) -> None:
    with talks(lambda connection: None) as port:
        started = time.monotonic()
        assert "found that it accepts connections and does not answer in time" in refused(
            f"{scheme}://127.0.0.1:{port}/live", open_s=0.5
        )
        assert time.monotonic() - started < 20


def test_a_server_that_sends_a_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_address, "ASK_S", 0.6)

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            for byte in b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n":
                connection.sendall(bytes([byte]))
                time.sleep(0.1)

    with talks(drip) as port:
        started = time.monotonic()
        assert _address.cause(f"http://127.0.0.1:{port}/live").startswith("that it accepts connections and does not")
        assert time.monotonic() - started < 5


def test_a_stream_without_pictures_is_not_called_silent() -> None:
    with mjpeg_server(numbered, "stall", after=0) as url:
        said = refused(url, open_s=0.5)
        assert "found an answer (multipart/x-mixed-replace) without a picture within 0.5 s: check the camera" in said


@pytest.mark.parametrize("scheme", ["udp", "rtp"])
def test_no_sender(scheme: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = refused(f"{scheme}://127.0.0.1:{port}", open_s=0.5)
    assert "found that nothing arrives there within 0.5 s: check that the sender runs and sends to this" in said
    assert f"address and port {port}, " in said


# --- another protocol than that of the address

RTSP = b"RTSP/1.0 %s\r\nCSeq: 1\r\n\r\n"
OTHERS = [
    ("http", RTSP % b"400 Bad Request", "that it speaks RTSP: write rtsp:// in place"),
    ("rtsp", b"HTTP/1.1 400 Bad Request\r\n\r\n", "that it speaks HTTP: write http:// in place"),
    ("http", b"\x15\x03\x01\x00\x02\x02\x46\r\n", "that it speaks TLS: write https:// or rtsps:// in place"),
    ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "that TLS with it fails ("),
    ("rtsps", b"RTSP/1.0 400 Bad Request\r\n\r\n", "that TLS with it fails ("),
    ("http", b"SSH-2.0-OpenSSH_9.2\r\n", "that something else than a camera answers: check the port"),
    ("rtsp", b"SSH-2.0-OpenSSH_9.2\r\n", "that something else than a camera answers: check the port"),
    ("rtsp", RTSP % b"404 Not Found", "nothing at this path (404 Not Found): look the address"),
    (
        "rtsp",
        RTSP % b"401 Unauthorized",
        "that it asks for a user and a password (401 Unauthorized): give them, as in rtsp",
    ),
    ("rtsp", RTSP % b"200 OK", "a stream that OpenCV cannot receive or decode: set the camera to H.264"),
]


@pytest.mark.parametrize(("scheme", "words", "said"), OTHERS)
def test_another_protocol(scheme: str, words: bytes, said: str) -> None:
    with talks(says(words)) as port:
        assert _address.cause(f"{scheme}://127.0.0.1:{port}/live").startswith(said)


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_a_connection_that_is_cut(scheme: str) -> None:
    with talks(lambda connection: connection.close()) as port:
        assert _address.cause(f"{scheme}://127.0.0.1:{port}/live").startswith("that it ends the connection without an")


def test_rtsp_is_asked_without_the_password() -> None:
    heard = []

    def talk(connection: socket.socket) -> None:
        heard.append(connection.recv(4096))
        connection.sendall(RTSP % b"401 Unauthorized")

    with talks(talk) as port:
        said = _address.cause(f"rtsp://me:Secret3@127.0.0.1:{port}/a b")
    assert "does not open with the user and password of the address" in said
    told = b"".join(heard)  # the first connection only tries the port
    assert told.startswith(b"DESCRIBE rtsp://127.0.0.1:%d/a%%20b RTSP/1.0\r\n" % port)
    assert b"Secret3" not in told


# --- addresses that are none


def test_schemes_in_capitals_and_blanks_around() -> None:
    with mjpeg_server(numbered) as url:
        source = _live.open_url(f" {url.replace('http', 'HTTP')}\n")
        assert source.name == url
        assert isinstance(next(item for item in source.frames() if isinstance(item, Frame)), Frame)
        source.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///srv/a%20b.avi", "found that of a file: give its path, --video /srv/a b.avi"),
        ("FILE:///srv/b.avi", "found that of a file: give its path, --video /srv/b.avi"),
        ("http:///live", "expected a host behind http://, found none in http:///live"),
        (
            "rtsp://cam:99999/live",
            "expected HOST or HOST:PORT behind rtsp://, found another thing in rtsp://cam:99999/live",
        ),
        ("rtsp://me:Se/cret4@cam/live", "in a password / is written %2F, ? %3F, # %23 and @ %40"),
        ("http://[::1/live", "expected HOST or HOST:PORT behind http://"),
        (
            "htp://127.0.0.1/live",
            "found an address of a kind that OpenCV cannot open: give one that begins with rtsp://",
        ),
        ("data://x", "found an address of a kind that OpenCV cannot open: give one that begins with rtsp://"),
    ],
)
def test_what_is_no_address(url: str, words: str) -> None:
    said = refused(url)
    assert words in said
    assert "cret4" not in said


@pytest.mark.parametrize("module", [video, camera])
def test_a_name_of_any_length_is_no_traceback(module: object) -> None:
    with pytest.raises(SourceError, match="found no"):
        module.open_source("x" * 5000, REQUEST)  # type: ignore[attr-defined]


def test_an_address_without_its_kind() -> None:
    with pytest.raises(
        SourceError, match=r"found nothing at 10\.0\.0\.7/live: .* an address begins with rtsp:// or http://"
    ):
        video.open_source("10.0.0.7/live", REQUEST)


def test_an_address_in_numbers_of_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    assert _address.cause("http://[::1]:1/live").startswith("that ::1 refuses connections at port 1")


def test_a_stream_that_opens_has_one_client() -> None:
    """Nobody asks what it is: many cameras serve one client at a time."""
    clients = []

    def picture(i: int) -> np.ndarray:
        clients.extend([i] if i == 0 else [])
        return numbered(i)

    with mjpeg_server(picture) as url:
        source = _live.open_url(url)
        next(item for item in source.frames() if isinstance(item, Frame))
        source.close()
    assert clients == [0]
