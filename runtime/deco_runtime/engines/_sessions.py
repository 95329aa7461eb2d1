"""What the ONNX Runtime engines share: sessions, opened when first used."""

from __future__ import annotations

import threading
from pathlib import Path

import onnxruntime

from deco_runtime.engine import threads
from deco_runtime.engines._micro_batches import MicroBatchEngine
from deco_runtime.errors import BundleError
from deco_runtime.types import Floats


class SessionEngine(MicroBatchEngine):
    """An `Engine` on onnxruntime sessions, one per graph; safe to call from several threads."""

    def __init__(self, name: str, graphs: dict[str, Path]) -> None:
        """graphs: the file of each of predict, weight_gradient, input_gradient, feature_gradient."""
        super().__init__(name, self._run_session)
        self._graphs = graphs
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._opening = threading.Lock()

    def _run_session(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        values: list[Floats] = self._session(graph).run(outputs, inputs)
        return values

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        with self._opening:
            if graph not in self._sessions:
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = threads()
                options.inter_op_num_threads = 1
                options.log_severity_level = 3
                # A pattern plans one block for all values of a run; without it the peak is a third lower.
                options.enable_mem_pattern = False
                # Spinning threads burn the battery and the core that the camera needs.
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                try:
                    self._sessions[graph] = onnxruntime.InferenceSession(
                        str(self._graphs[graph]), options, providers=["CPUExecutionProvider"]
                    )
                except Exception as error:  # onnxruntime raises its own classes, which differ between versions
                    raise BundleError(
                        f"expected a graph that onnxruntime {onnxruntime.__version__} can load, but "
                        f"{self._graphs[graph]} fails with: {str(error).splitlines()[0]}; export the bundle again"
                    ) from error
            return self._sessions[graph]
