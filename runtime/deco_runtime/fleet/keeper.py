"""Keeps a program going that may end: its server, or its connection to one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from deco_runtime.errors import StateError

NODE = {name: f"DECO_FLEET_{name.upper()}" for name in ("state", "bundle", "least", "noise")}
"""Variables of the environment that say to a device's half which device it is."""

LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0
"""What went on for so long may end once without being waited for longer each time."""
DEATH_S = 10.0
LOG = "flower.log"


def kept_going(
    once: Callable[[Callable[[], bool]], str | None], stopped: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Call it again and again, with pauses that grow while it soon ends, until `stopped`.

    once: runs until something ends, and says in a clause what; None where all is done.
    """
    pause = 1.0
    while not stopped():
        began = time.monotonic()
        why = once(stopped)
        if why is None or stopped():
            return
        pause = 1.0 if time.monotonic() - began > STEADY_S else pause
        say(f"warning: {why}; starts again in {pause:.0f} s")
        end = time.monotonic() + pause
        while time.monotonic() < end and not stopped():
            time.sleep(0.1)
        pause = min(2 * pause, LONGEST_PAUSE_S)


@contextlib.contextmanager
def going(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program, ended when this is. log: file for what it writes; the one before is kept. Raises StateError where it
    cannot be written."""
    with _opened(log) as file:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(DEATH_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _opened(path: Path) -> IO[bytes]:
    try:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, path.with_suffix(".previous.log"))
        return path.open("wb")
    except OSError as error:
        raise StateError(
            f"expected to write {path}, but the system says: {error.strerror}; free space, or choose another --state"
        ) from error


def last_words(text: str) -> str:
    """Of what a program of Flower's wrote: why it ended, or its last line of an error, or its last; without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", "", text)
    lines = [" ".join(line.split()) for line in plain.splitlines() if re.search(r"\w", line)]
    ends = [i for i, line in enumerate(lines) if "Exit Code:" in line or line == "Error"]
    errors = lines[ends[-1] + 1 :][:2] if ends else [line for line in lines if "error" in line.lower()][-1:]
    return " ".join(errors or lines[-1:])[:300].rstrip(".") or "it says nothing"


def said(log: Path) -> str:
    """The last words in a log, and where that is."""
    with contextlib.suppress(OSError):
        return f"{last_words(log.read_bytes()[-10000:].decode(errors='replace'))} (see {log})"
    return f"see {log}"


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, however that is; where it can. Whoever asks it to end
    nicely may wait for ever, and what it starts ends with it, as Flower has it."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
