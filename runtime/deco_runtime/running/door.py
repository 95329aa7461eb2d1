"""The socket of a run: `deco-run teach` and other programs of the same user reach the run that holds a state directory.

A Unix socket `run.sock` in that directory, for its owner alone. A connection is one request: a line of JSON, behind it
as many bytes as its "bytes" says; and one line of JSON as the answer, with "error" where it was refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime.errors import DecoError, StateError, UsageError
from deco_runtime.running.control import Control
from deco_runtime.running.requests import WAIT_S
from deco_runtime.storage.untrusted import parse_json
from deco_runtime.telemetry.bus import Bus, Hears, Listener
from deco_runtime.telemetry.happenings import Said

SOCKET = "run.sock"
MOST_LINE, MOST_BYTES = 1 << 20, 256 << 20
"""Of a request: its line, and what is behind it."""
PATIENCE_S = 10.0
"""Seconds from one piece of a request to the next."""


class Door(Listener):
    """Answers at the socket for as long as the run goes on. Where there can be none, a note says so."""

    def __init__(self, directory: Path, control: Control, bus: Bus) -> None:
        self._directory, self._control = directory, control
        self._server: socket.socket | None = None
        try:
            with _reached(directory) as place:
                self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                new = f"{place}.new"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
                self._server.bind(new)
                os.chmod(new, 0o600)
                os.replace(new, place)  # the one of a run that was killed is of no use
                self._server.listen(4)
        except (OSError, AttributeError) as error:
            self._server = None
            bus.emit(Said(f"nobody can teach this run, because there can be no socket in {directory}: {error}", "note"))
            return
        threading.Thread(target=self._serve, args=(self._server,), name="door", daemon=True).start()

    def hears(self) -> Hears:
        """Nothing: it is closed with the bus."""
        return {}

    def close(self) -> None:
        """See `Listener`."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._directory / SOCKET)
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(PATIENCE_S)
                try:
                    answer = self._answer(*_read(connection))
                except DecoError as error:
                    answer = {"error": str(error), "code": error.exit_code}
                except Exception as error:  # a request may hold anything
                    answer = {"error": f"expected a request, but it fails with {type(error).__name__}", "code": 1}
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, asked: dict[str, Any], data: bytes) -> dict[str, Any]:
        control, what = self._control, asked.get("do")
        if what == "hello":
            return {"bundle": str(control.bundle.path.resolve()), "hash": control.bundle.hash, "recipe": control.recipe}
        if what == "teach":
            size = control.bundle.preprocessing.size
            pixels = np.frombuffer(data, np.uint8).reshape(-1, size, size, 3)
            takes = np.asarray(asked["takes"], np.int64).reshape(len(pixels))
            return asdict(control.teach(str(asked["class"]), control.observe(pixels), takes))
        if what == "teach last":
            return asdict(control.teach_recent(str(asked["class"]), control.recent.last(float(asked["seconds"]))))
        if what == "undo":
            return asdict(control.undo())
        if what == "offer":
            epsilon = asked.get("epsilon")
            control.offer(str(asked["how"]), float(asked["least"]), None if epsilon is None else float(epsilon))
            return {}
        if what == "take up":
            return asdict(control.take_up())
        raise UsageError(f"expected a request that this version knows, but found {what!r:.40}; use the same version")


def ask(directory: Path, request: dict[str, Any], data: bytes = b"") -> dict[str, Any] | None:
    """The answer of the run that holds this state directory; None where none answers. Raises the DecoError that it
    gives, as StateError or UsageError."""
    if len(data) > MOST_BYTES:
        raise _too_many(len(data))
    try:
        with _reached(directory) as place, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(place)
            connection.settimeout(WAIT_S + PATIENCE_S)
            connection.sendall(json.dumps({**request, "bytes": len(data)}).encode() + b"\n" + data)
            with connection.makefile("rb") as stream:
                answer = parse_json(stream.readline(MOST_LINE))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, AttributeError):
        return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or ("it ended" if isinstance(error, ValueError) else error)
        raise StateError(
            f"expected an answer of the run that holds {directory}, but found none: {why}; see whether it goes on"
        ) from error
    if "error" in answer:
        kind = UsageError if answer.get("code") == UsageError.exit_code else StateError
        raise kind(str(answer["error"]))
    return dict(answer)


@contextlib.contextmanager
def _reached(directory: Path) -> Iterator[str]:
    """A name of the socket that is short enough for the system, which takes about 100 bytes."""
    place = str(directory / SOCKET)
    if len(os.fsencode(place)) < 90:
        yield place
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def _read(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    with connection.makefile("rb") as stream:
        asked = dict(parse_json(stream.readline(MOST_LINE)))
        size = int(asked.get("bytes", 0))
        if not 0 <= size <= MOST_BYTES:
            raise _too_many(size)
        data = stream.read(size)
    if len(data) < size:
        raise UsageError("expected a whole request, but it ended early; send it again")
    return asked, data


def _too_many(size: int) -> UsageError:
    return UsageError(f"expected at most {MOST_BYTES >> 20} MiB of pictures, but found {size >> 20}; send fewer")
