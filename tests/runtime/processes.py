"""Processes that tests start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


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
