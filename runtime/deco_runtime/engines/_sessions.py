"""What the ONNX Runtime engines share: one session per graph."""

from __future__ import annotations

import onnxruntime

from deco_runtime.engines._micro_batches import MicroBatchEngine
from deco_runtime.host.threads import threads
from deco_runtime.types import Floats


class SessionEngine(MicroBatchEngine):
    """An `Engine` on onnxruntime sessions."""

    runtime = f"onnxruntime {onnxruntime.__version__}"

    def _open(self, graph: str, model: bytes) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])

    def _run(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        values: list[Floats] = self._opened(graph).run(outputs, inputs)
        return values


def session_options() -> onnxruntime.SessionOptions:
    """The settings of every session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A pattern plans one block for all values of a run; without it the peak is a third lower.
    options.enable_mem_pattern = False
    # Spinning threads burn the battery and the core that the camera needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
