"""OpenVINO's side of the engine: graphs compiled when first used, for batches of one size."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import openvino

from deco_runtime.engine import REPRESENTATION, threads
from deco_runtime.engines._micro_batches import MICRO_BATCH, MicroBatchEngine
from deco_runtime.errors import BundleError
from deco_runtime.types import Floats

WEIGHTS = ("theta", "v")
"""Inputs with one value per weight; all others have one per image."""


class CompiledEngine(MicroBatchEngine):
    """An `Engine` on compiled models, one per graph; safe to call from several threads.

    The gradient graphs are compiled for MICRO_BATCH images exactly, which is a third faster than for any number. A
    smaller batch is filled up with black images of target 0, whose part in loss and gradients is 0.
    """

    def __init__(self, name: str, graphs: dict[str, Path]) -> None:
        """graphs: the file of each of predict, weight_gradient, input_gradient, feature_gradient."""
        super().__init__(name, self._run_compiled)
        self._graphs = graphs
        self._core = openvino.Core()
        self._compiled: dict[str, openvino.CompiledModel] = {}
        self._compiling = threading.Lock()
        self._mine = threading.local()  # a request holds the values of one run, so each thread has its own

    def _run_compiled(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        n = len(inputs["x"])
        if _of_fixed_size(graph):
            inputs = {name: value if name in WEIGHTS else _filled(value) for name, value in inputs.items()}
        requests = self._mine.__dict__
        if graph not in requests:
            requests[graph] = self._model(graph).create_infer_request()
        found = requests[graph].infer(inputs, share_inputs=True, share_outputs=True)
        per_image = graph != "weight_gradient"
        return [found[name][:n] if per_image else found[name] for name in outputs]

    def _model(self, graph: str) -> openvino.CompiledModel:
        with self._compiling:
            if graph not in self._compiled:
                try:
                    model = self._core.read_model(str(self._graphs[graph]))
                    if _of_fixed_size(graph):
                        shapes = {i.get_any_name(): i.get_partial_shape() for i in model.inputs}
                        model.reshape(
                            {name: [MICRO_BATCH, *list(s)[1:]] for name, s in shapes.items() if name not in WEIGHTS}
                        )
                    self._compiled[graph] = self._core.compile_model(
                        model,
                        "CPU",
                        {
                            "PERFORMANCE_HINT": "LATENCY",
                            "INFERENCE_NUM_THREADS": threads(),
                            # Where the processor has it, bfloat16 is its default; eq:opt4 divides by 2ε.
                            "INFERENCE_PRECISION_HINT": "f32",
                        },
                    )
                except Exception as error:  # openvino raises RuntimeError and classes of its own
                    raise BundleError(
                        f"expected a graph that openvino {openvino.__version__} can load, but "
                        f"{self._graphs[graph]} fails with: {str(error).splitlines()[0]}; export the bundle again"
                    ) from error
            return self._compiled[graph]


def _of_fixed_size(graph: str) -> bool:
    """Predictions come one by one while the camera runs, and must not pay for a whole micro-batch."""
    return graph not in ("predict", REPRESENTATION)


def _filled(value: Floats) -> Floats:
    """value (n ≤ MICRO_BATCH, …) with zeros up to MICRO_BATCH."""
    if len(value) == MICRO_BATCH:
        return np.ascontiguousarray(value)
    full = np.zeros((MICRO_BATCH, *value.shape[1:]), np.float32)
    full[: len(value)] = value
    return full
