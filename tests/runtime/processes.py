"""Processes that tests start, and what those write while they run."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
