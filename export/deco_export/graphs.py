"""The learning graphs of the engine: what `deco_runtime.engine` calls, as ONNX in standard operators.

Every graph has the flat θ (P,) as an input, so a retrained model needs no new session. Sums, not means, over the
batch, so that micro-batches add up exactly; the target matrix t (N, K) carries the weights w of the loss.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from deco_export import autodiff, autodiff_linear, autodiff_shapes, tangent  # noqa: F401  (two register their rules)
from deco_export.forward import Forward


def learning_graphs(fresh: Callable[[], Forward]) -> dict[str, onnx.ModelProto]:
    """The four graphs of one traced model that every recipe needs, by name.

    predict           theta, x     → logits (N, K), features (N, F)
    weight_gradient   theta, x, t  → loss (), gradient (P,)            ∇_θ L
    input_gradient    theta, x, t  → gradient (N, C, H, W)             ∇_x L
    feature_gradient  theta, x, u  → gradient (N, C, H, W)             ∇_x Σ f_θ(x)·u for u (N, F)
    """
    return {
        "predict": predict(fresh()),
        "weight_gradient": weight_gradient(fresh()),
        "input_gradient": input_gradient(fresh()),
        "feature_gradient": feature_gradient(fresh()),
    }


def predict(f: Forward) -> onnx.ModelProto:
    """logits and features; the features come second because the learner needs them rarely."""
    f.graph.nodes.append(onnx.helper.make_node("Identity", [f.features_name], ["features"]))
    outputs = {"logits": ("N", f.classes), "features": ("N", f.features)}
    return f.graph.model({"theta": (f.size,), "x": f.x_shape}, outputs, "predict")


def inference(f: Forward, theta: np.ndarray) -> onnx.ModelProto:
    """x → logits, features with the weights inside: for other runtimes and for looking at."""
    f.bake(theta)
    f.graph.nodes.append(onnx.helper.make_node("Identity", [f.features_name], ["features"]))
    outputs = {"logits": ("N", f.classes), "features": ("N", f.features)}
    return f.graph.model({"x": f.x_shape}, outputs, "inference")


def loss(f: Forward) -> str:
    """−Σ_i Σ_c t_ic log p_θ(x_i)_c, the confidence-weighted cross-entropy of the paper; t_i = w_i · onehot(y_i)."""
    g = f.graph
    log_p = g.op("LogSoftmax", f.logits_name, axis=-1)
    each = g.op("Mul", "t", log_p)
    for name in (log_p, each, "t"):
        g.shapes[name] = ("N", f.classes)
    total = g.op("Neg", g.op("ReduceSum", each, keepdims=0))
    g.shapes[g.nodes[-2].output[0]] = g.shapes[total] = ()
    return str(total)


def _named(f: Forward, value: str, name: str) -> None:
    f.graph.nodes.append(onnx.helper.make_node("Identity", [value], [name]))


def weight_gradient(f: Forward) -> onnx.ModelProto:
    """Loss and ∇_θ of it, flat."""
    total = loss(f)
    _named(f, autodiff.gradient(f.graph, {total: f.graph.constant(1.0)}, "theta"), "gradient")
    _named(f, total, "loss")
    inputs = {"theta": (f.size,), "x": f.x_shape, "t": ("N", f.classes)}
    return f.graph.model(inputs, {"loss": (), "gradient": (f.size,)}, "weight_gradient")


def input_gradient(f: Forward) -> onnx.ModelProto:
    """∇_x of the loss."""
    total = loss(f)
    _named(f, autodiff.gradient(f.graph, {total: f.graph.constant(1.0)}, "x"), "gradient")
    inputs = {"theta": (f.size,), "x": f.x_shape, "t": ("N", f.classes)}
    return f.graph.model(inputs, {"gradient": f.x_shape}, "input_gradient")


def feature_gradient(f: Forward) -> onnx.ModelProto:
    """∇_x Σ f_θ(x)·u: what carries a gradient on the features, as the contrastive term has, back to the images."""
    _named(f, autodiff.gradient(f.graph, {f.features_name: "u"}, "x"), "gradient")
    inputs = {"theta": (f.size,), "x": f.x_shape, "u": ("N", f.features)}
    return f.graph.model(inputs, {"gradient": f.x_shape}, "feature_gradient")


def input_gradient_tangent(f: Forward) -> onnx.ModelProto:
    """d/dε ∇_x L(θ + εv) at ε = 0: what the paper's finite difference of `input_gradient` along v (P,) approximates.

    theta, x, t, v → gradient (N, C, H, W), for `gradient=exact`. Raises ExportError for an operator without a tangent.
    """
    gradient = autodiff.gradient(f.graph, {loss(f): f.graph.constant(1.0)}, "x")
    _named(f, tangent.tangent(f.graph, {"theta": "v"}, gradient), "gradient")
    inputs = {"theta": (f.size,), "x": f.x_shape, "t": ("N", f.classes), "v": (f.size,)}
    return f.graph.model(inputs, {"gradient": f.x_shape}, "input_gradient_tangent")
