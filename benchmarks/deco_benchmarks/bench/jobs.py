"""Measurements in processes of their own: which there are, and both ends of one.

A measurement is a function (bundle path, progress, **arguments) → JSON object. Only what it needs is imported, since
the start and the memory of its process may be what is measured.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deco_runtime.errors import DecoError
from deco_runtime.host.job import Report, run_job
from deco_runtime.host.job_child import Answer, function_of

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


def measure_in_process(job: str, bundle: Path, progress: Progress, **arguments: Any) -> dict[str, Any]:
    """The result of a measurement of JOBS, with the monotonic time at which its process was started as `started`, and
    the `modules` that it has loaded.

    Raises the DecoError that the measurement raised, and one of its own when the process ends without a result.
    """
    found: dict[str, Any] = {}

    def hear(answer: dict[str, Any]) -> None:
        if "progress" in answer:
            progress(*answer["progress"])
        else:
            found.update(answer["result"])

    found["started"] = time.monotonic()
    report = run_job(f"{__name__}:perform", None, hear, job=job, bundle=str(bundle), arguments=arguments)
    if report.error is not None:
        raise report.error
    if report.end != "done":
        raise DecoError(
            f"expected the measurement {job!r} to end, but its process {_end(report)}; "
            "measure with --quick, another --engine or a smaller bundle"
        )
    return found


def perform(answer: Answer, job: str, bundle: str, arguments: dict[str, Any]) -> None:
    """Job: take the measurement of JOBS in this process. Answers its progress and, at last, its result.

    Raises what the measurement raises.
    """
    before = set(sys.modules)
    if "torch" not in job:
        # The training build of onnxruntime imports torch where it finds it; no device has it.
        sys.modules["torch"] = None  # type: ignore[assignment]
    result = function_of(JOBS[job])(Path(bundle), lambda *stage: answer(progress=stage), **arguments)
    loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and name not in before}
    answer(result={**result, "modules": sorted(loaded)})


def _end(report: Report) -> str:
    """How a process ended that has no result, and the last line of what it wrote to stderr."""
    if report.died_of:
        out_of_memory = report.died_of == getattr(signal, "SIGKILL", None)
        return f"was ended by signal {report.died_of}{', as when memory runs out' if out_of_memory else ''}"
    return f"failed with: {report.complaint}" if report.complaint else f"ended with code {report.code}"
