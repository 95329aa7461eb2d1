"""The portable engine with TensorRT for the graphs that hold their weights; a GPU's CUDA, or the CPU, for the others.

Not run on a GPU by this project so far: docs/guide/providers.md says what was tested, and where.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from deco_runtime.engine import REPRESENTATION, TRUNK
from deco_runtime.engines._engine_cache import EngineCache, facts
from deco_runtime.engines._predictor import Predictor
from deco_runtime.engines._provider_sessions import ProviderEngine
from deco_runtime.engines._refit import RefittedPredictor, lacking, version
from deco_runtime.engines._weights_inside import WeightsInside
from deco_runtime.engines.portable import files
from deco_runtime.engines.providers import PROVIDERS, Provider, offered
from deco_runtime.errors import first_line
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle

BUILT = (REPRESENTATION, TRUNK)
"""Graphs with constant weights. Where θ is an input, TensorRT has nothing to fold into its kernels."""
PREDICT, WHOLE = "predict", "inference.onnx"
"""θ is an input of the first; the second is the same model with θ₀ inside, in the place of which another may be put."""
BATCH = "N"
"""The free dimension of all graphs. It is 1 here: an engine for one shape is built once, and never again in a run."""


def plan(half: bool, cache: EngineCache | None) -> dict[str, str]:
    """The provider's options. half: compute in float16. cache: where engines are kept, None for nowhere."""
    options = {"device_id": "0", "trt_fp16_enable": str(int(half))}
    if cache is not None:
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(cache.folder),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(cache.timing),
        }
    return options


class TensorRTEngine(ProviderEngine):
    """An `Engine` whose `represent` and `encode` run in TensorRT, one image at a time.

    answers: "fp16" where these may compute in float16; gradients stay in float32. directory: where engines are kept,
    None to build them at every start.
    """

    def __init__(self, name: str, bundle: Bundle, provider: Provider, answers: str, directory: Path | None) -> None:
        super().__init__(name, files(bundle.root), provider)
        self._bundle = bundle
        self._predictor: Predictor | None = None
        self.answers = answers
        self._directory = directory
        self._caches: dict[str, EngineCache] = {}
        # Ten bits of a mantissa in place of 23, on GPUs since Ampere; TensorRT's provider has no option for it.
        os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

    def to_build(self, graphs: tuple[str, ...]) -> list[str]:
        """Those of these graphs whose engine has to be built first, which takes minutes."""
        there = {graph: self._graphs[graph] for graph in BUILT if graph in graphs and self._graphs[graph].is_file()}
        if PREDICT in graphs and self._cannot_refit() is None:
            there[PREDICT] = self._bundle.root.joinpath(WHOLE)
        caches = {graph: self._cache(graph, file.read_bytes()) for graph, file in there.items()}
        return [graph for graph, cache in caches.items() if cache is None or not cache.complete()]

    def prepare(self, graphs: tuple[str, ...]) -> str | None:
        """Have `predict`, if it is among these graphs, answer single images in an engine that is refitted to each new
        θ. Returns why it does not, as a sentence; None where it does, or is not asked for."""
        if PREDICT not in graphs:
            return None
        reason = self._cannot_refit()
        if reason is None:
            try:
                self._predictor = self._refitted()
            except Exception as error:  # TensorRT's own, and a disk's
                reason = first_line(error)
        return f"predict computes on CUDA or the CPU, not in an engine that is refitted: {reason}" if reason else None

    def _cannot_refit(self) -> str | None:
        if self._bundle.trunk:
            return "behind a frozen trunk it is small"  # and inference.onnx takes images, not latents
        if "cuda" not in offered():
            return "the installed onnxruntime does not offer cuda"
        return lacking()

    def _refitted(self) -> Predictor:
        """The engine, once its answers at θ₀ and at another θ are those of the usual graph. Raises what it likes."""
        model = self._bundle.root.joinpath(WHOLE).read_bytes()
        theta, cache = self._bundle.weights(), self._cache(PREDICT, model)
        weights = WeightsInside(model, theta, [each.size for each in self._bundle.parameters])
        made = Predictor(RefittedPredictor(weights, theta, self._bundle.image_shape, cache), super().predict)
        made.check(theta, self._bundle.image_shape)
        if cache is not None:
            cache.finish()
        return made

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        return self._predictor(theta, x) if self._predictor is not None else super().predict(theta, x)

    def _cache(self, graph: str, model: bytes) -> EngineCache | None:
        found = facts()
        if self._directory is None or not all(found.values()):  # what is not known may change unnoticed
            return None
        given = {"onnxruntime": onnxruntime.__version__, **found, **plan(self.answers == "fp16", None)}
        if graph == PREDICT:
            given["package"] = version()
        return EngineCache(self._directory, graph, model, given)

    def _providers(self, graph: str, model: bytes) -> list[tuple[str, dict[str, str]]]:
        behind = [(PROVIDERS["cuda"].full, dict(PROVIDERS["cuda"].options))] if "cuda" in offered() else []
        if graph not in BUILT:
            return behind
        cache = self._cache(graph, model)
        try:
            if cache is not None:
                cache.prepare()
                self._caches[graph] = cache
        except OSError:  # built at every start, then
            cache = None
        return [(self._provider.full, plan(self.answers == "fp16", cache)), *behind]

    def _session_options(self, graph: str) -> onnxruntime.SessionOptions:
        options = super()._session_options(graph)
        if graph in BUILT:
            options.add_free_dimension_override_by_name(BATCH, 1)
        return options

    def _run(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        if graph not in BUILT:
            return super()._run(graph, outputs, inputs)
        parts = [super(TensorRTEngine, self)._run(graph, outputs, {"x": image[None]}) for image in inputs["x"]]
        values = [np.concatenate(part) for part in zip(*parts, strict=True)]
        if (cache := self._caches.pop(graph, None)) is not None:
            if not self.placed[graph].idle:
                cache.finish()
            elif self.placed[graph].reason:
                cache.forget_timing()
        return values
