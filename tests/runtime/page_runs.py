"""Runs with a page, before a camera of the test's own."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from deco_runtime.storage.bundle import open_bundle
from mjpeg_server import mjpeg_server
from processes import started

COMMAND = [sys.executable, "-c", "from deco_runtime.commands.run import main; main()"]
Picture = npt.NDArray[np.uint8]


def box(i: int) -> Picture:
    """Something that is no digit: a frame of a square, which moves a little with i."""
    picture, half = np.zeros((96, 96, 3), np.uint8), 26 + i % 7
    x, y = 48 + i % 5 - 2, 48 + i % 3 - 1
    cv2.rectangle(picture, (x - half, y - half), (x + half, y + half), (255, 255, 255), 9)
    return picture


def digits(bundle: Path, classes: tuple[int, ...] = tuple(range(10)), in_a_row: int = 30) -> Callable[[int], Picture]:
    """Digits of the bundle's own test images as a camera would show them: a while of each class in turn."""
    pixels, labels = open_bundle(bundle).labelled_pixels("demo/test.npz")
    of = {c: np.flatnonzero(labels == c) for c in classes}

    def picture(i: int) -> Picture:
        c = classes[i // in_a_row % len(classes)]
        image: Picture = pixels[of[c][i % len(of[c])]]
        return cv2.resize(image, (96, 96), interpolation=cv2.INTER_NEAREST)

    return picture


@dataclass
class Open:
    """A page that is open: its address, with the token, and how to ask it for things."""

    address: str
    token: str | None = None

    @property
    def root(self) -> str:
        return self.address.partition("/?")[0].rstrip("/")

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        return self._ask(urllib.request.Request(self.root + path, headers={**self._own(), **(headers or {})}))

    def post(self, what: str, asked: Any, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        data = json.dumps(asked).encode() if not isinstance(asked, bytes) else asked
        sent = {"Content-Type": "application/json", "X-Deco": "page", **self._own(), **(headers or {})}
        sent = {name: value for name, value in sent.items() if value}
        status, body = self._ask(urllib.request.Request(f"{self.root}/do/{what}", data, sent))
        return status, json.loads(body) if body.startswith(b"{") else {"error": body.decode()}

    def state(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/state.json")[1]))

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The state as soon as that holds."""
        limit = time.monotonic() + 60
        while not holds(now := self.state()):
            assert time.monotonic() < limit, f"expected {what}, found {now}"
            time.sleep(0.1)
        return now

    def _own(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _ask(self, request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@contextmanager
def page_of(
    bundle: Path, state: Path, picture: Callable[[int], Picture], *options: str, env: Mapping[str, str] | None = None,
    where: str = "127.0.0.1:0", fps: float = 40.0, first: str = "",
) -> Iterator[Open]:  # fmt: skip
    """A run with a page before such a camera, once frames come. first: Python that its process does before."""
    with mjpeg_server(picture, fps=fps) as url:
        program = [*COMMAND[:-1], f"{first}\n{COMMAND[-1]}"]
        command = [*program, "--bundle", str(bundle), "--video", url, "--state", str(state), "--page", where]
        command += ["--engine", "portable", "--set", "segment=32", *options]
        with started(command, env={**os.environ, **(env or {})}) as process:
            assert process.stderr is not None
            said = []
            while not (found := re.search(r"^page: (\S+)", line := process.stderr.readline(), re.MULTILINE)):
                said.append(line)
                assert line, said
            token = re.search(r"token=(\S+)", found[1])
            opened = Open(found[1], token[1] if token else None)
            opened.until(lambda now: now["frames"] > 5, "frames")
            yield opened
