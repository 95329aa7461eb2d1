"""The other end of `child.py`: starts a measurement's process and waits for what it answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from deco_runtime.errors import DecoError
from deco_runtime.host.scratch import nameless

from deco_benchmarks.bench.child import Progress


def measure_in_process(job: str, bundle: Path, progress: Progress, **arguments: Any) -> dict[str, Any]:
    """The result of the job, with the monotonic time at which its process was started as `started`.

    Raises the DecoError that the job raised, and one of its own when the process ends without an answer.
    """
    content = json.dumps({"bundle": str(bundle), **arguments})
    with nameless() as complaints:
        started = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "deco_benchmarks.bench.child", job, content],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    answer = json.loads(line)
                    if "result" in answer:
                        return {**answer["result"], "started": started}
                    if "error" in answer:
                        raise _error(answer["exit_code"])(answer["error"])
                    progress(*answer["progress"])
                code = process.wait()
            finally:
                process.kill()  # when this one is interrupted; nothing is left to do after an answer
        raise DecoError(
            f"expected the measurement {job!r} to end, but its process {_end(code, complaints)}; "
            "measure with --quick, another --engine or a smaller bundle"
        )


def _error(code: int) -> type[DecoError]:
    return next((kind for kind in DecoError.__subclasses__() if kind.exit_code == code), DecoError)


def _end(code: int, complaints: IO[bytes]) -> str:
    """How a process ended, and the last line of what it wrote to stderr."""
    if code < 0:
        return f"was ended by signal {-code}{', as when memory runs out' if code == -signal.SIGKILL else ''}"
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").strip().splitlines()
    return f"failed with: {lines[-1].strip()}" if lines else f"ended with code {code}"
