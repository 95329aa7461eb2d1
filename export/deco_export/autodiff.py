"""Reverse-mode differentiation of ONNX graphs, written in standard operators, so that any ONNX Runtime can learn.

`gradient` walks the forward nodes backwards and applies one rule per operator; a rule gets the cotangent of the
node's output and returns those of its inputs. A new operator is one more rule here. The rules choose what ONNX
Runtime runs fast on a CPU: see docs/algorithm.md, "Learning graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export.onnx_graph import Graph, Shape, attributes

Wanted = Sequence[bool]
"""Per input of the node: is its cotangent needed?"""

Rule = Callable[[Graph, onnx.NodeProto, str, Wanted], "list[str | None]"]
RULES: dict[str, Rule] = {}


def gradient(g: Graph, of: dict[str, str], with_respect_to: str) -> str:
    """Append the nodes that compute Σ_k ⟨∂y_k/∂v, c_k⟩ for outputs y_k with cotangents c_k.

    of: {y_k: c_k}, names of values in `g` with the shape of y_k. with_respect_to: the name v.
    Returns the name of the result, with v's shape. Raises ExportError for an operator that has no rule, and when
    the outputs do not depend on v.
    """
    found = backwards(g, list(g.nodes), of, [with_respect_to])
    if with_respect_to not in found:
        raise ExportError(f"expected outputs that depend on {with_respect_to!r}, but they do not")
    return found[with_respect_to]


def backwards(
    g: Graph, nodes: Sequence[onnx.NodeProto], of: dict[str, str], with_respect_to: Sequence[str]
) -> dict[str, str]:
    """Append the same through these nodes; the cotangents of all values that were met, by name."""
    depends = _downstream(nodes, with_respect_to)
    cotangents: dict[str, str] = dict(of)
    for node in reversed(nodes):
        incoming = [cotangents.get(name) for name in node.output]
        if not any(incoming) or not any(name in depends for name in node.input):
            continue
        if node.op_type == "Split":
            results = _split(g, node, incoming)
        elif node.op_type in RULES:
            if incoming[0] is None or any(incoming[1:]):
                raise ExportError(f"expected one used output of {node.op_type}, but the model uses others as well")
            results = RULES[node.op_type](g, node, incoming[0], [name in depends for name in node.input])
        else:
            raise ExportError(
                f"expected operators with a known gradient, but the model uses {node.op_type}; "
                f"replace that layer (known: {', '.join(sorted(RULES))})"
            )
        for name, result in zip(node.input, results, strict=True):
            if result is not None and name in depends:
                cotangents[name] = g.op("Add", cotangents[name], result) if name in cotangents else result
    return cotangents


def _downstream(nodes: Sequence[onnx.NodeProto], sources: Sequence[str]) -> set[str]:
    """Every value that depends on one of these through something that carries a gradient."""
    reached = set(sources)
    for node in nodes:
        if node.op_type != "Shape" and any(name in reached for name in node.input):
            reached.update(node.output)
    return reached


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _split(g: Graph, node: onnx.NodeProto, incoming: Sequence[str | None]) -> list[str | None]:
    parts = [
        part if part is not None else g.op("ConstantOfShape", g.op("Shape", name))  # zeros
        for name, part in zip(node.output, incoming, strict=True)
    ]
    return [g.op("Concat", *parts, axis=attributes(node).get("axis", 0)), *([None] * (len(node.input) - 1))]


def _unbroadcast(g: Graph, cotangent: str, to: Shape, came_from: Shape) -> str:
    """Sum a cotangent of shape `came_from` over the axes along which a value of shape `to` was repeated."""
    padded = (1,) * (len(came_from) - len(to)) + tuple(to)
    axes = [i for i, (a, b) in enumerate(zip(padded, came_from, strict=True)) if a == 1 and b != 1]
    if axes:
        cotangent = g.op("ReduceSum", cotangent, g.integers(axes), keepdims=1)
    if len(to) != len(came_from):
        cotangent = g.op("Reshape", cotangent, g.integers([-1 if d == "N" else int(d) for d in to]))
    return cotangent


# ---------------------------------------------------------------------- element by element


@rule("Add", "Sub", "Mul", "Div")
def _binary(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    a, b = node.input
    y = node.output[0]
    results: list[str | None] = []
    for index, (name, want) in enumerate(zip((a, b), wanted, strict=True)):
        if not want:
            results.append(None)
            continue
        if node.op_type in ("Add", "Sub"):
            d = g.op("Neg", dy) if node.op_type == "Sub" and index == 1 else dy
        elif node.op_type == "Mul":
            d = g.op("Mul", dy, b if index == 0 else a)
        elif index == 0:
            d = g.op("Div", dy, b)
        else:
            d = g.op("Neg", g.op("Div", g.op("Mul", dy, y), b))
        results.append(_unbroadcast(g, d, g.shape(name), g.shape(y)))
    return results


@rule("Sum")
def _sum(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    to = g.shape(node.output[0])
    return [
        _unbroadcast(g, dy, g.shape(name), to) if want else None for name, want in zip(node.input, wanted, strict=True)
    ]


@rule("Neg")
def _neg(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Neg", dy)]


@rule("Relu")
def _relu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    # Where(y > 0, dy, 0) costs several times as much in ONNX Runtime, and Sign(y) twice as much in either runtime.
    positive = g.op("Greater", node.output[0], g.constant(0.0))
    return [g.op("Mul", dy, g.op("Cast", positive, to=onnx.TensorProto.FLOAT))]


@rule("LeakyRelu")
def _leaky_relu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    slope = attributes(node).get("alpha", 0.01)
    positive = g.op("Greater", node.input[0], g.constant(0.0))
    return [g.op("Mul", dy, g.op("Where", positive, g.constant(1.0), g.constant(slope)))]


@rule("PRelu")
def _prelu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x, slope = node.input
    positive, zero = g.op("Greater", x, g.constant(0.0)), g.constant(0.0)
    dx = ds = None
    if wanted[0]:
        dx = g.op("Mul", dy, g.op("Where", positive, g.constant(1.0), slope))
    if wanted[1]:
        ds = g.op("Mul", dy, g.op("Where", positive, zero, x))
        ds = _unbroadcast(g, ds, g.shape(slope), g.shape(x))
    return [dx, ds]


@rule("Elu", "Selu")
def _elu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """Below zero y = γα(eˣ − 1), so that the slope there is y + γα; an Elu has γ = 1."""
    how, selu = attributes(node), node.op_type == "Selu"
    alpha = how.get("alpha", 1.6732632423543772 if selu else 1.0)
    gamma = how.get("gamma", 1.0507009873554805) if selu else 1.0
    below = g.op("Add", node.output[0], g.constant(gamma * alpha))
    positive = g.op("Greater", node.input[0], g.constant(0.0))
    return [g.op("Mul", dy, g.op("Where", positive, g.constant(gamma), below))]


@rule("Softplus")
def _softplus(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Mul", dy, g.op("Sigmoid", node.input[0]))]


@rule("Clip")
def _clip(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    # On the bounds torch.clamp lets the gradient through, and ReLU6 does not: where whole patches are zero, and so is
    # the bias of a fresh batch norm, thousands of values are exactly zero. Both are exported as Clip.
    x, y = node.input[0], node.output[0]
    if [float(g.constants.get(name, np.nan)) for name in node.input[1:]] == [0, 6]:
        inside = g.op("And", g.op("Greater", y, g.constant(0.0)), g.op("Less", y, g.constant(6.0)))
    else:
        inside = g.op("Equal", x, y)
    return [
        g.op("Mul", dy, g.op("Cast", inside, to=onnx.TensorProto.FLOAT)),
        *([None] * (len(node.input) - 1)),
    ]


@rule("HardSigmoid")
def _hard_sigmoid(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    slope = attributes(node).get("alpha", 0.2)
    y = node.output[0]
    inside = g.op("And", g.op("Greater", y, g.constant(0.0)), g.op("Less", y, g.constant(1.0)))
    return [g.op("Mul", dy, g.op("Where", inside, g.constant(slope), g.constant(0.0)))]


@rule("HardSwish")
def _hard_swish(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    middle = g.op("Add", g.op("Div", x, g.constant(3.0)), g.constant(0.5))
    slope = g.op("Where", g.op("Less", x, g.constant(-3.0)), g.constant(0.0), middle)
    slope = g.op("Where", g.op("Greater", x, g.constant(3.0)), g.constant(1.0), slope)
    return [g.op("Mul", dy, slope)]


@rule("Sigmoid")
def _sigmoid(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Mul", dy, g.op("Mul", y, g.op("Sub", g.constant(1.0), y)))]


@rule("Tanh")
def _tanh(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Mul", dy, g.op("Sub", g.constant(1.0), g.op("Mul", y, y)))]


@rule("Exp")
def _exp(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Mul", dy, node.output[0])]


@rule("Log")
def _log(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Div", dy, node.input[0])]


@rule("Sqrt")
def _sqrt(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Div", dy, g.op("Mul", g.constant(2.0), node.output[0]))]


@rule("Pow")
def _pow(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    power = constant_exponent(g, node)
    slope = g.op("Mul", g.constant(power), x if power == 2 else g.op("Pow", x, g.constant(power - 1)))
    return [_unbroadcast(g, g.op("Mul", dy, slope), g.shape(x), g.shape(node.output[0])), None]


def constant_exponent(g: Graph, node: onnx.NodeProto) -> float:
    """p of a Pow that gives xᵖ. Raises ExportError where it is computed, or differs from element to element."""
    found = g.constants.get(node.input[1])
    if found is None or found.size != 1:
        raise ExportError("expected Pow with one constant exponent, but the model computes it; use Exp and Log")
    return float(found.item())


@rule("Reciprocal")
def _reciprocal(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Neg", g.op("Mul", dy, g.op("Mul", y, y)))]


@rule("Erf")
def _erf(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    bell = g.op("Exp", g.op("Neg", g.op("Mul", x, x)))
    return [g.op("Mul", dy, g.op("Mul", g.constant(2 / np.sqrt(np.pi)), bell))]


# ---------------------------------------------------------------------- softmax


@rule("Softmax")
def _softmax(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y, axes = node.output[0], g.integers([attributes(node).get("axis", -1)])
    inner = g.op("ReduceSum", g.op("Mul", dy, y), axes, keepdims=1)
    return [g.op("Mul", y, g.op("Sub", dy, inner))]


@rule("LogSoftmax")
def _log_softmax(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y, axes = node.output[0], g.integers([attributes(node).get("axis", -1)])
    return [g.op("Sub", dy, g.op("Mul", g.op("Exp", y), g.op("ReduceSum", dy, axes, keepdims=1)))]


# ---------------------------------------------------------------------- norms


def centre_and_deviation(g: Graph, node: onnx.NodeProto, axes: str) -> tuple[str, str]:
    """x − μ and σ = √(variance + ε) of a norm's input over the constant `axes`, kept as axes of size 1."""
    x = node.input[0]
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes, keepdims=1))
    variance = g.op("ReduceMean", g.op("Mul", centred, centred), axes, keepdims=1)
    epsilon = g.constant(attributes(node).get("epsilon", 1e-5))
    return centred, g.op("Sqrt", g.op("Add", variance, epsilon))


