"""Work that no clock is needed for: operators and bytes of each learning graph, and how often a segment runs it.

The same on every machine with the same onnxruntime, so a test can hold it (tests/benchmarks/counts.json).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
from deco_runtime.engine import EXACT, REPRESENTATION
from deco_runtime.engines._micro_batches import MICRO_BATCH
from deco_runtime.engines._sessions import session_options
from deco_runtime.engines.portable import files
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning.buffer import FILE as BUFFER
from deco_runtime.storage.bundle import Bundle, open_bundle

from deco_benchmarks.bench.workload import Work, work_on

GRAPHS = ("predict", "weight_gradient", "input_gradient", "feature_gradient", EXACT, REPRESENTATION)
ENGINE = "portable"


def measure(path: Path) -> dict[str, Any]:
    """Per graph `operators` (kernels of each kind in one run on a micro-batch, after those of ONNX Runtime's
    optimisations that do not depend on the processor), their sum `kernels` and the `bytes` they write; per piece of the
    learner's work, by each recipe that the bundle has what it takes for, the `runs` of each graph.

    Raises what `open_bundle` and `open_engine` raise.
    """
    bundle = open_bundle(path)
    engine = open_engine(bundle, ENGINE)
    present = [name for name in GRAPHS if f"graphs/{name}.onnx" in bundle.files]
    return {
        "onnxruntime": onnxruntime.__version__,
        "micro_batch": MICRO_BATCH,
        "graphs": {name: _graph(bundle, name) for name in present},
        "runs": (_of_the_paper(work_on(bundle, engine, "paper")) if BUFFER in bundle.files else {})
        | (_of_deco_plus(work_on(bundle, engine, "deco+")) if REPRESENTATION in present else {}),
    }


def _of_the_paper(work: Work) -> dict[str, dict[str, int]]:
    return {
        "one frame": _runs(work, lambda: work.learner().predict(work.frame)),
        "one segment": _runs(work, lambda: work.learner().learn(work.segment)),
        "one epoch of an update": _runs(work, lambda: work.learner(retrain_epochs=1).retrain()),
    }


def _of_deco_plus(work: Work) -> dict[str, dict[str, int]]:
    learner = work.learner()
    return {
        "one frame, deco+": _runs(work, lambda: learner.predict(work.frame)),
        "one segment and update, deco+": _runs(work, learner.step(work.segment)[1]),
    }


def _graph(bundle: Bundle, name: str) -> dict[str, Any]:
    operators: Counter[str] = Counter()
    written = 0
    with tempfile.TemporaryDirectory() as scratch:
        options = session_options()
        # The last level lays channels out in blocks as wide as this processor's registers.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.enable_profiling, options.profile_file_prefix = True, str(Path(scratch) / "profile")
        model = files(bundle.root)[name].read_bytes()
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        sizes = {i.name: [d if isinstance(d, int) else MICRO_BATCH for d in i.shape] for i in session.get_inputs()}
        session.run(None, {key: np.zeros(shape, np.float32) for key, shape in sizes.items()})
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operators[event["args"]["op_name"]] += 1
            written += int(event["args"]["output_size"])
    return {"kernels": operators.total(), "bytes": written, "operators": dict(sorted(operators.items()))}


def _runs(work: Work, call: Callable[[], object]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    run = work.engine._run  # type: ignore[attr-defined]

    def counting(graph: str, *arguments: Any) -> Any:
        counted[graph] += 1
        return run(graph, *arguments)

    with mock.patch.object(work.engine, "_run", counting):
        call()
    return dict(sorted(counted.items()))
