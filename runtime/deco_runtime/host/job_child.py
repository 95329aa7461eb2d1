"""The process of a job that `job` waits for: answers are JSON lines on standard output, the last says how it ended.

Only what the job needs is imported: a module that dies is what the process is for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol


class Answer(Protocol):
    """Sends one JSON object to the waiting process."""

    def __call__(self, **content: Any) -> None: ...


def function_of(name: str) -> Callable[..., Any]:
    """The function named "module:function". Raises ImportError or AttributeError where there is none."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def main() -> None:
    """Run the job that the command line names, with the keywords of the JSON object behind it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the process that waits ends this one
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here and must not fill the disk
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a runtime that prints must not spoil the answers

    def answer(**content: Any) -> None:
        answers.write(json.dumps(content) + "\n")

    from deco_runtime.errors import DecoError

    try:
        function_of(sys.argv[1])(answer, **json.loads(sys.argv[2]))
    except DecoError as error:
        answer(end="refused", words=str(error), exit_code=error.exit_code)
    except Exception as error:  # whatever a broken package raises
        traceback.print_exc()
        said = next(iter(str(error).strip().splitlines()), "")
        answer(end="failed", words=f"{type(error).__name__}: {said}".rstrip(": "))
    else:
        answer(end="done")
    os._exit(0)  # a thread stuck inside OpenCV would abort an interpreter that ends in the usual way
