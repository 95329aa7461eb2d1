"""When each call of an engine begins and ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from deco_runtime.engine import Engine
from deco_runtime.types import Floats

P = ParamSpec("P")
R = TypeVar("R")


class Mark(NamedTuple):
    """A call of the engine by its name there; begin and end in seconds of `time.perf_counter`."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class TimedEngine:
    """An engine around another one: it hands every call on, and notes when the call began and ended.

    name, precision: the other engine's. marks: one per call in the order of their ends; whoever reads may clear them.
    A call that raises is not noted.
    """

    def __init__(self, engine: Engine) -> None:
        self.name, self.precision = engine.name, engine.precision
        self.marks: list[Mark] = []
        self._engine = engine

    def encode(self, images: Floats) -> Floats:
        """As the other engine's, as are all below."""
        return self._noted("encode", self._engine.encode, images)

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        return self._noted("predict", self._engine.predict, theta, x)

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        return self._noted("weight_gradient", self._engine.weight_gradient, theta, x, t)

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        return self._noted("input_gradient", self._engine.input_gradient, theta, x, t)

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        return self._noted("feature_gradient", self._engine.feature_gradient, theta, x, u)

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        return self._noted("input_gradient_tangent", self._engine.input_gradient_tangent, theta, x, t, v)

    def represent(self, images: Floats) -> tuple[Floats, Floats]:
        return self._noted("represent", self._engine.represent, images)

    def _noted(self, name: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        begin = time.perf_counter()
        result = call(*args, **kwargs)
        self.marks.append(Mark(name, begin, time.perf_counter()))
        return result
