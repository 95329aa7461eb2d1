"""The waiting side of `child.py`: starts a job's process, and tells how it ended whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from deco_runtime.host.scratch import nameless

End = Literal["done", "refused", "failed", "died", "silent"]

PYTHON = (sys.executable, "-P") if sys.version_info >= (3, 11) else (sys.executable,)
"""Starts a Python that does not look at the current directory: where that was removed, Python 3.13.0 to 3.13.2 fail on
every attribute that a module lacks, and numpy asks for some (python/cpython#130932)."""

_DEATH_S = 2.0  # a process in the middle of a disk's or camera's system call cannot even be killed


@dataclass(frozen=True)
class Report:
    """How a job ended.

    answers: what it told before, in order. end: refused: by a DecoError; failed: by another error; died: the process
    ended without a word; silent: it went on without one and was killed.
    words: the DecoError's sentence, else what happened, to go behind "it": "dies of signal 4 (Illegal instruction)".
    died_of: number of the signal, else 0.
    """

    end: End
    words: str = ""
    died_of: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        """All answers in one."""
        return {key: value for answer in self.answers for key, value in answer.items()}


def run_job(job: str, limit_s: float, **arguments: Any) -> Report:
    """Run a job of `child.JOBS` in a process of its own. limit_s: longest silence, in seconds, before it is killed."""
    # The same modules as here: -c and -m alike would put the current directory first, with whatever lies in it.
    program = f"import sys; sys.path[:] = {sys.path!r}; from deco_runtime.host.job_child import main; main()"
    with nameless() as complaints:
        process = subprocess.Popen(
            [*PYTHON, "-c", program, job, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        assert process.stdout is not None
        try:
            return _listen(process.stdout, process, limit_s, complaints)
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DEATH_S)


def _listen(stream: IO[bytes], process: subprocess.Popen[bytes], limit_s: float, complaints: IO[bytes]) -> Report:
    answers: list[dict[str, Any]] = []
    try:
        for answer in _lines(stream, limit_s):
            if "end" in answer:
                words = answer["words"] if answer["end"] == "refused" else f"fails with {answer.get('words')}"
                return Report(answer["end"], words if answer["end"] != "done" else "", answers=answers)
            answers.append(answer)
        code = process.wait(limit_s)
    except (queue.Empty, subprocess.TimeoutExpired):
        return Report("silent", f"does not come back within {limit_s:g} s", answers=answers)
    return Report("died", _death(code, complaints), max(0, -code), answers)


def _lines(stream: IO[bytes], limit_s: float) -> Iterator[dict[str, Any]]:
    """The answers until the stream ends. Raises queue.Empty after limit_s seconds without one."""
    lines: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while line := lines.get(timeout=limit_s):
        yield json.loads(line)


def _death(code: int, complaints: IO[bytes]) -> str:
    if code < 0:
        return f"dies of signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    complaints.seek(0)
    said = complaints.read().decode("utf-8", "replace").strip().splitlines()
    return f"ends the program with code {code}" + (f" and the words {said[-1].strip()}" if said else "")