@rule("InstanceNormalization")
def _instance_norm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """y = scale·c/σ + bias, c = x − μ over a channel's pixels: dx = (scale/σ)·(dy − mean dy − c·mean(dy·c)/σ²).

    The two means give the gradients of scale and bias as well, so that few operators run over all pixels.
    """
    x, scale = node.input[:2]
    shape = g.shape(x)
    pixels, count = g.integers(list(range(2, len(shape)))), float(np.prod([int(d) for d in shape[2:]]))
    centred, sigma = centre_and_deviation(g, node, pixels)
    mean = g.op("ReduceMean", dy, pixels, keepdims=1)  # (N, C, 1, …)
    along = g.op("Div", g.op("ReduceMean", g.op("Mul", dy, centred), pixels, keepdims=1), sigma)
    batch_and_pixels = g.integers([0, *range(2, len(shape))])
    results: list[str | None] = [None]
    for wants, value in zip(wanted[1:], (along, mean), strict=True):
        total = g.op("Mul", value, g.constant(count))
        results.append(g.op("ReduceSum", total, batch_and_pixels, keepdims=0) if wants else None)
    if wanted[0]:
        factor = g.op("Div", g.op("Reshape", scale, g.integers([-1] + [1] * (len(shape) - 2))), sigma)
        slope = g.op("Div", g.op("Mul", factor, along), sigma)
        rest = g.op("Sub", g.op("Mul", dy, factor), g.op("Mul", centred, slope))
        results[0] = g.op("Sub", rest, g.op("Mul", mean, factor))
    return results


@rule("LayerNormalization")
def _layer_norm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """As instance norm, over the axes from `axis` on, scale and bias having the shape of those axes."""
    x, scale = node.input[:2]
    shape, y_shape = g.shape(x), g.shape(node.output[0])
    first = attributes(node).get("axis", -1) % len(shape)
    axes = g.integers(list(range(first, len(shape))))
    centred, sigma = centre_and_deviation(g, node, axes)
    normal = g.op("Div", centred, sigma)
    d = g.op("Mul", dy, scale)
    along = g.op("ReduceMean", g.op("Mul", d, normal), axes, keepdims=1)
    rest = g.op("Sub", g.op("Sub", d, g.op("ReduceMean", d, axes, keepdims=1)), g.op("Mul", normal, along))
    results: list[str | None] = [g.op("Div", rest, sigma) if wanted[0] else None]
    results.append(_unbroadcast(g, g.op("Mul", dy, normal), g.shape(scale), y_shape) if wanted[1] else None)
    if len(node.input) > 2:
        results.append(_unbroadcast(g, dy, g.shape(node.input[2]), y_shape) if wanted[2] else None)
    return results
