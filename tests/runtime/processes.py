"""Commands that tests run: processes that they start, what those write while they run, and runs without a process."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from deco_runtime.start import ENDING, IGNORED


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the test."""
    process = subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def events(path: Path, kind: str | None = None, **figures: Any) -> list[dict[str, Any]]:
    """The events so far of this kind with these figures; the file may not be there yet, nor its last line whole."""
    text = path.read_text("utf-8") if path.exists() else ""  # nothing removes it
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [event for event in found if kind in (None, event["event"]) and figures.items() <= event.items()]


def wait_for(path: Path, kind: str, at_least: int = 1, **figures: Any) -> list[dict[str, Any]]:
    """Such events in the file of a running process, once there are so many of them."""
    limit = time.monotonic() + 60
    while len(found := events(path, kind, **figures)) < at_least:
        assert time.monotonic() < limit, f"fewer than {at_least} of {kind} {figures} in {path}"
        time.sleep(0.02)
    return found


def here(main: Callable[[], None], *arguments: object) -> subprocess.CompletedProcess[str]:
    """What a command that ends by itself does, in this process: one of its own takes seconds to import torch. For what
    does not depend on the process; each command has tests too that start one."""
    out, said = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (*ENDING, *IGNORED)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(said):
        patch.setattr(sys, "argv", ["command", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), said.getvalue())
