"""What all engines share: graphs opened when first used, and batches cut into micro-batches."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deco_runtime.engine import REPRESENTATION, TRUNK
from deco_runtime.errors import BundleError, first_line
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.storage.bundle_files import Root

MICRO_BATCH = 10
"""Images per run of a graph: the gradient is a sum, and small batches stay in the cache and keep the memory small. As
many as the paper condenses of a class, so that these are one run: OpenVINO fills every batch up to this size."""


class MicroBatchEngine(ABC):
    """An `Engine` on a runtime that opens a graph's file and runs it; safe to call from several threads."""

    precision = "fp32"
    runtime: str
    """Name and version of the runtime, for what is said of a graph that it cannot load."""

    def __init__(self, name: str, graphs: Mapping[str, Root]) -> None:
        """graphs: the file of each graph, whether it is there or not."""
        self.name, self._graphs = name, graphs
        self._open_graphs: dict[str, Any] = {}
        self._opening = threading.Lock()

    @abstractmethod
    def _open(self, graph: str, model: bytes) -> Any:
        """What the runtime makes of a graph's file, of these bytes; raises whatever it likes."""

    @abstractmethod
    def _run(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        """Values of these outputs for at most MICRO_BATCH images.

        The arrays may be overwritten by the next run in the same thread.
        """

    def _opened(self, graph: str) -> Any:
        """The open graph. Raises BundleError when the runtime cannot load it."""
        with self._opening:
            if graph not in self._open_graphs:
                file = self._graphs[graph]
                try:
                    self._open_graphs[graph] = self._open(graph, file.read_bytes())
                except Exception as error:  # the runtimes raise classes of their own, which differ between versions
                    raise BundleError(
                        f"expected a graph that {self.runtime} can load, but {file} fails with: {first_line(error)}; "
                        "export the bundle again"
                    ) from error
            return self._open_graphs[graph]

    def encode(self, images: Floats) -> Floats:
        if TRUNK not in self._graphs or not self._graphs[TRUNK].is_file():
            return images
        return self._per_image(TRUNK, ("latents",), {}, images)[0]

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        logits, features = self._per_image("predict", ("logits", "features"), {"theta": theta}, x)
        return logits, features

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        loss, gradient = 0.0, np.zeros_like(theta)
        for s in _micro_batches(len(x)):
            part, g = self._run("weight_gradient", ("loss", "gradient"), {"theta": theta, "x": x[s], "t": t[s]})
            loss += float(part)
            gradient += g
        return loss, gradient

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        return self._image_gradient("input_gradient", {"theta": theta}, {"x": x, "t": t})

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        return self._image_gradient("feature_gradient", {"theta": theta}, {"x": x, "u": u})

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        return self._image_gradient("input_gradient_tangent", {"theta": theta, "v": v}, {"x": x, "t": t})

    def represent(self, images: Floats) -> tuple[Floats, Floats]:
        phi, logits = self._per_image(REPRESENTATION, (REPRESENTATION, "votes"), {}, images)
        return phi, logits

    def _per_image(self, graph: str, outputs: tuple[str, ...], weights: dict[str, Floats], x: Floats) -> list[Floats]:
        """Outputs with one row per image, of all of x."""
        parts = []
        for s in _micro_batches(len(x)):
            parts.append([value.copy() for value in self._run(graph, outputs, {**weights, "x": x[s]})])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _image_gradient(self, graph: str, weights: dict[str, Floats], batch: dict[str, Floats]) -> Floats:
        gradient = np.empty_like(batch["x"])
        for s in _micro_batches(len(gradient)):
            inputs = {**weights, **{name: value[s] for name, value in batch.items()}}
            gradient[s] = self._run(graph, ("gradient",), inputs)[0]
        return gradient


def _micro_batches(n: int) -> Iterator[slice]:
    """Slices of at most MICRO_BATCH that cover range(n)."""
    for start in range(0, n, MICRO_BATCH):
        yield slice(start, min(start + MICRO_BATCH, n))
