"""A measurement in a process of its own: `python -m deco_benchmarks.bench.child JOB ARGUMENTS`, JSON lines as answer.

A job is a function (bundle path, progress, **arguments) → JSON object. Only what the job needs is imported, since its
start and its memory may be what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

JOBS = {
    "engines": "deco_benchmarks.bench.processes:usable_engines",
    "start": "deco_benchmarks.bench.processes:start",
    "memory": "deco_benchmarks.bench.processes:memory",
    "stages": "deco_benchmarks.bench.stages:measure",
    "live": "deco_benchmarks.bench.live:measure",
    "growth": "deco_benchmarks.bench.growth:segment_of_one_class",
    "sustained": "deco_benchmarks.bench.sustained:measure",
    "torch-start": "deco_benchmarks.bench.torch_side:start",
    "torch-memory": "deco_benchmarks.bench.torch_side:memory",
    "against-torch": "deco_benchmarks.bench.against:measure",
}


def main() -> None:
    """Run the job that the command line names. The result has its `modules` too: those that the job has loaded."""
    before = set(sys.modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the process that waits ends this one
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a runtime that prints must not spoil the answers
    job, arguments = sys.argv[1], json.loads(sys.argv[2])
    if "torch" not in job:
        # The training build of onnxruntime imports torch where it finds it; no device has it.
        sys.modules["torch"] = None  # type: ignore[assignment]

    def answer(**content: Any) -> None:
        answers.write(json.dumps(content) + "\n")

    from deco_runtime.errors import DecoError

    module, _, function = JOBS[job].partition(":")
    try:
        call = getattr(import_module(module), function)
        path = Path(arguments.pop("bundle"))
        result = call(path, lambda *stage: answer(progress=stage), **arguments)
    except DecoError as error:
        answer(error=str(error), exit_code=error.exit_code)
    else:
        loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and name not in before}
        answer(result={**result, "modules": sorted(loaded)})


if __name__ == "__main__":
    main()
