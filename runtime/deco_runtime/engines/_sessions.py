"""What the ONNX Runtime engines share: sessions opened when first used, and micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

from deco_runtime.engine import threads
from deco_runtime.errors import BundleError
from deco_runtime.types import Floats

MICRO_BATCH = 8
"""Images per session run: the gradient is a sum, and small batches stay in the cache and keep the memory small."""


class SessionEngine:
    """An `Engine` on onnxruntime sessions, one per graph; safe to call from several threads."""

    def __init__(self, name: str, graphs: dict[str, Path]) -> None:
        """graphs: the file of each of predict, weight_gradient, input_gradient, feature_gradient."""
        self.name = name
        self._graphs = graphs
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._opening = threading.Lock()

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

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        session = self._session("predict")
        parts = [session.run(["logits", "features"], {"theta": theta, "x": x[s]}) for s in _micro_batches(len(x))]
        logits, features = (np.concatenate(p) for p in zip(*parts, strict=True))
        return logits, features

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        session = self._session("weight_gradient")
        loss, gradient = 0.0, np.zeros_like(theta)
        for s in _micro_batches(len(x)):
            part, g = session.run(["loss", "gradient"], {"theta": theta, "x": x[s], "t": t[s]})
            loss += float(part)
            gradient += g
        return loss, gradient

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        return self._image_gradient("input_gradient", theta, x, "t", t)

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        return self._image_gradient("feature_gradient", theta, x, "u", u)

    def _image_gradient(self, graph: str, theta: Floats, x: Floats, name: str, value: Floats) -> Floats:
        session = self._session(graph)
        gradient = np.empty_like(x)
        for s in _micro_batches(len(x)):
            gradient[s] = session.run(["gradient"], {"theta": theta, "x": x[s], name: value[s]})[0]
        return gradient


def _micro_batches(n: int) -> Iterator[slice]:
    """Slices of at most MICRO_BATCH that cover range(n)."""
    for start in range(0, n, MICRO_BATCH):
        yield slice(start, min(start + MICRO_BATCH, n))
