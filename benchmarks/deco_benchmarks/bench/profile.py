"""Where the time of a learning graph goes, operator by operator, as the runtimes measure it themselves."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.engines._micro_batches import MICRO_BATCH
from deco_runtime.engines.portable import files
from deco_runtime.errors import UsageError
from deco_runtime.host.threads import threads
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats

from deco_benchmarks.bench import board

RUNS = 30
"""The shortest of so many runs counts for each operator: what other work adds is left out."""
WEIGHTS = ("theta", "v")

Times = dict[str, dict[str, list[float]]]
"""Milliseconds of each run, by kind of operator and by node."""


def measure(path: Path, graph: str, engine: str) -> dict[str, Any]:
    """`operators`: for each kind its `nodes`, `milliseconds` in one run on a micro-batch, and their `share` of the
    sum; the costliest first. engine: portable or openvino.

    Raises what `open_bundle` raises, and UsageError for a graph that the bundle lacks.
    """
    bundle = open_bundle(path)
    if graph not in (known := files(bundle.root)) or f"graphs/{graph}.onnx" not in bundle.files:
        raise UsageError(f"expected --graph to be one of {', '.join(sorted(known))} that {path} has, found {graph!r}")
    model = known[graph].read_bytes()
    times = _onnxruntime(model, bundle) if engine == "portable" else _openvino(model, bundle)
    spent = {kind: sum(min(runs) for runs in nodes.values()) for kind, nodes in times.items()}
    whole = sum(spent.values())
    operators = [
        {"operator": kind, "nodes": len(times[kind]), "milliseconds": ms, "share": ms / whole}
        for kind, ms in sorted(spent.items(), key=lambda item: -item[1])
    ]
    about = {"graph": graph, "engine": engine, "micro_batch": MICRO_BATCH, "threads": threads()}
    return {
        "kind": "deco-bench-profile",
        **about,
        "milliseconds": whole,
        "operators": operators,
        "board": board.identify(),
    }


def _inputs(shapes: dict[str, list[Any]], bundle: Bundle) -> dict[str, Floats]:
    """Noise for each input; for θ, where the graph has not its own, the bundle's."""
    rng = np.random.default_rng(0)
    sizes = {name: [d if isinstance(d, int) else MICRO_BATCH for d in shape] for name, shape in shapes.items()}
    noise = {name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in sizes.items()}
    return noise | ({"theta": bundle.weights()} if "theta" in noise else {})


def _onnxruntime(model: bytes, bundle: Bundle) -> Times:
    import onnxruntime
    from deco_runtime.engines._sessions import session_options

    times: Times = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as scratch:
        options = session_options()
        options.enable_profiling, options.profile_file_prefix = True, str(Path(scratch) / "profile")
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        inputs = _inputs({i.name: i.shape for i in session.get_inputs()}, bundle)
        for _ in range(RUNS):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["args"]["op_name"]][event["name"]].append(event["dur"] / 1e3)
    return times


def _openvino(model: bytes, bundle: Bundle) -> Times:
    import openvino

    core = openvino.Core()
    opened = core.read_model(model)
    shapes = {i.get_any_name(): i.get_partial_shape() for i in opened.inputs}
    opened.reshape({name: [MICRO_BATCH, *list(s)[1:]] for name, s in shapes.items() if name not in WEIGHTS})
    settings = {"INFERENCE_NUM_THREADS": threads(), "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(opened, "CPU", {**settings, "PERF_COUNT": True}).create_infer_request()
    inputs = _inputs({i.get_any_name(): list(i.shape) for i in opened.inputs}, bundle)
    times: Times = defaultdict(lambda: defaultdict(list))
    for _ in range(RUNS):
        request.infer(inputs, share_inputs=True)
        for node in request.profiling_info:
            if node.status == node.Status.EXECUTED:
                times[f"{node.node_type} ({node.exec_type})"][node.node_name].append(
                    node.real_time.total_seconds() * 1e3
                )
    return times
