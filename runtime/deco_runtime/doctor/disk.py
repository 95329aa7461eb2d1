"""The disk that learned state goes to: its free space, and whether and how fast it takes a file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deco_runtime.doctor.findings import Finding
from deco_runtime.host.job import run_job
from deco_runtime.host.job_child import Answer

WRITE_S = 60.0
SLOW_S = 2.0
"""A save waits for the disk, and a learner that saves for longer drops segments."""
SPARE_BYTES = 50 << 20
"""Left free beside the state: events and the system's own logs grow on the same card."""


def findings(state: Path, state_bytes: int) -> Iterator[Finding]:
    """state: the directory of learned state, which need not exist. state_bytes: of one file of it, 0 if unknown."""
    directory = state.absolute()
    while not os.path.isdir(directory) and directory != directory.parent:
        if os.path.exists(directory):
            words = f"expected a place for learned state at {state}, but {directory} is a file; move it away"
            yield Finding("FAIL", "disk", words)
            return
        directory = directory.parent
    report = run_job(f"{__name__}:write", WRITE_S, directory=str(directory))
    if report.end != "done" or "refusal" in report.told:
        said = report.told.get("refusal", f"writing {report.words}")
        words = f"expected to write in {directory}, where learned state goes, but {said}; "
        yield Finding("FAIL", "disk", words + "give this user the right to, free space, or replace the card")
        return
    free, seconds = report.told["free"], report.told["seconds"]
    figures = {"directory": str(directory), "free_bytes": free, "fsync_seconds": round(seconds, 4)}
    needed = 3 * state_bytes
    where = f"{free >> 20} MiB free in {directory}, 1 MiB on the disk in {seconds * 1000:.3g} ms"
    if free < needed:
        words = (
            f"expected {-(-needed >> 20)} MiB free for learned state in {directory}, but found {free >> 20}; free some"
        )
        yield Finding("FAIL", "disk", words, figures)
    elif free < needed + SPARE_BYTES:
        words = f"expected {(needed + SPARE_BYTES) >> 20} MiB free in {directory}, but found {free >> 20}; free some"
        yield Finding("WARN", "disk", words, figures)
    elif seconds > SLOW_S:
        words = f"expected 1 MiB on the disk within {SLOW_S:g} s, but found {where}; replace the card if it is worn"
        yield Finding("WARN", "disk", words, figures)
    else:
        yield Finding("OK", "disk", where, figures)


def write(answer: Answer, directory: str) -> None:
    """Job: write a temporary file of 1 MiB, wait until it is on the disk, remove it. Answers seconds and free bytes."""
    block = os.urandom(1 << 20)
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".deco-doctor-") as file:
            started = time.monotonic()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            answer(seconds=time.monotonic() - started)
        answer(free=shutil.disk_usage(directory).free)
    except OSError as error:
        answer(refusal=f"the system says: {error.strerror}")
