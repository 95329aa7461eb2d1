"""What all engines share: batches cut into micro-batches, and the sums of what each gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from deco_runtime.engine import REPRESENTATION
from deco_runtime.types import Floats

MICRO_BATCH = 8
"""Images per run of a graph: the gradient is a sum, and small batches stay in the cache and keep the memory small."""


class Runner(Protocol):
    """Runs one graph on at most MICRO_BATCH images."""

    def __call__(self, graph: str, outputs: tuple[str, ...], inputs: dict[str, Floats]) -> list[Floats]:
        """Values of these outputs. The arrays may be overwritten by the next run in the same thread."""
        ...


class MicroBatchEngine:
    """An `Engine` on a runner of the bundle's graphs; as safe to call from several threads as the runner is."""

    def __init__(self, name: str, run: Runner) -> None:
        self.name, self._run = name, run

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        parts = []
        for s in _micro_batches(len(x)):
            parts.append([value.copy() for value in self._run("predict", ("logits", "features"), _at(theta, x, s))])
        logits, features = (np.concatenate(p) for p in zip(*parts, strict=True))
        return logits, features

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        loss, gradient = 0.0, np.zeros_like(theta)
        for s in _micro_batches(len(x)):
            part, g = self._run("weight_gradient", ("loss", "gradient"), {**_at(theta, x, s), "t": t[s]})
            loss += float(part)
            gradient += g
        return loss, gradient

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        return self._image_gradient("input_gradient", {"theta": theta}, {"x": x, "t": t})

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        return self._image_gradient("feature_gradient", {"theta": theta}, {"x": x, "u": u})

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        return self._image_gradient("input_gradient_tangent", {"theta": theta, "v": v}, {"x": x, "t": t})

    def represent(self, x: Floats) -> Floats:
        return np.concatenate(
            [self._run(REPRESENTATION, (REPRESENTATION,), {"x": x[s]})[0].copy() for s in _micro_batches(len(x))]
        )

    def _image_gradient(self, graph: str, weights: dict[str, Floats], batch: dict[str, Floats]) -> Floats:
        gradient = np.empty_like(batch["x"])
        for s in _micro_batches(len(gradient)):
            inputs = {**weights, **{name: value[s] for name, value in batch.items()}}
            gradient[s] = self._run(graph, ("gradient",), inputs)[0]
        return gradient


def _at(theta: Floats, x: Floats, s: slice) -> dict[str, Floats]:
    return {"theta": theta, "x": x[s]}


def _micro_batches(n: int) -> Iterator[slice]:
    """Slices of at most MICRO_BATCH that cover range(n)."""
    for start in range(0, n, MICRO_BATCH):
        yield slice(start, min(start + MICRO_BATCH, n))
