"""OpenVINO's side of the engine: graphs compiled when first used, for batches of one size."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import openvino

from deco_runtime.engine import REPRESENTATION, TRUNK
from deco_runtime.engines._micro_batches import MICRO_BATCH, MicroBatchEngine
from deco_runtime.host.priority import giving_way
from deco_runtime.host.threads import threads
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.storage.bundle_files import Root

WEIGHTS = ("theta", "v")
"""Inputs with one value per weight; all others have one per image."""
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of engine.PRECISIONS."""


def lacks(precision: str) -> str | None:
    """Why this processor cannot compute in bf16 or fp16, as a sentence; None when it can."""
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision.upper() in able:
        return None
    return (
        f"expected a processor that computes in {precision} for --precision {precision}, but OpenVINO finds only "
        f"{', '.join(sorted(able))} here; leave the option out"
    )


class CompiledEngine(MicroBatchEngine):
    """An `Engine` on compiled models.

    The gradient graphs are compiled for MICRO_BATCH images exactly, which is a third faster than for any number. A
    smaller batch is filled up with black images of target 0, whose part in loss and gradients is 0. precision: that of
    the gradients; predictions stay in fp32.
    """

    runtime = f"openvino {openvino.__version__}"

    def __init__(self, name: str, graphs: Mapping[str, Root], precision: str = "fp32") -> None:
        super().__init__(name, graphs)
        self.precision = precision
        self._core = openvino.Core()
        self._requests = threading.local()  # a request holds the values of one run, so each thread has its own

    def _open(self, graph: str, model: bytes) -> openvino.CompiledModel:
        opened = self._core.read_model(model)
        if _of_fixed_size(graph):
            shapes = {i.get_any_name(): i.get_partial_shape() for i in opened.inputs}
            opened.reshape({name: [MICRO_BATCH, *list(s)[1:]] for name, s in shapes.items() if name not in WEIGHTS})
        return self._core.compile_model(
            opened,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads(),
                # Else predictions and learning are bound to the same core, and wait for each other.
                "ENABLE_CPU_PINNING": False,
                # Where the processor has it, bfloat16 would be its default.
                "INFERENCE_PRECISION_HINT": HINTS[self.precision if _of_fixed_size(graph) else "fp32"],
            },
        )

    def _run(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        n = len(inputs["x"])
        if _of_fixed_size(graph):
            inputs = {name: value if name in WEIGHTS else _filled(value) for name, value in inputs.items()}
        requests = self._requests.__dict__
        if graph not in requests:
            requests[graph] = self._opened(graph).create_infer_request()
            # OpenVINO's helping threads serve all graphs, and keep the priority of the thread that first needs them.
            giving_way(lambda: requests[graph].infer(inputs, share_inputs=True, share_outputs=True))
        found = requests[graph].infer(inputs, share_inputs=True, share_outputs=True)
        per_image = graph != "weight_gradient"
        return [found[name][:n] if per_image else found[name] for name in outputs]


def _of_fixed_size(graph: str) -> bool:
    """Predictions come one by one while the camera runs, and must not pay for a whole micro-batch."""
    return graph not in ("predict", REPRESENTATION, TRUNK)


def _filled(value: Floats) -> Floats:
    """value (n ≤ MICRO_BATCH, …) with zeros up to MICRO_BATCH."""
    if len(value) == MICRO_BATCH:
        return np.ascontiguousarray(value)
    full = np.zeros((MICRO_BATCH, *value.shape[1:]), np.float32)
    full[: len(value)] = value
    return full
