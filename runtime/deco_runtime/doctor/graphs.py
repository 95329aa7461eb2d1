"""The bundle: every file's hash, then every graph of every engine here on its golden inputs."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from deco_runtime.doctor.findings import Finding, Level
from deco_runtime.host.job import Report, run_job
from deco_runtime.host.job_child import Answer

BUNDLE_S = 120.0
"""Seconds for reading and hashing the bundle."""
GRAPH_S = 180.0
"""Seconds for opening one graph and running it twice; OpenVINO compiles a large one for most of a minute on a board."""
BUILD_S = 1800.0
"""The same where TensorRT first builds an engine."""


def findings(path: Path, broken: Collection[str], provider: str = "auto") -> Iterator[Finding]:
    """Whether the bundle opens, then one finding per engine and graph. broken: modules that cannot be imported.
    provider: of --provider; "auto" tries those that auto would time, after the engines."""
    lacking = sorted({"numpy", "cv2", "onnxruntime"} & set(broken))
    if lacking:
        yield Finding("WARN", "bundle", f"not tried, because it needs {' and '.join(lacking)}; mend that first")
        return
    report = run_job(f"{__name__}:describe", BUNDLE_S, path=str(path), provider=provider)
    if report.end != "done":
        words = f"expected to open the bundle {path}, but that {report.words}; copy it again"
        yield Finding("FAIL", "bundle", report.words if report.end == "refused" else words)
        return
    told = report.told
    words = f"all {told['files']} files are as exported: {told['weights']} weights, {told['classes']} classes"
    yield Finding("OK", "bundle", words, told)
    for graph in told["lacks"]:
        who = "gradient=exact" if graph == "input_gradient_tangent" else "deco+"
        yield Finding("OK", "bundle", f"without the graph {graph}, which only {who} needs")
    if not told["condensed"]:
        yield Finding("OK", "bundle", "without condensed images, which only --recipe paper needs")
    if not told["guard_images"]:
        words = "no labelled images for the guard of updates, which has its other checks left; export with more labels"
        yield Finding("WARN", "bundle", words)
    usable = [engine for engine in told["engines"] if engine not in broken]  # openvino is a module too
    for engine in usable:
        # The first is the one that deco-run takes by itself; without another one it goes on.
        yield from _engine(path, engine, told["graphs"], "FAIL" if engine == usable[0] else "WARN")


def _engine(path: Path, engine: str, graphs: list[str], broken: Level) -> Iterator[Finding]:
    remaining = list(graphs)
    while remaining:  # a graph that kills its process must not keep the others from being tried
        limit = BUILD_S if engine.endswith("/tensorrt") else GRAPH_S
        report = run_job(f"{__name__}:run_graphs", limit, path=str(path), engine=engine, graphs=remaining)
        for answer in report.answers:
            if "starting" not in answer:
                yield _graph(engine, answer, broken)
        if report.end == "done":
            return
        started = [answer["starting"] for answer in report.answers if "starting" in answer]
        if not started:
            words = report.words
            if report.end != "refused":
                words = f"expected to start --engine {engine}, but that {words}; {_advice(engine, report)}"
            yield Finding(broken, f"engine {engine}", words)
            return
        words = f"expected the graph to run, but it {report.words}; {_advice(engine, report)}"
        yield Finding(broken, _check(engine, started[-1]), report.words if report.end == "refused" else words)
        remaining = remaining[remaining.index(started[-1]) + 1 :]


def _graph(engine: str, told: dict[str, Any], broken: Level) -> Finding:
    check = _check(engine, told["graph"])
    if told.get("unchecked"):
        words = "not tried, because this bundle has no golden values for it; export it again to have them"
        return Finding("WARN", check, words)
    spent = f"{told['images']} images in {_milliseconds(told['again_seconds'])}"
    figures = {key: told[key] for key in ("error", "l2", "first_seconds", "again_seconds", "images")}
    error, l2 = told["error"], told["l2"]
    if not told["agrees"]:
        off = f"is off by {error:.1e}, in all by {l2:.1e}" if math.isfinite(error) else "gives what is not finite"
        words = f"expected its golden values to within {told['tolerance']:g}, but it {off}; {_advice(engine)}"
        return Finding(broken, check, words, figures)
    kink = ""
    if error > told["tolerance"]:
        kink = f", {told['why']}: {l2:.1e} in all, fine up to {told['fine']:g}"
    if told["idle"]:
        provider = engine.partition("/")[2]
        words = f"expected {provider} to compute it, but the CPU computes {told['left']}; {_advice(engine)}"
        return Finding("WARN", check, words, figures)
    left = f"; the CPU computes {told['left']}" if told["left"] else ""
    return Finding("OK", check, f"off by {error:.1e}{kink}; {spent}{left}", figures)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"


def _check(engine: str, graph: str) -> str:
    return f"graph {graph} on {engine}"


def _advice(engine: str, report: Report | None = None) -> str:
    """What to do about an engine that computes wrongly or, as reported, not at all."""
    if report is not None and report.died_of == getattr(signal, "SIGKILL", None):
        return "memory has run out, so stop other programs, or export a smaller model"
    if "/" in engine:
        return "see that its libraries, driver and device are there and fit this onnxruntime, or use --provider cpu"
    from deco_runtime.engines.registry import engines

    package = engines()[engine].PACKAGE
    other = ", or use --engine portable" if engine != "portable" else ""
    return f"install another release of {package}{other}"


def describe(answer: Answer, path: str, provider: str) -> None:
    """Job: open the bundle and say what there is to try. Raises BundleError, also where its own recipe could not start,
    and UsageError or RuntimeMissingError for a provider that is not offered here.

    engines: those usable here, the one that deco-run takes first, and behind them those on providers; or, where one
    was asked for, portable on that one alone. lacks: graphs that the bundle may lack, and does.
    condensed: whether it has condensed images.
    size: side of the network's input in pixels.
    state_bytes: what learned state will take on the disk, each of up to three files.
    """
    from deco_runtime.engine import TRUNK
    from deco_runtime.engines import providers
    from deco_runtime.engines.golden import INPUTS
    from deco_runtime.engines.registry import by_preference
    from deco_runtime.learning import registry
    from deco_runtime.learning.buffer import FILE as BUFFER
    from deco_runtime.preprocess import check_method
    from deco_runtime.storage.bundle import open_bundle

    bundle = open_bundle(Path(path))
    check_method(bundle.preprocessing.method)
    kind = registry.learner(bundle.recipe.name)
    registry.started(kind, bundle)
    there = [graph for graph in INPUTS if f"graphs/{graph}.onnx" in bundle.files]
    if provider == "auto":
        usable = [name for name, reason in by_preference(bundle).items() if reason is None] + providers.timed()
    else:
        providers.provider(provider)  # raises
        usable = [providers.on("auto", provider)]
    answer(
        files=len(bundle.files),
        classes=len(bundle.classes),
        weights=bundle.weight_count,
        size=bundle.preprocessing.size,
        guard_images=bundle.guard_images,
        condensed=BUFFER in bundle.files,
        engines=usable,
        graphs=there,
        lacks=[graph for graph in INPUTS if graph not in there and graph != TRUNK],
        state_bytes=registry.state_bytes(kind, bundle),
    )


def run_graphs(answer: Answer, path: str, engine: str, graphs: list[str]) -> None:
    """Job: run these graphs on their golden inputs, one after the other, each announced before it starts."""
    from deco_runtime.engines.golden import FROZEN, KINKED, QUANTIZED, TOLERANCE, compare, read_golden
    from deco_runtime.engines.registry import open_engine
    from deco_runtime.storage.bundle import open_bundle

    bundle = open_bundle(Path(path))
    opened, theta = open_engine(bundle, engine), bundle.weights()
    for graph in graphs:
        answer(starting=graph)
        golden = read_golden(bundle, graph)
        if golden is None:
            answer(graph=graph, unchecked=True)
            continue
        found = compare(opened, graph, theta, golden, bundle.quantized)
        rounded = bundle.quantized and graph in FROZEN
        placed = getattr(opened, "placed", {}).get(graph)  # of an engine on a provider alone
        answer(
            graph=graph,
            error=found.error,
            l2=found.l2,
            agrees=found.agrees,
            images=found.images,
            first_seconds=found.first_s,
            again_seconds=found.again_s,
            tolerance=TOLERANCE,
            why="8 bits rounded elsewhere" if rounded else "a unit at a kink",
            fine=QUANTIZED if rounded else KINKED,
            idle=placed is not None and placed.idle,
            left=placed.left if placed is not None else "",
        )
