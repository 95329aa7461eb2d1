"""One prediction in an engine of TensorRT whose weights are replaced without building it anew.

After TensorRT 10's documentation (docs.nvidia.com/deeplearning/tensorrt, "Refitting an Engine"); this project has not
run it on a GPU so far. Whoever uses it compares its answers first, see `RefittedPredictor`.
"""

from __future__ import annotations

from importlib import metadata, util
from typing import Any

import numpy as np
import onnxruntime

from deco_runtime.engines._engine_cache import EngineCache
from deco_runtime.engines._weights_inside import WeightsInside
from deco_runtime.types import Floats

PLAN = "predict.plan"
OUTPUTS = ("logits", "features")


def lacking() -> str | None:
    """Why no engine can be refitted here, as half a sentence; None when it can be tried."""
    if util.find_spec("tensorrt") is None:
        return "the Python package tensorrt is not installed"
    found = version()
    return None if int(found.partition(".")[0]) >= 10 else f"it needs TensorRT 10 or newer, and {found} is here"


def version() -> str:
    """Of the Python package tensorrt, which brings a library of its own."""
    try:
        return metadata.version("tensorrt")
    except metadata.PackageNotFoundError:  # a board maker's, which is no distribution
        import tensorrt

        return str(tensorrt.__version__)


class RefittedPredictor:
    """The deployed model for one image. It has no thread of its own, and no two threads may use it at once."""

    def __init__(
        self, weights: WeightsInside, theta: Floats, shape: tuple[int, ...], cache: EngineCache | None
    ) -> None:
        """theta: (P,), that of the file. shape: (C, H, W). cache: where the engine is kept. Raises RuntimeError, and
        what TensorRT raises, where none can be built."""
        import tensorrt

        self._trt, self._weights = tensorrt, weights
        self._logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        self._runtime = tensorrt.Runtime(self._logger)
        if cache is not None:
            cache.prepare()
        if cache is not None and cache.complete():
            plan = (cache.folder / PLAN).read_bytes()
        else:
            plan = self._build(weights.with_theta(theta), shape)
            if cache is not None:
                (cache.folder / PLAN).write_bytes(plan)
        self._engine = self._there(self._runtime.deserialize_cuda_engine(plan), "load the engine")
        self._context = self._there(self._engine.create_execution_context(), "make a context")
        self._values = {"x": _on_the_gpu((1, *shape))}
        for name in OUTPUTS:
            self._values[name] = _on_the_gpu(tuple(self._engine.get_tensor_shape(name)))
        for name, value in self._values.items():
            self._context.set_tensor_address(name, value.data_ptr())

    def _build(self, model: bytes, shape: tuple[int, ...]) -> bytes:
        builder = self._trt.Builder(self._logger)
        network = builder.create_network(0)
        parser = self._trt.OnnxParser(network, self._logger)
        if not parser.parse(model):
            raise RuntimeError(f"TensorRT does not read the model: {parser.get_error(0)}")
        network.get_input(0).shape = (1, *shape)
        config = builder.create_builder_config()
        config.set_flag(self._trt.BuilderFlag.REFIT)
        config.clear_flag(self._trt.BuilderFlag.TF32)
        return bytes(self._there(builder.build_serialized_network(network, config), "build the engine"))

    def fit(self, theta: Floats) -> None:
        """Answer with θ (P,) from now on. Raises RuntimeError where some weights do not arrive."""
        model = self._weights.with_theta(theta)  # TensorRT reads it until the end
        refitter = self._trt.Refitter(self._engine, self._logger)
        parser = self._trt.OnnxParserRefitter(refitter, self._logger)
        if not parser.refit_from_bytes(model):
            raise RuntimeError("TensorRT does not take the weights")
        if missing := refitter.get_missing_weights():
            raise RuntimeError(f"TensorRT misses the weights {', '.join(missing[:3])}")
        if not refitter.refit_cuda_engine():
            raise RuntimeError("TensorRT does not refit the engine")

    def predict(self, image: Floats) -> tuple[Floats, Floats]:
        """An image (1, C, H, W) → logits (1, K), features (1, F)."""
        self._values["x"].update_inplace(np.ascontiguousarray(image, np.float32))
        if not self._context.execute_async_v3(0):  # the default stream, which the copies wait for
            raise RuntimeError("TensorRT does not run the engine")
        logits, features = (self._values[name].numpy() for name in OUTPUTS)
        return logits, features

    @staticmethod
    def _there(made: Any, what: str) -> Any:
        if made is None:
            raise RuntimeError(f"TensorRT cannot {what}")
        return made


def _on_the_gpu(shape: tuple[int, ...]) -> Any:
    """A float32 array in the GPU's memory; onnxruntime has one, so no other package is needed."""
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cuda", 0)
