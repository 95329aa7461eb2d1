"""The portable engine on an execution provider, with the CPU behind it for what that cannot do."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from deco_runtime.engines._placement import CPU, Placement, read
from deco_runtime.engines._sessions import SessionEngine, session_options
from deco_runtime.engines.providers import THREADS, Provider
from deco_runtime.errors import RuntimeMissingError, first_line
from deco_runtime.host.threads import threads
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.storage.bundle_files import Root


_PLACE = re.compile(r"^\S+\.cc:\d+ .*?\) ")
"""ONNX Runtime puts its file, line and function in front of what it says."""


class ProviderEngine(SessionEngine):
    """An `Engine` on sessions of one provider.

    placed: of each graph that has run, where its operators are computed. ONNX Runtime falls back to the CPU without a
    word, for single operators and for whole sessions; the profile of a graph's first run says where each one ran.
    """

    def __init__(self, name: str, graphs: Mapping[str, Root], provider: Provider) -> None:
        super().__init__(name, graphs)
        self._provider = provider
        self.placed: dict[str, Placement] = {}
        self._failed: dict[str, str] = {}
        self._profiled: dict[str, tempfile.TemporaryDirectory[str]] = {}
        # Some, as DirectML, allow one call at a time of a session, and a device has one queue anyway.
        self._locks = {graph: threading.Lock() for graph in graphs}

    def _providers(self, graph: str, model: bytes) -> list[tuple[str, dict[str, str]]]:
        """The providers of a graph's session and their options, without the CPU."""
        given = {key: value.replace(THREADS, str(threads())) for key, value in self._provider.options.items()}
        return [(self._provider.full, given)]

    def _session_options(self, graph: str) -> onnxruntime.SessionOptions:
        return session_options()

    def _open(self, graph: str, model: bytes) -> onnxruntime.InferenceSession:
        options, scratch = self._session_options(graph), None
        with contextlib.suppress(OSError):  # no place for a file: what falls back stays unknown
            scratch = tempfile.TemporaryDirectory(prefix="deco-profile-")
            options.enable_profiling, options.profile_file_prefix = True, str(Path(scratch.name) / "run")
        providers: list[Any] = self._providers(graph, model)
        while providers:
            try:
                # Its own fall-back prints to standard output, which is not for that; versions before 1.20 insist on it.
                with contextlib.redirect_stdout(sys.stderr):
                    session = onnxruntime.InferenceSession(model, options, [*providers, CPU], enable_fallback=0)
                break
            except Exception as error:  # of a library that is not there, a device, a compiler: classes of their own
                self._failed.setdefault(graph, _PLACE.sub("", first_line(error)).rstrip("."))
                del providers[0]
        else:
            session = onnxruntime.InferenceSession(model, options, [CPU])
        session.disable_fallback()
        if scratch is not None:
            self._profiled[graph] = scratch
        return session

    def _run(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        session = self._opened(graph)
        with self._locks[graph]:
            try:
                values: list[Floats] = session.run(outputs, inputs)
            except Exception as error:  # of the runtime, and classes of its own
                raise RuntimeMissingError(
                    f"expected --provider {self._provider.name} to compute {graph}, but it fails with: "
                    f"{first_line(error)}; see to its driver and memory, or use --provider cpu"
                ) from error
            if (scratch := self._profiled.pop(graph, None)) is not None:
                self.placed[graph] = _placement(session, self._failed.get(graph, ""))
                scratch.cleanup()
        return values


def _placement(session: onnxruntime.InferenceSession, reason: str) -> Placement:
    """Of a session's first run, which its profile ends with. reason: why its first provider failed, or ""."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # a full disk: nothing is known then, and nothing said
        return read(json.loads(Path(session.end_profiling()).read_text("utf-8")), reason)
    return Placement(0 if reason else 1, reason=reason)
