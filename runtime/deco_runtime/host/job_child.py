"""A job in a process of its own: answers are JSON lines on standard output, the last one says how it ended.

Only what the job needs is imported: a module that dies is what the process is for.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import import_module
from typing import Any, Protocol

JOBS = {
    "import": "deco_runtime.doctor.pieces:import_piece",
    "bundle": "deco_runtime.doctor.graphs:describe",
    "graphs": "deco_runtime.doctor.graphs:run_graphs",
    "camera": "deco_runtime.doctor.watch:watch",
    "disk": "deco_runtime.doctor.disk:write",
    "engine": "deco_runtime.engines.autoselect:time_engine",
}


class Answer(Protocol):
    """Sends one JSON object to the waiting process."""

    def __call__(self, **content: Any) -> None: ...


def main() -> None:
    """Run the job that the command line names, with the keywords of the JSON object behind it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here and must not fill the disk
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a runtime that prints must not spoil the answers

    def answer(**content: Any) -> None:
        answers.write(json.dumps(content) + "\n")

    from deco_runtime.errors import DecoError

    module, _, function = JOBS[sys.argv[1]].partition(":")
    try:
        getattr(import_module(module), function)(answer, **json.loads(sys.argv[2]))
    except DecoError as error:
        answer(end="refused", words=str(error))
    except Exception as error:  # whatever a broken package raises
        said = next(iter(str(error).strip().splitlines()), "")
        answer(end="failed", words=f"{type(error).__name__}: {said}".rstrip(": "))
    else:
        answer(end="done")
    os._exit(0)  # a thread stuck inside OpenCV would abort an interpreter that ends in the usual way
