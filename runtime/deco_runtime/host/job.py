"""A job in a process of its own, which may die or hang; `job_child` is the side of that process.

A job is a function (answer, **arguments), named "module:function": whoever has jobs names them, and this module knows
none. It tells what it finds by calling `answer`, as often as it likes.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from deco_runtime.errors import DecoError
from deco_runtime.host.scratch import nameless

Json = dict[str, Any]
End = Literal["done", "refused", "failed", "died", "silent"]

PYTHON = (sys.executable, "-P") if sys.version_info >= (3, 11) else (sys.executable,)
"""Starts a Python that does not look at the current directory: where that was removed, Python 3.13.0 to 3.13.2 fail on
every attribute that a module lacks, and numpy asks for some (python/cpython#130932)."""

_CHECK_S = 0.2
_DEATH_S = 2.0  # a process in the middle of a disk's or camera's system call cannot even be killed


@dataclass(frozen=True)
class Report:
    """How a job ended.

    end: refused: by a DecoError; failed: by another error; died: the process ended without a word; silent: it went on
    without one and was killed.
    words: the DecoError's sentence, else what happened, to go behind "it": "dies of signal 4 (Illegal instruction)".
    code: of a process that died: its exit code, or -N where signal N killed it; else 0.
    complaint: of a job that failed or died, the last line that its process wrote to stderr; "" if there is none.
    error: what a job that refused has raised, of the same class.
    answers: what it told before, in order; empty where they were heard one by one.
    """

    end: End
    words: str = ""
    code: int = 0
    complaint: str = ""
    error: DecoError | None = None
    answers: list[Json] = field(default_factory=list)

    @property
    def died_of(self) -> int:
        """Number of the signal that killed the process, else 0."""
        return max(0, -self.code)

    @property
    def told(self) -> Json:
        """All answers in one."""
        return {key: value for answer in self.answers for key, value in answer.items()}


def run_job(
    function: str,
    limit_s: float | None,
    hear: Callable[[Json], None] | None = None,
    check: Callable[[], None] | None = None,
    **arguments: Any,
) -> Report:
    """Run the job "module:function" with these arguments in a process of its own, and wait for its end.

    limit_s: longest silence, in seconds, before it is killed; None to wait for ever. hear: called with each answer as
    it comes, and the report has none of them then. check: called several times a second; what it raises ends the job.
    """
    # The same modules as here: -c and -m alike would put the current directory first, with whatever lies in it.
    program = f"import sys; sys.path[:] = {sys.path!r}; from deco_runtime.host.job_child import main; main()"
    with nameless() as complaints:
        process = subprocess.Popen(
            [*PYTHON, "-c", program, function, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        assert process.stdout is not None
        try:
            return _listen(process.stdout, process, limit_s, complaints, hear, check)
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DEATH_S)


def _listen(
    stream: IO[bytes],
    process: subprocess.Popen[bytes],
    limit_s: float | None,
    complaints: IO[bytes],
    hear: Callable[[Json], None] | None,
    check: Callable[[], None] | None,
) -> Report:
    answers: list[Json] = []
    try:
        for answer in _lines(stream, limit_s, check):
            if "end" in answer:
                return _said(answer, answers, complaints)
            (hear or answers.append)(answer)
        code = process.wait(limit_s)
    except (queue.Empty, subprocess.TimeoutExpired):
        return Report("silent", f"does not come back within {limit_s:g} s", answers=answers)
    complaint = _last_line(complaints)
    return Report("died", _death(code, complaint), code, complaint, answers=answers)


def _said(last: Json, answers: list[Json], complaints: IO[bytes]) -> Report:
    """The report of a process that said itself how its job ended."""
    if last["end"] == "refused":
        error = _error(last["exit_code"], last["words"])
        return Report("refused", str(error), error=error, answers=answers)
    if last["end"] == "failed":
        return Report("failed", f"fails with {last['words']}", complaint=_last_line(complaints), answers=answers)
    return Report("done", answers=answers)


def _error(exit_code: int, words: str) -> DecoError:
    """Each class of errors has its own exit code."""
    return next((kind for kind in DecoError.__subclasses__() if kind.exit_code == exit_code), DecoError)(words)


def _lines(stream: IO[bytes], limit_s: float | None, check: Callable[[], None] | None) -> Iterator[Json]:
    """The answers until the stream ends. Raises queue.Empty after limit_s seconds without one, and what check does."""
    lines: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(b"")

    def following() -> bytes:
        if check is None:
            return lines.get(timeout=limit_s)
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            check()
            with contextlib.suppress(queue.Empty):
                return lines.get(timeout=_CHECK_S)
            if end is not None and time.monotonic() > end:
                raise queue.Empty

    threading.Thread(target=read, daemon=True).start()
    while line := following():
        yield json.loads(line)


def _last_line(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _death(code: int, complaint: str) -> str:
    if code < 0:
        return f"dies of signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    return f"ends the program with code {code}" + (f" and the words {complaint}" if complaint else "")
