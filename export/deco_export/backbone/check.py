"""The learning graphs of a network that torch has never seen, checked without it.

A gradient is right if the loss changes along it as it says: for some tensors of weights at a time, and for the latents,
along a random direction, the derivative by central differences in float64, by ONNX's own reference implementation,
against the inner product of the direction with what the graph gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from deco_runtime.engine import EXACT
from deco_runtime.engines.golden import KINKED, relative_error
from deco_runtime.errors import ExportError
from deco_runtime.learning.random_model import Parameter
from deco_runtime.types import Floats
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from deco_export.forward import Forward
from deco_export.graph_values import Values, draw_inputs, run_graphs

STEP, SECOND_STEP = 1e-6, 1e-9
"""Of the central differences of the loss and of its gradient, in parts of the size of what moves. The second jumps
where a unit crosses a kink of its activation, which fewer do on a shorter way."""
GROUPS = 6
"""Into which the tensors of weights are put: the reference implementation takes its time."""
TOLERANCE = 1e-3
"""Largest allowed difference of two derivatives, relative to the length of the gradient they are taken along; of second
derivatives, which jump where a unit is at a kink, it is KINKED."""


def check(
    fresh: Callable[[], Forward],
    theta: Floats,
    parameters: Sequence[Parameter],
    sets: dict[str, dict[str, Path]],
    x: Floats,
) -> tuple[Values, dict[str, float]]:
    """Golden values of the portable graphs for latents x (N, …), and the largest error per "set/quantity".

    Raises ExportError naming the graph that is wrong.
    """
    forward = fresh()
    inputs = draw_inputs((), forward.classes, forward.features, len(theta), len(x), seed=0) | {"x": x}
    golden = {**inputs, **run_graphs(sets["portable"], theta, inputs)}
    slopes = _Slopes(fresh, theta, inputs)
    errors: dict[str, float] = {"portable/logits": slopes.logits(golden["logits"])}
    for label, files in sets.items():
        found = run_graphs({k: v for k, v in files.items() if k != EXACT}, theta, inputs)
        errors |= {f"{label}/{name}": error for name, error in slopes.errors(found, parameters).items()}
        if EXACT in files:
            errors[f"{label}/{EXACT}"] = _second(files["input_gradient"], theta, inputs, golden[EXACT])
    for name, error in errors.items():
        allowed = KINKED if name.endswith(EXACT) else TOLERANCE
        if not error <= allowed:
            raise ExportError(
                f"expected every graph to agree with finite differences within {allowed:g}, but {name} is off by "
                f"{error:.1e}; this is a defect of deco-export for this network, please report it"
            )
    return golden, errors


class _Slopes:
    """Derivatives of the forward graph in float64."""

    def __init__(self, fresh: Callable[[], Forward], theta: Floats, inputs: Values) -> None:
        f = fresh()
        f.graph.nodes.append(onnx.helper.make_node("Identity", [f.features_name], ["features"]))
        model = f.graph.model(
            {"theta": (f.size,), "x": f.x_shape},
            {"logits": ("N", f.classes), "features": ("N", f.features)},
            "double",
        )
        self._evaluator = ReferenceEvaluator(_double(model))
        self._at = {"theta": theta.astype(np.float64), "x": inputs["x"].astype(np.float64)}
        self._t, self._u = inputs["t"].astype(np.float64), inputs["u"].astype(np.float64)
        self._rng = np.random.default_rng(1)

    def _values(self, **moved: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The loss, Σ features · u, and the logits."""
        logits, features = self._evaluator.run(["logits", "features"], {**self._at, **moved})
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return -float((self._t * log_p).sum()), float((features * self._u).sum()), logits

    def logits(self, found: Floats) -> float:
        """Relative error of the logits."""
        expected = self._values()[2]
        return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))

    def _along(self, name: str, direction: np.ndarray) -> tuple[float, float]:
        """The slopes of the loss and of Σ features · u along a direction from θ or x."""
        at = self._at[name]
        moved = direction != 0
        step = STEP * float(np.sqrt(np.mean(at[moved] ** 2)) or 1.0) / float(np.sqrt(np.mean(direction[moved] ** 2)))
        plus, minus = (self._values(**{name: at + sign * step * direction}) for sign in (1, -1))
        return (plus[0] - minus[0]) / (2 * step), (plus[1] - minus[1]) / (2 * step)

    def errors(self, found: Values, parameters: Sequence[Parameter]) -> dict[str, float]:
        """The largest error of each gradient."""
        worst = {"weight_gradient": 0.0}
        gradient = found["weight_gradient"].astype(np.float64)
        whole = float(np.linalg.norm(gradient)) + 1e-30
        for number in range(min(GROUPS, len(parameters))):
            direction, together = np.zeros_like(gradient), parameters[number::GROUPS]
            for p in together:  # each counts alike, however large its gradient
                size = float(np.linalg.norm(gradient[p.slice])) + 1e-3 * whole
                direction[p.slice] = self._rng.standard_normal(p.size) / size
            slope, _ = self._along("theta", direction)
            error = abs(float(direction @ gradient) - slope) / np.sqrt(len(together))
            worst["weight_gradient"] = max(worst["weight_gradient"], error)
        # A latent that is exactly 0 came from a ReLU, and may sit at the kink of another.
        direction = self._rng.standard_normal(self._at["x"].shape) * (self._at["x"] != 0)
        slopes = self._along("x", direction)
        for name, expected in zip(("input_gradient", "feature_gradient"), slopes, strict=True):
            by = found[name].astype(np.float64)
            worst[name] = abs(float((direction * by).sum()) - expected) / (float(np.linalg.norm(by)) + 1e-30)
        return worst


def _second(file: Path, theta: Floats, inputs: Values, found: Floats) -> float:
    """Error of d/dε ∇_x L(θ + εv): against central differences of the gradient graph in float64."""
    evaluator = ReferenceEvaluator(_double(onnx.load_model(str(file))))
    at, v = theta.astype(np.float64), inputs["v"].astype(np.float64)
    step = SECOND_STEP * float(np.sqrt(np.mean(at**2)))
    given = {"x": inputs["x"].astype(np.float64), "t": inputs["t"].astype(np.float64)}
    plus, minus = (evaluator.run(["gradient"], {"theta": at + sign * step * v, **given})[0] for sign in (1, -1))
    return relative_error(found, (plus - minus) / (2 * step), order=2)


def _double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float64."""
    for tensor in list(model.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for info in [*model.graph.input, *model.graph.output]:
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    del model.graph.value_info[:]
    return model
