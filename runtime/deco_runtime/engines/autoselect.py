"""`--engine auto` and `--provider auto`: the fastest on this machine, timed once and kept beside the learned state."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deco_runtime.engines import providers
from deco_runtime.engines.golden import INPUTS, call_of, golden_check
from deco_runtime.engines.registry import by_preference, engines, open_engine
from deco_runtime.errors import BundleError, RuntimeMissingError
from deco_runtime.host.job import run_job
from deco_runtime.host.job_child import Answer
from deco_runtime.host.threads import limit_threads, threads

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle

FILE = "engine.json"
IMAGES = 16
"""Of the timed batch: two micro-batches."""
ROUNDS = 5
LIMIT_S = 120.0
"""Longest silence of a timed engine; a board may take half a minute to load one."""


Choice = tuple[str, "str | None"]
"""The engine to take, and a sentence about it, None where there was nothing to choose from."""


def fastest(
    bundle: Bundle,
    directory: Path,
    graph: str,
    precision: str = "fp32",
    engine: str = "auto",
    check: Callable[[], None] | None = None,
) -> Choice:
    """The engine of this precision to take for the bundle. engine: "auto", or portable, which has only its providers to
    choose from. check: called several times a second; what it raises ends the timing.

    Each usable engine, and portable on each provider that is offered, computes the `graph` that the learner spends its
    time in, in a process of its own; one that dies, hangs or is off its golden values is not taken. The times are kept
    in the state `directory`, and taken again for other hardware, runtimes, bundles or graphs only.
    """
    if (choice := kept(bundle, directory, graph, precision, engine)) is not None:
        return choice
    times = {name: _seconds(bundle.path, name, graph, check) for name in _usable(bundle, precision, engine)}
    _write(directory / FILE, {"machine": _machine(bundle.hash, graph), "seconds": times})
    return _choice(times, engine, graph)


def kept(bundle: Bundle, directory: Path, graph: str, precision: str = "fp32", engine: str = "auto") -> Choice | None:
    """What `fastest` gives without taking times; None where it has to."""
    usable = _usable(bundle, precision, engine)
    if len(usable) < 2:
        return engine, None
    times = _read(directory / FILE, _machine(bundle.hash, graph), usable)
    return None if times is None else _choice(times, engine, graph)


def _choice(times: dict[str, float | None], engine: str, graph: str) -> Choice:
    found = {name: seconds for name, seconds in times.items() if seconds is not None}
    if not found:
        return engine, None
    best = min(found, key=lambda name: found[name])
    told = ", ".join(f"{name} {1e3 * s:.3g} ms" if s is not None else f"{name} fails" for name, s in times.items())
    option = "--engine" if engine == "auto" else "--provider"
    return best, f"{option} auto takes {best}; the {graph.replace('_', ' ')} of {IMAGES} images takes {told}"


def _usable(bundle: Bundle, precision: str, engine: str) -> list[str]:
    """What there is to choose from."""
    if engine == "auto":
        usable = [name for name, reason in by_preference(bundle, precision).items() if reason is None]
    else:
        usable = [engine]
    return usable + providers.timed() if providers.PORTABLE in usable else usable


def time_engine(answer: Answer, bundle: str, engine: str, graph: str, at_most: int) -> None:
    """The job: median seconds of this graph at the deployed weights, on at most so many threads.

    Raises the DecoError of an engine that cannot be opened, BundleError when it is off its golden values, and
    RuntimeMissingError for a provider that leaves the graph to the CPU.
    """
    from deco_runtime.storage.bundle import open_bundle  # and with it OpenCV, which --help must not need

    limit_threads(at_most)
    opened = open_bundle(Path(bundle))
    runner = open_engine(opened, engine)
    if (complaint := golden_check(opened, runner, graph)) is not None:
        raise BundleError(complaint)
    theta, rng = opened.weights(), np.random.default_rng(0)
    labels = rng.integers(0, len(opened.classes), IMAGES)
    given = {
        "images": rng.standard_normal((IMAGES, *opened.image_shape), np.float32),
        "x": rng.standard_normal((IMAGES, *opened.latent), np.float32),
        "t": np.eye(opened.outputs, dtype=np.float32)[labels],
        "u": rng.standard_normal((IMAGES, opened.features), np.float32),
        "v": rng.standard_normal(opened.weight_count, np.float32),
    }
    call, inputs, times = call_of(runner, graph, theta), [given[name] for name in INPUTS[graph]], []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        call(*inputs)
        times.append(time.perf_counter() - begun)
    placed = getattr(runner, "placed", {})
    if graph in placed and placed[graph].idle:
        raise RuntimeMissingError(f"expected {engine} to compute {graph}, but the CPU does; leave the provider out")
    answer(seconds=statistics.median(times[1:]))


def _seconds(path: Path, engine: str, graph: str, check: Callable[[], None] | None) -> float | None:
    job = f"{__name__}:time_engine"
    report = run_job(job, LIMIT_S, check=check, bundle=str(path), engine=engine, graph=graph, at_most=threads())
    return float(report.told["seconds"]) if report.end == "done" else None


def _machine(bundle: str, graph: str) -> dict[str, Any]:
    """What a timing depends on."""
    versions = {}
    for package in sorted({module.PACKAGE for module in engines().values()}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    with contextlib.suppress(Exception):  # a broken one is met, and said, when an engine is opened
        import onnxruntime  # a board maker's build is a package of another name

        versions["onnxruntime"] = onnxruntime.__version__
    given = {"threads": threads(), "bundle": bundle, "graph": graph}
    return {"node": platform.node(), "machine": platform.machine(), **given, **versions}


def _read(path: Path, machine: dict[str, Any], usable: list[str]) -> dict[str, float | None] | None:
    """The times kept, where they are this machine's; a damaged file is as good as none."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        if kept["machine"] != machine or sorted(kept["seconds"]) != sorted(usable):
            return None
        return {name: None if s is None else float(s) for name, s in kept["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write(path: Path, content: dict[str, Any]) -> None:
    """Best effort: where nothing can be written, the next start takes the times again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        os.replace(partial, path)
