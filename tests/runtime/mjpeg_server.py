"""A camera on the network: MJPEG over HTTP on loopback, with the ways in which such cameras fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

Mode = Literal["normal", "stall", "drop", "silent", "garbage", "half", "endless", "wrong"]


def numbered(i: int) -> npt.NDArray[np.uint8]:
    """A picture that tells its number, up to 255, through compression: its hex digits in green and red."""
    return np.full((48, 64, 3), (128, i // 16 * 16, i % 16 * 16), np.uint8)


def number_of(pixels: npt.NDArray[np.uint8]) -> int:
    blue, green, red = (round(float(channel)) for channel in pixels.mean((0, 1)))
    assert abs(blue - 128) < 8
    return round(green / 16) * 16 + round(red / 16)


def jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    """The picture as a JPEG file."""
    return cv2.imencode(".jpg", picture)[1].tobytes()


def with_zeros(data: bytes) -> bytes:
    """A JPEG with zeros in the second half of what its scan holds, and with its end mark."""
    scan = data.index(b"\xff\xda") + 14
    kept = scan + (len(data) - 2 - scan) // 2
    return data[:kept] + bytes(len(data) - 2 - kept) + data[-2:]


@contextmanager
def mjpeg_server(
    picture: Callable[[int], npt.NDArray[np.uint8]],
    mode: Mode = "normal",
    *,
    after: int = 0,
    fps: float = 50.0,
    port: int = 0,
) -> Iterator[str]:
    """Serve picture(0), picture(1), … as JPEGs, `fps` per second, and yield the URL; the same again to each client.

    normal: without end. stall: `after` frames, then keep the connection but send no more.
    drop: `after` frames, then close it. silent: accept the connection and never answer.
    garbage: answer with random bytes. half: of every third frame only the first half of its bytes.
    endless: no frame has its end mark. wrong: every third frame has zeros in its second half.
    """
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):  # the client may leave at any time
                self.answer()

        def answer(self) -> None:
            if mode == "silent":
                stop.wait()
                return
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=picture")
            self.end_headers()
            if mode == "garbage":
                self.wfile.write(np.random.default_rng(0).bytes(100_000))
                return
            i = 0
            while not stop.is_set() and (mode in ("normal", "half", "endless", "wrong") or i < after):
                data = jpeg(picture(i))
                if mode == "half" and i % 3 == 2:
                    data = data[: len(data) // 2]
                elif mode == "wrong" and i % 3 == 2:
                    data = with_zeros(data)
                elif mode == "endless":
                    data = data.removesuffix(b"\xff\xd9")
                head = f"--picture\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data + b"\r\n")
                time.sleep(1 / fps)
                i += 1
            if mode == "stall":
                stop.wait()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler, port) as root:
        try:
            yield f"{root}/stream.mjpg"
        finally:
            stop.set()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """An HTTP server on loopback, and its address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
